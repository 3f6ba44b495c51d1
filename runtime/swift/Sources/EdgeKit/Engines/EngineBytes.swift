/// What an engine takes besides weights and what the native core holds for it, in bytes: estimates, as for every
/// engine.
struct EngineBytes: Equatable {
  /// Arrays within a pass.
  var activations: UInt64 = 0
  /// Copies of weights.
  var scratch: UInt64 = 0
  /// What the vocabulary head takes more than the layers before it, whose arrays are gone by then.
  var head: UInt64 = 0
  /// What the system's runtime allocates later and nothing else counts.
  var allowance: UInt64 = 48 << 20

  init(layers: Double, head: Double, scratch: Double) {
    activations = Self.bytes(layers)
    self.head = Self.bytes(max(0, head - layers))
    self.scratch = Self.bytes(scratch)
  }

  /// Doubles hold every sum that fits a device exactly, and have no overflow that ends a process.
  private static func bytes(_ count: Double) -> UInt64 { UInt64(exactly: count.rounded(.up)) ?? 1 << 62 }
}

/// The largest of some estimates; 0 of none.
private func most(_ values: some Sequence<Double>) -> Double { values.max() ?? 0 }

extension MLXPrograms {
  /// Outputs of one layer at a time in float32 with their int8 forms, its attention scores, a tile of the head, and
  /// MLX's copies of the largest layer and expert with their widened forms.
  func bytes(_ manifest: Manifest, rows: Int, kept: Int, headRows: Int) -> EngineBytes {
    let hidden = Double(manifest.model.hiddenSize)
    let (rows, headRows, seen) = (Double(rows), Double(headRows), Double(rows + kept))
    let table = manifest.model.tables.head ?? manifest.model.tables.embedding
    let tile = most(table.tiles.map { Double($0.count) })
    var (layers, dense, experts) = (0.0, 0.0, 0.0)
    for own in manifest.layers {
      guard let entry = entries[own.program] else { continue }
      var functions = entry.functions
      if case .experts(let before, let expert, let after) = entry {
        functions = [before, after]
        experts = max(experts, Self.copies([expert], tile: 0))
      }
      dense = max(dense, Self.copies(functions, tile: 0))
      layers = max(layers, Self.arrays(functions, own, hidden, rows: rows, seen: seen))
    }
    var head = 6 * headRows * tile * 4 + 3 * headRows * hidden * 4
    if manifest.model.selfConditioning { head += 2 * tile * hidden * 4 }
    let tiles = most(entries.filter { $0.key.hasPrefix("head") }.map { Self.copies($0.value.functions, tile: tile) })
    return EngineBytes(layers: layers, head: head, scratch: max(dense + experts, tiles))
  }

  /// The tensors of their run that functions take.
  private static func weights(_ functions: [Function]) -> [Argument] {
    let all = functions.flatMap(\.inputs).filter { $0.name.hasPrefix("w.") }
    return Array(Dictionary(all.map { ($0.name, $0) }) { $1 }.values)
  }

  private static func shape(_ argument: Argument, tile: Double) -> [Double] {
    argument.shape.map { size in
      switch size {
      case .fixed(let count): Double(count)
      case .length: tile
      }
    }
  }

  private static func arrays(
    _ functions: [Function], _ layer: Manifest.Layer, _ hidden: Double, rows: Double, seen: Double
  ) -> Double {
    var (outputs, query) = (0.0, hidden)
    for argument in weights(functions) {
      let own = shape(argument, tile: 0).first ?? 0
      if argument.name.hasSuffix(".scales") { outputs += own }
      if argument.dtype == "BF16" { outputs += own }
      if argument.name.contains(".q_proj.") && argument.name.hasSuffix("scales") { query = own }
    }
    let dimension = Double(layer.headDim)
    let heads = max(1, (query / dimension).rounded(.down))
    let attention = 3 * heads * rows * seen * 4 + 4 * heads * seen * dimension * 4
    return 2 * rows * (outputs + 8 * hidden) * 4 + attention
  }

  private static func copies(_ functions: [Function], tile: Double) -> Double {
    let sizes: [String: Double] = ["F32": 4, "U32": 4, "I32": 4, "F16": 2, "BF16": 2, "I64": 8]
    var (copied, widest, added) = (0.0, 0.0, 0.0)
    for argument in weights(functions) {
      let shape = shape(argument, tile: tile)
      let stored = shape.reduce(sizes[argument.dtype] ?? 1, *)
      let matrix = shape.prefix(2).reduce(1, *)
      copied += stored
      if argument.name.hasSuffix(".packed") { added += 2 * matrix }
      if argument.dtype == "BF16" && shape.count > 1 { widest = max(widest, 8 * matrix) }
      if argument.dtype == "BF16" && argument.name.contains(".lora_") { added += 8 * matrix }
      if argument.dtype == "F16" { added += 2 * stored }
    }
    return copied + added + widest
  }
}
