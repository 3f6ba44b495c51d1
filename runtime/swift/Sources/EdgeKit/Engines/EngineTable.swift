import CEdgeKit
import Foundation

/// Computes for a session of the native core: the functions of `ek_engine`, with Swift's errors. They are called one at
/// a time, on the thread that called the session; what a call points at is valid until they return.
protocol PluggedEngine: AnyObject {
  /// For messages.
  var name: String { get }

  /// What passes of `rows` rows behind `kept` positions take besides weights, and head requests of `headRows`.
  func bytes(rows: Int, kept: Int, headRows: Int) -> EngineBytes

  func layers(_ call: ek_layers_call) throws
  func route(_ call: ek_layers_call, _ counts: UnsafeMutableBufferPointer<Int64>) throws
  func expert(_ call: ek_layers_call, _ number: Int, _ weights: ek_weights) throws
  func join(_ call: ek_layers_call) throws
  func selfCondition(
    _ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>, _ soft: UnsafePointer<Float>) throws
  func final(_ weights: ek_weights, rows: Int, _ x: UnsafeMutablePointer<Float>) throws
  func tile(_ call: ek_tile_call) throws
}

/// For engines without experts.
extension PluggedEngine {
  func route(_ call: ek_layers_call, _ counts: UnsafeMutableBufferPointer<Int64>) throws { throw unasked("experts") }
  func expert(_ call: ek_layers_call, _ number: Int, _ weights: ek_weights) throws { throw unasked("experts") }
  func join(_ call: ek_layers_call) throws { throw unasked("experts") }

  private func unasked(_ what: String) -> EdgeKitError {
    .unsupportedBundle("programs of the \(name) engine have no \(what); export the bundle again")
  }
}

/// An engine as the C ABI takes it: the functions of `ek_engine`.
final class EngineTable: CoreTable {
  private let engine: any PluggedEngine
  private let name: UnsafeMutablePointer<CChar>?
  private var failed: EdgeKitError?
  /// What the library was last told, which it reads before the next call.
  private var told: UnsafeMutablePointer<CChar>?

  init(_ engine: any PluggedEngine) {
    self.engine = engine
    name = strdup(engine.name)
  }

  deinit {
    free(name)
    free(told)
  }

  func open(_ path: String, _ options: inout ek_session_options, _ session: inout OpaquePointer?) -> ek_status {
    var table = native
    return ek_session_open_engine(path, &options, &table, &session)
  }

  func begin() { failed = nil }

  func failure(_ told: EdgeKitError) -> EdgeKitError { failed ?? told }

  /// Copied by the library.
  var native: ek_engine {
    var table = ek_engine()
    table.struct_size = UInt32(MemoryLayout<ek_engine>.size)
    table.name = UnsafePointer(name)
    table.user = Unmanaged.passUnretained(self).toOpaque()
    table.get_bytes = { user, rows, kept, _, headRows, out in
      run(user) { engine in
        guard let out else { return }
        let found = engine.bytes(rows: Int(rows), kept: Int(kept), headRows: Int(headRows))
        out.pointee.activations = found.activations
        out.pointee.scratch = found.scratch
        out.pointee.head = found.head
        out.pointee.allowance = found.allowance
      }
    }
    table.layers = { user, call in run(user) { try $0.layers(try given(call)) } }
    table.route = { user, call, counts in
      run(user) { engine in
        let own = try given(call)
        try engine.route(own, UnsafeMutableBufferPointer(start: counts, count: Int(own.experts)))
      }
    }
    table.expert = { user, call, number, weights in
      run(user) { try $0.expert(try given(call), Int(number), try given(weights)) }
    }
    table.join = { user, call in run(user) { try $0.join(try given(call)) } }
    table.self_condition = { user, weights, rows, x, soft in
      run(user) { engine in
        guard let x, let soft else { throw nothing }
        try engine.selfCondition(try given(weights), rows: Int(rows), x, soft)
      }
    }
    table.final = { user, weights, rows, x in
      run(user) { engine in
        guard let x else { throw nothing }
        try engine.final(try given(weights), rows: Int(rows), x)
      }
    }
    table.tile = { user, call in run(user) { try $0.tile(try given(call)) } }
    table.last_error = { user in user.flatMap { UnsafePointer(owner($0).told) } }
    return table
  }

  fileprivate func perform(_ body: (any PluggedEngine) throws -> Void) -> Int32 {
    do {
      try body(engine)
      return EK_ENGINE_DONE
    } catch {
      // What fails while the library ends a pass that has failed is not what ended it.
      let own = EdgeKitError(error)
      failed = failed ?? own
      free(told)
      told = strdup(own.message)
      return 0
    }
  }
}

private let nothing = EdgeKitError.internalError("the native library gave an engine a null pointer; please report it")

private func owner(_ user: UnsafeMutableRawPointer) -> EngineTable {
  Unmanaged<EngineTable>.fromOpaque(user).takeUnretainedValue()
}

private func run(_ user: UnsafeMutableRawPointer?, _ body: (any PluggedEngine) throws -> Void) -> Int32 {
  guard let user else { return 0 }
  return owner(user).perform(body)
}

private func given<Value>(_ pointer: UnsafePointer<Value>?) throws -> Value { try given(pointer) { $0.pointee } }

private func given<Value, Result>(
  _ pointer: UnsafePointer<Value>?, at body: (UnsafePointer<Value>) -> Result
) throws -> Result {
  guard let pointer else { throw nothing }
  return body(pointer)
}
