import Foundation

/// What runs the functions of an MLX bundle: mlx-c, or one that stands in for it. Used by one thread at a time.
public protocol FunctionRunner: AnyObject {
  /// Runs the function in the file of the manifest's entry on tensors in the order of its inputs; gives its outputs
  /// in their order: F32 as floats, I64 as integers. Throws `EdgeKitError.engineFailed`.
  func call(
    _ name: String, _ function: MLXPrograms.Function, inputs: [Tensor]
  ) throws(EdgeKitError) -> [Tensor]
}

/// Runs the functions of an MLX bundle. They serve every length; the weights of the run that a call is for are
/// arguments, and experts run one after the other on the rows that chose them.
final class MLXBackend: SegmentBackend {
  typealias Weights = [String: Tensor]

  let chunks: [[Int]]
  let tiles: [Range<Int>]
  private let path: String
  private let layerTable: [Manifest.Layer]
  private let entries: [String: MLXPrograms.Entry]
  private let headRuns: [String]
  private let runner: any FunctionRunner
  private let store: SegmentStore<Weights>

  /// `limits` bound the weights that are in memory at once.
  init(
    bundle: Bundle, programs: MLXPrograms, file: FlashFile, runner: any FunctionRunner, limits: WeightLimits
  ) throws(EdgeKitError) {
    guard programs.layout == "mlx-2" else {
      throw .unsupportedVersion(
        "\(bundle.path): functions of another layout than mlx-2, which this version reads; update it or export the "
          + "bundle again")
    }
    path = bundle.path
    layerTable = bundle.manifest.layers
    entries = programs.entries
    self.runner = runner
    chunks = layerTable.indices.map { [$0] }
    let tables = bundle.manifest.model.tables
    let table = tables.head ?? tables.embedding
    headRuns = table.runs
    tiles = table.tiles
    let conditioning = bundle.manifest.model.selfConditioning ? ["self_conditioning"] : []
    let layers = layerTable.flatMap { layer in [(layer.run, "layer")] + layer.experts.map { ($0, "expert") } }
    let step =
      conditioning.map { ($0, "self-conditioning") } + layers + [("final", "final")] + table.runs.map { ($0, "head") }
    var units: [ResidencyUnit] = []
    for (name, group) in step {
      units.append(ResidencyUnit(name, bytes: try file.bytes(of: [name]), group: group))
    }
    store = try SegmentStore(
      units: units,
      passes: [.denoise: step.map(\.0), .prefill: layers.map(\.0), .head: table.runs], limits: limits,
      lookedUpBytes: tables.head == nil ? 0 : try file.bytes(of: tables.embedding.runs),
      open: { name throws(EdgeKitError) in try file.load(name) }, close: { _ in })
  }

  var relieve: @Sendable (MemoryPressure) -> Void { store.relieve }

  var residency: WeightResidency { store.residency }

  func begin(_ pass: Pass, then: Pass?) { store.begin(pass, then: then) }
  func idle() { store.idle() }

  func selfCondition(embedded: Tensor, soft: Tensor) throws -> Tensor {
    let function = try whole("self_conditioning")
    return try store.use("self_conditioning") { weights in
      try output(try run("self_conditioning", function, ["embedded": embedded, "soft": soft], weights), "y")
    }
  }

  func final(_ x: Tensor) throws -> Tensor {
    let function = try whole("final")
    return try store.use("final") { try output(try run("final", function, ["x": x], $0), "y") }
  }

  func layers(_ chunk: Int, x: Tensor, _ inputs: [LayerInputs]) throws -> (y: Tensor, kept: [(Tensor, Tensor)]) {
    let layer = layerTable[chunk]
    let given = inputs[0]
    let arrays = [
      "x": x, "prefix_k": given.prefixKeys, "prefix_v": given.prefixValues, "cos": given.cos, "sin": given.sin,
      "mask": given.mask, "phase": Tensor([1], integers: [Int64(given.phase.rawValue)]),
    ]
    guard let entry = entries[layer.program] else { throw missing(layer.program) }
    let out = try store.use(layer.run) { weights -> [String: Tensor] in
      switch entry {
      case .whole(let function):
        return try run(layer.program, function, arrays, weights)
      case .experts(let before, let expert, let after):
        let first = try run("\(layer.program).before", before, arrays, weights)
        let mixed = try mix(layer, expert, first)
        let between = arrays.merging(first) { $1 }.merging(["experts.y": mixed]) { $1 }
        let last = try run("\(layer.program).after", after, between, weights)
        return first.merging(last) { $1 }
      }
    }
    return (try output(out, "y"), [(try output(out, "k"), try output(out, "v"))])
  }

  func head(
    _ tile: Int, x: Tensor, temperature: Float, noise: Tensor?, soft: Bool, logits: Bool
  ) throws -> (part: TilePart, z: [Float]?) {
    let name = HeadVariant(samples: noise != nil, soft: soft).name
    let function = try whole(name)
    let logitsFunction = logits ? try whole("head_logits") : nil
    var arrays = ["x": x, "temperature": Tensor([1], [temperature])]
    arrays["noise"] = noise
    return try store.use(headRuns[tile]) { weights in
      let table = Dictionary(uniqueKeysWithValues: weights.map { ("table.\($0.key)", $0.value) })
      let out = try run(name, function, arrays, table)
      let part = TilePart(
        top: try output(out, "max").floats, arg: try output(out, "argmax").integers,
        sumOthers: try output(out, "sum_others").floats, sumZOthers: try output(out, "sum_z_others").floats,
        score: out["score"]?.floats, sample: out["sample"]?.integers, sampleZ: out["sample_z"]?.floats,
        soft: out["soft"]?.floats)
      guard let logitsFunction else { return (part, nil) }
      return (part, try output(try run("head_logits", logitsFunction, arrays, table), "z").floats)
    }
  }

  /// sum over j of weight[t, j] * expert[index[t, j]](x[t]) [T, H]. Experts in memory first: they compute while the
  /// others are read. What they say of a token is added in the order of their number.
  private func mix(_ layer: Manifest.Layer, _ expert: MLXPrograms.Function, _ given: [String: Tensor]) throws -> Tensor
  {
    let x = try output(given, "experts.x")
    let index = try output(given, "experts.index")
    let weight = try output(given, "experts.weight").floats
    guard x.shape.count == 2, index.shape.count == 2, index.shape[0] == x.shape[0], weight.count == index.count else {
      throw EdgeKitError.engineFailed(
        "program \(layer.program) chooses experts \(index.shape) for rows \(x.shape); export the bundle again")
    }
    let (rows, hidden, k) = (x.shape[0], x.shape[1], index.shape[1])
    let chosen = index.integers
    let values = x.floats
    var parts = [Float](repeating: 0, count: rows * k * hidden)
    let numbers = Dictionary(layer.experts.enumerated().map { ($0.element, $0.offset) }) { $1 }
    var left = layer.experts
    while !left.isEmpty {
      try store.use(anyOf: left) { (name: String, weights: Weights) throws -> Void in
        left.removeAll { $0 == name }
        let places = chosen.indices.filter { chosen[$0] == numbers[name] }
        if places.isEmpty { return }
        var own: [Float] = []
        for place in places {
          let row = place / k * hidden
          own += values[row..<(row + hidden)]
        }
        let out = try run("\(layer.program).expert", expert, ["x": Tensor([places.count, hidden], own)], weights)
        let y = try output(out, "y").floats
        for (row, place) in places.enumerated() {
          let scale = weight[place]
          for column in 0..<hidden { parts[place * hidden + column] = y[row * hidden + column] * scale }
        }
      }
    }
    var total = [Float](repeating: 0, count: rows * hidden)
    for row in 0..<rows {
      let own = Array(chosen[(row * k)..<((row + 1) * k)])
      let order = (0..<k).sorted { own[$0] != own[$1] ? own[$0] < own[$1] : $0 < $1 }
      for slot in order {
        let at = (row * k + slot) * hidden
        for column in 0..<hidden { total[row * hidden + column] += parts[at + column] }
      }
    }
    return Tensor([rows, hidden], total)
  }

  private func whole(_ name: String) throws(EdgeKitError) -> MLXPrograms.Function {
    guard case .whole(let function) = entries[name] else { throw missing(name) }
    return function
  }

  private func missing(_ name: String) -> EdgeKitError {
    .malformedFile("\(path): has no program '\(name)'; export the bundle again")
  }

  private func run(
    _ name: String, _ function: MLXPrograms.Function, _ arrays: [String: Tensor], _ weights: Weights
  ) throws(EdgeKitError) -> [String: Tensor] {
    var lengths: [String: Int] = [:]
    // Functions do not check sizes: a wrong one would read beyond the array.
    func check(_ argument: MLXPrograms.Argument, _ own: Tensor, _ verb: String) throws(EdgeKitError) {
      let fits = zip(argument.shape, own.shape).allSatisfy { size, found in
        switch size {
        case .fixed(let wanted): return wanted == found
        case .length(let length):
          defer { lengths[length] = lengths[length] ?? found }
          return lengths[length] ?? found == found
        }
      }
      guard fits, argument.shape.count == own.shape.count else {
        throw .engineFailed(
          "program \(name) \(verb) \(argument.name) as \(argument.shape), not as \(own.shape); export the bundle again")
      }
    }
    var inputs: [Tensor] = []
    for argument in function.inputs {
      let own = argument.name.hasPrefix("w.") ? weights[String(argument.name.dropFirst(2))] : arrays[argument.name]
      guard let own else {
        throw .engineFailed(
          "program \(name) takes \(argument.name), which its run does not hold; export the bundle again")
      }
      try check(argument, own, "takes")
      inputs.append(own)
    }
    let outputs = try runner.call(name, function, inputs: inputs)
    guard outputs.count == function.outputs.count else {
      throw .engineFailed("program \(name) gave \(outputs.count) arrays, the manifest says \(function.outputs.count)")
    }
    for (argument, own) in zip(function.outputs, outputs) { try check(argument, own, "gives") }
    return Dictionary(zip(function.outputs.map(\.name), outputs)) { $1 }
  }

  private func output(_ out: [String: Tensor], _ name: String) throws(EdgeKitError) -> Tensor {
    guard let tensor = out[name] else {
      throw .malformedFile("\(path): a program gives no '\(name)'; export the bundle again")
    }
    return tensor
  }
}
