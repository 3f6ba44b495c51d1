import CEdgeKit
import Foundation

/// What runs the functions of an MLX bundle: mlx-c, or one that stands in for it. Used by one thread at a time.
public protocol FunctionRunner: AnyObject {
  /// Runs the function in the file of the manifest's entry on tensors in the order of its inputs; gives its outputs
  /// in their order: F32 as floats, I64 as integers. Stored inputs, which are weights, are valid until it returns.
  /// Throws `EdgeKitError.engineFailed`.
  func call(
    _ name: String, _ function: MLXPrograms.Function, inputs: [Tensor]
  ) throws(EdgeKitError) -> [Tensor]
}

/// Runs the functions of an MLX bundle. They serve every length; the weights that a call is for are arguments, and
/// experts run on the rows that chose them.
final class MLXEngine: PluggedEngine {
  typealias Arrays = [String: Tensor]

  /// What lies between the functions of a layer with experts.
  private struct Between {
    var arrays: Arrays
    var mixture: Mixture
  }

  let name = "mlx"
  private let path: String
  private let manifest: Manifest
  private let programs: MLXPrograms
  private let runner: any FunctionRunner
  private var between: [Between] = []

  init(_ bundle: Bundle, _ programs: MLXPrograms, _ runner: any FunctionRunner) throws(EdgeKitError) {
    guard programs.layout == "mlx-2" else {
      throw .unsupportedVersion(
        "\(bundle.path): functions of another layout than mlx-2, which this version reads; update it or export the "
          + "bundle again")
    }
    path = bundle.path
    manifest = bundle.manifest
    self.programs = programs
    self.runner = runner
  }

  func bytes(rows: Int, kept: Int, headRows: Int) -> EngineBytes {
    programs.bytes(manifest, rows: rows, kept: kept, headRows: headRows)
  }

  func selfCondition(
    _ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>, _ soft: UnsafePointer<Float>
  ) throws {
    let embedded = UnsafeMutableBufferPointer(start: x, count: rows * manifest.model.hiddenSize)
    let earlier = UnsafeBufferPointer(start: soft, count: embedded.count)
    try whole("self_conditioning", weights, rows, ["embedded": Array(embedded), "soft": Array(earlier)], embedded)
  }

  func final(_ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>) throws {
    let own = UnsafeMutableBufferPointer(start: x, count: rows * manifest.model.hiddenSize)
    try whole("final", weights, rows, ["x": Array(own)], own)
  }

  private func whole(
    _ name: String, _ weights: ek_weights, _ rows: Int, _ arrays: [String: [Float]],
    _ target: UnsafeMutableBufferPointer<Float>
  ) throws {
    let function = try function(name)
    let given = arrays.mapValues { Tensor([1, rows, manifest.model.hiddenSize], $0) }
    let out = try weights.bound { try run(name, function, given, $0) }
    try output(out, "y").store(to: target)
  }

  func layers(_ call: ek_layers_call) throws {
    let name = String(cString: call.program)
    let function = try function(name)
    try call.weights.pointee.bound { weights in
      for part in try call.parts() {
        let out = try run(name, function, inputs(part, call.hidden), weights)
        try keep(part, out)
        try output(out, "y").store(to: part.x)
      }
    }
  }

  func route(_ call: ek_layers_call, _ counts: UnsafeMutableBufferPointer<Int64>) throws {
    let (name, before, _, _) = try experts(call)
    counts.update(repeating: 0)
    between = try call.weights.pointee.bound { weights in
      try call.parts().map { part in
        let given = inputs(part, call.hidden)
        let first = try run("\(name).before", before, given, weights)
        let mixture = try Mixture(
          name, x: try output(first, "experts.x"), index: try output(first, "experts.index"),
          weight: try output(first, "experts.weight"), experts: counts.count)
        try keep(part, first)
        for (number, rows) in mixture.counts() { counts[number] += Int64(rows) }
        return Between(arrays: given.merging(first) { $1 }, mixture: mixture)
      }
    }
  }

  func expert(_ call: ek_layers_call, _ number: Int, _ weights: ek_weights) throws {
    let (name, _, expert, _) = try experts(call)
    try weights.bound { weights in
      for index in between.indices {
        try between[index].mixture.add(number) { rows in
          try output(try run("\(name).expert", expert, ["x": rows], weights), "y")
        }
      }
    }
  }

  func join(_ call: ek_layers_call) throws {
    let (name, _, _, after) = try experts(call)
    defer { between = [] }
    try call.weights.pointee.bound { weights in
      for (part, own) in zip(try call.parts(), between) {
        let given = own.arrays.merging(["experts.y": own.mixture.sum()]) { $1 }
        try output(try run("\(name).after", after, given, weights), "y").store(to: part.x)
      }
    }
  }

  func tile(_ call: ek_tile_call) throws {
    let name = call.function
    let function = try function(name)
    let logits = call.z == nil ? nil : try self.function("head_logits")
    let arrays = try call.inputs()
    try call.weights.pointee.bound { weights in
      let table = Dictionary(uniqueKeysWithValues: weights.map { ("table.\($0.key)", $0.value) })
      try call.store(try run(name, function, arrays, table))
      if let logits { try call.store(try run("head_logits", logits, arrays, table)) }
    }
  }

  private func inputs(_ part: CallSegment, _ hidden: Int) -> Arrays {
    let own = part.layers[0]
    let prefix = own.prefix
    var arrays = [
      "x": part.input(hidden), "prefix_k": prefix.keys, "prefix_v": prefix.values,
      "mask": own.addedMask(part.rows), "phase": part.phase,
    ]
    arrays["adapter"] = part.adapter
    return arrays.merging(own.tables(part.rows)) { $1 }
  }

  /// Before later segments, which may look at them.
  private func keep(_ part: CallSegment, _ out: Arrays) throws {
    try part.layers[0].store(keys: try output(out, "k"), values: try output(out, "v"), rows: part.rows)
  }

  private func experts(
    _ call: ek_layers_call
  ) throws(EdgeKitError) -> (
    name: String, before: MLXPrograms.Function, expert: MLXPrograms.Function, after: MLXPrograms.Function
  ) {
    let name = String(cString: call.program)
    guard case .experts(let before, let expert, let after) = programs.entries[name] else { throw missing(name) }
    return (name, before, expert, after)
  }

  private func function(_ name: String) throws(EdgeKitError) -> MLXPrograms.Function {
    guard case .whole(let function) = programs.entries[name] else { throw missing(name) }
    return function
  }

  private func missing(_ name: String) -> EdgeKitError {
    .malformedFile("\(path): has no program '\(name)'; export the bundle again")
  }

  private func run(
    _ name: String, _ function: MLXPrograms.Function, _ arrays: Arrays, _ weights: Arrays
  ) throws(EdgeKitError) -> Arrays {
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

  private func output(_ out: Arrays, _ name: String) throws(EdgeKitError) -> Tensor {
    guard let tensor = out[name] else {
      throw .malformedFile("\(path): a program gives no '\(name)'; export the bundle again")
    }
    return tensor
  }
}
