import CEdgeKit

/// What a memory budget for the whole process has to hold besides weights, in bytes (runtime/memory.py has the
/// formulas, which estimate).
struct MemoryNeeds: Equatable {
  /// What the process allocates later and nothing else counts.
  static let allowanceBytes: UInt64 = 48 << 20

  /// What the process holds already.
  var process: UInt64
  /// Keys and values of a prefix.
  var prefix: UInt64
  /// Arrays of a pass.
  var activations: UInt64
  /// Copies of weights.
  var scratch: UInt64

  var total: UInt64 { process + prefix + activations + scratch + Self.allowanceBytes }

  /// For prefixes of up to `positions` positions and passes over up to `canvas`.
  init(_ manifest: Manifest, _ file: FlashFile, positions: Int, canvas: Int) throws(EdgeKitError) {
    let model = manifest.model
    process = ek_process_bytes()
    var kept = model.causalPrefix ? positions : 0
    guard case .packages(let programs) = manifest.programs else {
      prefix = Self.prefix(manifest, kept)
      activations = bytes(try Self.activations(manifest, file, Double(canvas), Double(canvas + kept)))
      scratch = bytes(try Self.scratch(manifest, file))
      return
    }
    // No function takes longer ones.
    kept = min(kept, programs.lengths.map(\.p).max() ?? 0)
    prefix = Self.prefix(manifest, kept)
    activations = bytes(Self.packageActivations(manifest, programs, Double(canvas), Double(canvas + kept)))
    scratch = 0
  }

  /// A buffer that grows is copied while the old one lives.
  private static func prefix(_ manifest: Manifest, _ positions: Int) -> UInt64 {
    bytes(
      manifest.layers.reduce(0) { sum, layer in
        let kept = min(positions, layer.window.map { $0 - 1 } ?? .max)
        return sum + 2 * 8 * Double(layer.kvHeads) * Double(layer.headDim) * Double(kept)
      })
  }

  /// What goes in and out of the largest function in float32, as it is, padded and converted, and what lies between:
  /// scores of attention and outputs of matrices, of which packages do not tell the sizes.
  private static func packageActivations(
    _ manifest: Manifest, _ programs: PackagePrograms, _ canvas: Double, _ seen: Double
  ) -> Double {
    let functions = programs.packages.values.flatMap(\.functions.values)
    let most = functions.map { function in
      (function.inputs + function.outputs).reduce(0) { $0 + 12 * product($1.shape) }
    }
    let hidden = Double(manifest.model.hiddenSize)
    let rows = max(canvas, Double(programs.lengths.map(\.t).max() ?? 0))
    let heads = manifest.layers.map { Double(max($0.kvHeads, manifest.model.hiddenSize / $0.headDim)) }.max() ?? 0
    let tile = Double(programs.packages.values.compactMap(\.rows).max() ?? 0)
    let layer = 3 * heads * rows * seen * 4 + 2 * rows * 16 * hidden * 4
    return (most.max() ?? 0) + max(layer, 3 * rows * tile * 4)
  }

  /// Outputs of one layer at a time in float32 with their int8 forms, its attention scores, and a tile of the head.
  private static func activations(
    _ manifest: Manifest, _ file: FlashFile, _ canvas: Double, _ seen: Double
  ) throws(EdgeKitError) -> Double {
    let hidden = Double(manifest.model.hiddenSize)
    var layer = 0.0
    for own in manifest.layers {
      let tensors = try file.run(own.run).tensors
      let rows = { (slot: FlashFile.Slot) in Double(slot.shape.first ?? 0) }
      var outputs = 0.0
      for slot in tensors {
        if slot.name.hasSuffix(".scales") { outputs += rows(slot) }
        if slot.dtype == "BF16" { outputs += rows(slot) }
      }
      let query = tensors.first { ".\($0.name)".contains(".q_proj.") && $0.name.hasSuffix("scales") }
      let heads = max(1, ((query.map(rows) ?? hidden) / Double(own.headDim)).rounded(.down))
      let attention = 3 * heads * canvas * seen * 4 + 4 * heads * seen * Double(own.headDim) * 4
      layer = max(layer, 2 * canvas * (outputs + 8 * hidden) * 4 + attention)
    }
    let table = manifest.model.tables.head ?? manifest.model.tables.embedding
    let tile = Double(table.tiles.map(\.count).max() ?? 0)
    var head = 6 * canvas * tile * 4 + 3 * canvas * hidden * 4
    if manifest.model.selfConditioning { head += 2 * tile * hidden * 4 + 2 * canvas * hidden * 4 }
    return max(layer, head)
  }

  /// MLX's copies of the largest layer and expert, and their widened forms.
  private static func scratch(_ manifest: Manifest, _ file: FlashFile) throws(EdgeKitError) -> Double {
    func of(_ name: String) throws(EdgeKitError) -> Double {
      let run = try file.run(name)
      var widest = 0.0
      var added = 0.0
      for slot in run.tensors {
        let matrix = product(slot.shape.prefix(2))
        if slot.name.hasSuffix(".packed") { added += 2 * matrix }
        if slot.dtype == "BF16" { widest = max(widest, 8 * (slot.shape.count > 1 ? matrix : 0)) }
        if slot.dtype == "F16" { added += 2 * Double(slot.range.count) }
      }
      return added + widest + Double(run.bytes)
    }
    var (dense, expert, tile) = (0.0, 0.0, 0.0)
    for layer in manifest.layers {
      dense = max(dense, try of(layer.run))
      if let first = layer.experts.first { expert = max(expert, try of(first)) }
    }
    for run in (manifest.model.tables.head ?? manifest.model.tables.embedding).runs { tile = max(tile, try of(run)) }
    return max(dense + expert, tile)
  }
}

/// Doubles hold every sum that fits a device exactly, and have no overflow that ends a process.
private func product(_ shape: some Sequence<Int>) -> Double { shape.reduce(1) { $0 * Double($1) } }

private func bytes(_ count: Double) -> UInt64 { UInt64(exactly: count.rounded(.up)) ?? 1 << 62 }
