/// What the functions of packages take and give is checked against the model once, so that arrays fit at every call.
extension PackagePrograms {
  private typealias Shapes = [String: [Int]]
  private static let statistics = ["max", "argmax", "sum_others", "sum_z_others"]
  private static let sampleStatistics = ["score", "sample", "sample_z"]

  /// Throws `unsupportedVersion` for another layout than this package reads, `malformedFile` for what does not fit.
  func check(_ manifest: Manifest, _ path: String) throws(EdgeKitError) {
    guard layout == .string("\(format.rawValue)-2") else {
      throw .unsupportedVersion(
        "\(path): packages of another layout than \(format.rawValue)-2, which this version reads; update it or export "
          + "the bundle again")
    }
    do throws(Wrong) {
      for (name, package) in packages.sorted(by: { $0.key < $1.key }) { try check(name, package, manifest) }
      guard !lengths.isEmpty else { throw Wrong("the packages of layers have no lengths in common") }
    } catch {
      throw .malformedFile("\(path): \(error.text); export the bundle again")
    }
  }

  private struct Wrong: Error {
    let text: String
    init(_ text: String) { self.text = text }
  }

  private func check(_ name: String, _ package: Package, _ manifest: Manifest) throws(Wrong) {
    let kinds = Set(package.functions.values.map(\.kind))
    guard package.bytes > 0, kinds.count == 1 else {
      throw Wrong("package \(name) has \(package.bytes) bytes and functions of \(kinds.count) kinds")
    }
    let layers = manifest.layers.filter { $0.package == name }
    let hidden = manifest.model.hiddenSize
    for (functionName, function) in package.functions {
      let at = "package \(name), function \(functionName)"
      guard (1...Manifest.mostPerAxis).contains(function.t), (0...Manifest.mostPerAxis).contains(function.p) else {
        throw Wrong("\(at): is for \(function.t) positions after \(function.p) of prefix")
      }
      let x = [1, function.t, hidden]
      let shapes: (taken: Shapes, given: Shapes)
      switch function.kind {
      case .layers: shapes = try Self.layerShapes(function, layers, manifest.model, at)
      case .head: shapes = Self.headShapes(function, package.rows ?? 0, hidden)
      case .final: shapes = (["x": x], ["y": x])
      case .selfConditioning: shapes = (["embedded": x, "soft": x], ["y": x])
      }
      try Self.check(function.inputs, shapes.taken, "\(at): input")
      try Self.check(function.outputs, shapes.given, "\(at): output")
    }
  }

  /// What a chunk of layers takes and gives, by role. How much prefix a layer with a window takes is read from its
  /// input: converters like round sizes.
  private static func layerShapes(
    _ function: Function, _ layers: [Manifest.Layer], _ model: Manifest.Model, _ at: String
  ) throws(Wrong) -> (taken: Shapes, given: Shapes) {
    let t = function.t
    let x = [1, t, model.hiddenSize]
    var (taken, given): (Shapes, Shapes) = (["x": x], ["y": x])
    for (slot, layer) in layers.enumerated() {
      var kept = min(function.p, layer.window.map { $0 - 1 } ?? .max)
      if kept > 0 {
        let own = function.inputs.first { $0.role == "prefix_k.\(slot)" }?.shape ?? []
        if own.count == 4, layer.window != nil { kept = max(kept, min(own[2], Manifest.mostPerAxis)) }
        for name in ["prefix_k", "prefix_v"] { taken["\(name).\(slot)"] = [1, layer.kvHeads, kept, layer.headDim] }
      }
      let mask = "mask.\(layer.window.map(String.init) ?? "full")"
      if let other = taken[mask], other != [t, kept + t] {
        throw Wrong("\(at): layers that share \(mask) take different lengths of prefix")
      }
      taken[mask] = [t, kept + t]
      for name in ["cos", "sin"] { taken["\(name).\(layer.rope)"] = [t, model.ropes[layer.rope]?.count ?? 0] }
      if model.queryScales?[layer.rope] != nil { taken["query_scale.\(layer.rope)"] = [t, 1] }
      for name in ["k", "v"] { given["\(name).\(slot)"] = [1, layer.kvHeads, t, layer.headDim] }
    }
    if function.inputs.contains(where: { $0.role == "phase" }) { taken["phase"] = [1] }
    if model.adapters?.isEmpty == false, function.inputs.contains(where: { $0.role == "adapter" }) {
      taken["adapter"] = [t, 1]
    }
    return (taken, given)
  }

  /// What a tile of the head takes and gives; which statistics, its own features say.
  private static func headShapes(_ function: Function, _ rows: Int, _ hidden: Int) -> (taken: Shapes, given: Shapes) {
    let t = function.t
    let variant = HeadVariant(NamedFunction(name: "", function: function))
    var (taken, given): (Shapes, Shapes) = (["x": [t, hidden], "temperature": [1]], [:])
    if variant.logits { return (taken, ["z": [t, rows]]) }
    for name in statistics { given[name] = [t] }
    if variant.samples {
      taken["noise"] = [t, rows]
      for name in sampleStatistics { given[name] = [t] }
    }
    if variant.soft { given["soft"] = [t, hidden] }
    return (taken, given)
  }

  private static func check(_ features: [Feature], _ expected: Shapes, _ at: String) throws(Wrong) {
    for feature in features {
      guard let shape = expected[feature.role] else { throw Wrong("\(at) \(feature.role) is not expected") }
      guard feature.shape == shape else {
        throw Wrong("\(at) \(feature.role) has shape \(feature.shape), expected \(shape)")
      }
    }
    let found = Set(features.map(\.role))
    if let missing = expected.keys.sorted().first(where: { !found.contains($0) }) {
      throw Wrong("\(at) \(missing) is missing")
    }
    guard found.count == features.count, Set(features.map(\.name)).count == features.count else {
      throw Wrong("\(at)s: a name or a role is there twice")
    }
  }
}
