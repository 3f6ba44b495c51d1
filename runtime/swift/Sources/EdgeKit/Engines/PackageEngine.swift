import CEdgeKit
import Foundation
import Synchronization

/// Runs the packages of a bundle: chooses functions by length, pads what goes in, cuts what comes out.
///
/// Functions have fixed sizes. Rows and prefix are padded to the smallest function that they fit; the mask hides the
/// padding, and what comes out for padded rows is dropped.
final class PackageEngine: PluggedEngine {
  /// What the thread that opens packages has to know.
  private final class Known: Sendable {
    /// The functions called when a package was last open: they are made ready when it is opened again.
    let called = Mutex<[String: [String]]>([:])
    /// Packages whose files were compared with the manifest: systems end the process over a file that they cannot
    /// parse.
    let verified = Mutex<Set<String>>([])
  }

  let name: String
  private let manifest: Manifest
  private let programs: PackagePrograms
  private let known = Known()
  private let opener: PackageOpener

  /// Throws `unsupportedVersion` and `malformedFile` for programs that do not fit the model.
  init(_ bundle: Bundle, _ programs: PackagePrograms, _ executor: any PackageExecutor) throws(EdgeKitError) {
    try programs.check(bundle.manifest, bundle.path)
    name = programs.format.rawValue
    manifest = bundle.manifest
    self.programs = programs
    let known = known
    opener = PackageOpener { name throws(EdgeKitError) in
      guard let entry = programs.packages[name] else { throw .internalError("there is no package \(name)") }
      if !known.verified.withLock({ $0.contains(name) }) {
        for file in entry.files { try bundle.opened().check(file) }
        known.verified.withLock { _ = $0.insert(name) }
      }
      let expected = known.called.withLock { $0[name] ?? [] }
      return try executor.open(bundle.url(entry.path), entry, functions: expected)
    }
  }

  func bytes(rows: Int, kept: Int, headRows: Int) -> EngineBytes {
    programs.bytes(manifest, rows: rows, kept: kept)
  }

  func openBegin(_ unit: String) throws { try opener.begin(unit) }
  func openFinish(_ unit: String) throws -> Double { try opener.finish(unit) }
  func closeUnit(_ unit: String) throws { try opener.close(unit) }

  func selfCondition(
    _ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>, _ soft: UnsafePointer<Float>
  ) throws {
    let embedded = UnsafeMutableBufferPointer(start: x, count: rows * manifest.model.hiddenSize)
    let earlier = UnsafeBufferPointer(start: soft, count: embedded.count)
    try whole(weights.name, rows, ["embedded": Array(embedded), "soft": Array(earlier)], embedded)
  }

  func final(_ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>) throws {
    let own = UnsafeMutableBufferPointer(start: x, count: rows * manifest.model.hiddenSize)
    try whole(weights.name, rows, ["x": Array(own)], own)
  }

  private func whole(
    _ name: String, _ rows: Int, _ arrays: [String: [Float]], _ target: UnsafeMutableBufferPointer<Float>
  ) throws {
    let shape = [1, rows, manifest.model.hiddenSize]
    let out = try run(name, try fitting(name, rows), arrays.mapValues { Tensor(shape, $0) })
    try output(out, "y", name).prefix(rows: rows, axis: 1).store(to: target)
  }

  func layers(_ call: ek_layers_call) throws {
    let name = call.weights.pointee.name
    for part in try call.parts() {
      let (rows, given) = (part.rows, part.layers)
      let function = try fitting(name, rows, kept: given.map { Int($0.kept) })
      var arrays = ["x": part.input(call.hidden), "phase": part.phase]
      arrays["adapter"] = part.adapter
      for (slot, (own, prefix)) in zip(given, function.prefixes).enumerated() {
        let layer = manifest.layers[Int(own.layer)]
        (arrays["prefix_k.\(slot)"], arrays["prefix_v.\(slot)"]) = own.prefix
        for (table, values) in own.tables(rows) { arrays["\(table).\(layer.rope)"] = values }
        let mask = "mask.\(layer.window.map(String.init) ?? "full")"
        if arrays[mask] == nil {
          arrays[mask] = paddedMask(
            own.addedMask(rows), kept: Int(own.kept), prefix: prefix, length: function.function.t)
        }
      }
      let out = try run(name, function, arrays)
      for (slot, own) in given.enumerated() where own.k != nil {
        let keys = try output(out, "k.\(slot)", name).prefix(rows: rows, axis: 2)
        try own.store(keys: keys, values: try output(out, "v.\(slot)", name).prefix(rows: rows, axis: 2), rows: rows)
      }
      try output(out, "y", name).prefix(rows: rows, axis: 1).store(to: part.x)
    }
  }

  func tile(_ call: ek_tile_call) throws {
    let (name, rows) = (call.weights.pointee.name, Int(call.rows))
    let arrays = try call.inputs()
    try call.store(try run(name, try fitting(name, rows, head: call.variant), arrays))
    if call.z == nil { return }
    try call.store(try run(name, try fitting(name, rows, head: HeadVariant(logits: true)), arrays))
  }

  private func fitting(
    _ name: String, _ length: Int, kept: [Int] = [], head: HeadVariant? = nil
  ) throws(EdgeKitError) -> NamedFunction {
    guard let package = programs.packages[name] else { throw .internalError("there is no package \(name)") }
    return try package.function(named: name, for: length, kept: kept, head: head)
  }

  /// Runs a function on tensors by role; returns tensors by role.
  private func run(
    _ name: String, _ function: NamedFunction, _ arrays: [String: Tensor]
  ) throws -> [String: Tensor] {
    let package = try opener.package(name)
    known.called.withLock { called in
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
    let found = try package.call(function.name, function.function, inputs: feed)
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
