import Foundation
import Synchronization

/// Runs the packages of a bundle: chooses functions by length, pads what goes in, cuts what comes out.
///
/// Functions have fixed sizes. Rows and prefix are padded to the smallest function that they fit; the mask hides the
/// padding, and what comes out for padded rows is dropped.
final class PackageBackend: SegmentBackend {
  private final class Opened: Sendable {
    let package: any OpenPackage
    init(_ package: any OpenPackage) { self.package = package }
  }

  /// The functions called when a package was last open: they are made ready when it is opened again.
  private final class Called: Sendable {
    let functions = Mutex<[String: [String]]>([:])
  }

  /// Packages whose files were compared with the manifest: systems end the process over a file that they cannot parse.
  private final class Verified: Sendable {
    let names = Mutex<Set<String>>([])
  }

  let chunks: [[Int]]
  let tiles: [Range<Int>]
  private let layerTable: [Manifest.Layer]
  private let packages: [String: PackagePrograms.Package]
  private let headNames: [String]
  private let called = Called()
  private let store: SegmentStore<Opened>

  /// `limits` bound the packages that are open at once.
  init(
    bundle: Bundle, programs: PackagePrograms, file: FlashFile, executor: any PackageExecutor, limits: WeightLimits
  ) throws(EdgeKitError) {
    try programs.check(bundle.manifest, bundle.path)
    let layers = bundle.manifest.layers
    let entries = programs.packages
    var chunks: [[Int]] = []
    for (index, layer) in layers.enumerated() {
      guard let name = layer.package, entries[name] != nil, let slot = layer.slot else {
        throw .malformedFile("\(bundle.path): layer \(index) names no package of the bundle; export it again")
      }
      if slot == 0 { chunks.append([]) }
      guard slot == (chunks.last?.count ?? -1), slot == 0 || layers[index - 1].package == name else {
        throw .malformedFile("\(bundle.path): layer \(index) does not follow the one before it in package \(name)")
      }
      chunks[chunks.count - 1].append(index)
    }
    let heads = entries.filter { $0.value.functions.values.first?.kind == .head }
      .sorted { ($0.value.start ?? 0) < ($1.value.start ?? 0) }
    let headNames = heads.map(\.key)
    let conditioning = bundle.manifest.model.selfConditioning ? ["self_conditioning"] : []
    let layerNames = chunks.compactMap { layers[$0[0]].package }
    let step = conditioning + layerNames + ["final"] + headNames
    var units: [ResidencyUnit] = []
    for name in step {
      guard let package = entries[name], package.bytes > 0 else {
        throw .malformedFile("\(bundle.path): there is no package \(name), which the model needs; export it again")
      }
      let group = headNames.contains(name) ? "head" : layerNames.contains(name) ? "layer" : name
      units.append(ResidencyUnit(name, bytes: UInt64(package.bytes), group: group))
    }
    layerTable = layers
    packages = entries
    self.chunks = chunks
    self.headNames = headNames
    tiles = heads.map { ($0.value.start ?? 0)..<(($0.value.start ?? 0) + ($0.value.rows ?? 0)) }
    let called = called
    let verified = Verified()
    store = try SegmentStore(
      units: units, passes: [.denoise: step, .prefill: layerNames, .head: headNames], limits: limits,
      lookedUpBytes: try file.bytes(of: bundle.manifest.model.tables.embedding.runs),
      open: { name throws(EdgeKitError) in
        guard let entry = entries[name] else { throw .internalError("there is no package \(name)") }
        if !verified.names.withLock({ $0.contains(name) }) {
          for file in entry.files { try bundle.opened().check(file) }
          verified.names.withLock { _ = $0.insert(name) }
        }
        let expected = called.functions.withLock { $0[name] ?? [] }
        return Opened(try executor.open(bundle.url(entry.path), entry, functions: expected))
      },
      close: { $0.package.close() })
  }

  var relieve: @Sendable (MemoryPressure) -> Void { store.relieve }

  var residency: WeightResidency { store.residency }

  func begin(_ pass: Pass, then: Pass?) { store.begin(pass, then: then) }
  func idle() { store.idle() }

  func selfCondition(embedded: Tensor, soft: Tensor) throws -> Tensor {
    try whole("self_conditioning", ["embedded": embedded, "soft": soft], length: embedded.shape[1])
  }

  func final(_ x: Tensor) throws -> Tensor { try whole("final", ["x": x], length: x.shape[1]) }

  func layers(_ chunk: Int, x: Tensor, _ inputs: [LayerInputs]) throws -> (y: Tensor, kept: [(Tensor, Tensor)]) {
    let length = x.shape[1]
    let name = layerTable[chunks[chunk][0]].package ?? ""
    let kept = inputs.map { $0.prefixKeys.shape[2] }
    let function = try fitting(name, length, kept: kept)
    var arrays: [String: Tensor] = ["x": x]
    for (slot, (own, prefix)) in zip(inputs, function.prefixes).enumerated() {
      let layer = layerTable[chunks[chunk][slot]]
      arrays["phase"] = Tensor([1], integers: [Int64(own.phase.rawValue)])
      arrays["prefix_k.\(slot)"] = own.prefixKeys
      arrays["prefix_v.\(slot)"] = own.prefixValues
      arrays["cos.\(layer.rope)"] = own.cos
      arrays["sin.\(layer.rope)"] = own.sin
      let mask = "mask.\(layer.window.map(String.init) ?? "full")"
      if arrays[mask] == nil {
        arrays[mask] = paddedMask(own.mask, kept: kept[slot], prefix: prefix, length: function.function.t)
      }
    }
    let out = try store.use(name) { try run($0, name, function, arrays) }
    let pairs = try inputs.indices.map { slot in
      (
        try output(out, "k.\(slot)", name).prefix(rows: length, axis: 2),
        try output(out, "v.\(slot)", name).prefix(rows: length, axis: 2)
      )
    }
    return (try output(out, "y", name).prefix(rows: length, axis: 1), pairs)
  }

  func head(
    _ tile: Int, x: Tensor, temperature: Float, noise: Tensor?, soft: Bool, logits: Bool
  ) throws -> (part: TilePart, z: [Float]?) {
    let name = headNames[tile]
    let rows = x.shape[0]
    let variant = HeadVariant(samples: noise != nil, soft: soft)
    let function = try fitting(name, rows, head: variant)
    let logitsFunction = logits ? try fitting(name, rows, head: HeadVariant(logits: true)) : nil
    var arrays = ["x": x, "temperature": Tensor([1], [temperature])]
    arrays["noise"] = noise
    return try store.use(name) { opened in
      let out = try run(opened, name, function, arrays)
      func floats(_ role: String) throws -> [Float] { try output(out, role, name).prefix(rows: rows, axis: 0).floats }
      func tokens(_ role: String) throws -> [Int] { try output(out, role, name).prefix(rows: rows, axis: 0).integers }
      let part = TilePart(
        top: try floats("max"), arg: try tokens("argmax"), sumOthers: try floats("sum_others"),
        sumZOthers: try floats("sum_z_others"),
        score: variant.samples ? try floats("score") : nil,
        sample: variant.samples ? try tokens("sample") : nil,
        sampleZ: variant.samples ? try floats("sample_z") : nil,
        soft: variant.soft ? try floats("soft") : nil)
      guard let logitsFunction else { return (part, nil) }
      let scores = try run(opened, name, logitsFunction, arrays)
      return (part, try output(scores, "z", name).prefix(rows: rows, axis: 0).floats)
    }
  }

  private func whole(_ name: String, _ arrays: [String: Tensor], length: Int) throws -> Tensor {
    let function = try fitting(name, length)
    let out = try store.use(name) { try run($0, name, function, arrays) }
    return try output(out, "y", name).prefix(rows: length, axis: 1)
  }

  private func fitting(
    _ name: String, _ length: Int, kept: [Int] = [], head: HeadVariant? = nil
  ) throws(EdgeKitError) -> NamedFunction {
    guard let package = packages[name] else { throw .internalError("there is no package \(name)") }
    return try package.function(named: name, for: length, kept: kept, head: head)
  }

  /// Runs a function on tensors by role; returns tensors by role.
  private func run(
    _ opened: Opened, _ name: String, _ function: NamedFunction, _ arrays: [String: Tensor]
  ) throws -> [String: Tensor] {
    called.functions.withLock { called in
      if !called[name, default: []].contains(function.name) { called[name, default: []].append(function.name) }
    }
    var feed: [String: Tensor] = [:]
    for feature in function.function.inputs {
      guard let tensor = arrays[feature.role] else {
        throw EdgeKitError.unsupportedBundle(
          "package \(name) takes '\(feature.role)', which this version does not know; update it")
      }
      feed[feature.name] = try padded(tensor, to: feature)
    }
    let found = try opened.package.call(function.name, function.function, inputs: feed)
    var out: [String: Tensor] = [:]
    for feature in function.function.outputs {
      guard let tensor = found[feature.name], tensor.shape == feature.shape else {
        throw EdgeKitError.engineFailed(
          "package \(name), function \(function.name) gives \(found[feature.name]?.shape.description ?? "nothing") for "
            + "output \(feature.name), the manifest says \(feature.shape); copy or export the bundle again")
      }
      out[feature.role] = tensor
    }
    return out
  }

  private func output(_ out: [String: Tensor], _ role: String, _ name: String) throws(EdgeKitError) -> Tensor {
    guard let tensor = out[role] else {
      throw .malformedFile("package \(name) has no output '\(role)'; export the bundle again")
    }
    return tensor
  }
}
