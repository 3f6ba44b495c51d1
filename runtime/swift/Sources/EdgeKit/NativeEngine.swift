import CEdgeKit

/// The native core: whole generations through `ek_generate`.
final class NativeEngine: Engine {
  private let path: String
  private let options: SessionOptions
  private var handle: OpaquePointer?
  /// Bounds resident weights after memory pressure; nil: as `options` say.
  private var residentLimit: UInt64?
  /// Whether an encoded prefix went with a session that was closed.
  private var prefixWasDropped = false

  /// Opens the bundle in the folder `path`.
  init(path: String, options: SessionOptions) throws(EdgeKitError) {
    self.path = path
    self.options = options
    try NativeLibrary.check()
    _ = try session()
  }

  deinit { ek_session_close(handle) }

  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError) {
    let continues = settings.options["continue_prefix"] == .bool(true)
    if continues && prefixWasDropped {
      throw .invalidState("memory pressure dropped the encoded text; give it again, without continue_prefix")
    }
    let session = try session()
    prefixWasDropped = false
    let ids = prompt.map(Int64.init)
    let status = withoutActuallyEscaping(onEvent) { escapable in
      let receiver = Receiver(escapable)
      return withExtendedLifetime(receiver) {
        NativeLibrary.withOptions(settings) { options in
          ek_generate(
            session, ids, Int64(ids.count), options, receive, Unmanaged.passUnretained(receiver).toOpaque(), nil)
        }
      }
    }
    if status != EK_STOPPED { try EdgeKitError.check(status) }  // a stop is no error
  }

  func info() throws(EdgeKitError) -> SessionInfo {
    try Self.info(of: try session())
  }

  func statistics() throws(EdgeKitError) -> SessionStatistics {
    var found = ek_session_statistics()
    found.struct_size = UInt32(MemoryLayout<ek_session_statistics>.size)
    try EdgeKitError.check(ek_session_get_statistics(try session(), &found))
    return SessionStatistics(
      ioMode: found.io_mode.map { String(cString: $0) } ?? "", pinnedBytes: found.pinned_bytes,
      ringBytes: found.ring_bytes, streamedBytesPerStep: found.streamed_bytes_per_step,
      bytesRead: found.bytes_read, ioSeconds: found.io_seconds, ioWaitSeconds: found.io_wait_seconds,
      passSeconds: found.pass_seconds)
  }

  /// The core has no call that drops pins of an open session, so the session is closed; the next call opens it with
  /// half the pins after a warning, and with none when memory is critical.
  func relieve(_ pressure: MemoryPressure) {
    guard pressure > .normal, handle != nil else { return }
    let pinned = (try? statistics().pinnedBytes) ?? 0
    residentLimit = pressure == .critical ? 0 : pinned / 2
    if let handle, let info = try? Self.info(of: handle), info.prefixLength > 0 { prefixWasDropped = true }
    ek_session_close(handle)
    handle = nil
  }

  /// The open session.
  private func session() throws(EdgeKitError) -> OpaquePointer {
    if let handle { return handle }
    let cap = options.residentBytes ?? .max
    var wanted = ek_session_options(
      struct_size: UInt32(MemoryLayout<ek_session_options>.size),
      threads: Int32(clamping: options.threads),
      memory_bytes: options.memoryBytes ?? 0,
      resident_bytes: min(cap, residentLimit ?? .max),
      positions: Int64(options.positions),
      canvas: Int64(options.canvas))
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_session_open(path, &wanted, &opened))
    guard let opened else { throw .internalError("ek_session_open gave no session") }
    handle = opened
    return opened
  }

  private static func info(of session: OpaquePointer) throws(EdgeKitError) -> SessionInfo {
    var found = ek_session_info()
    found.struct_size = UInt32(MemoryLayout<ek_session_info>.size)
    try EdgeKitError.check(ek_session_get_info(session, &found))
    return SessionInfo(
      threads: Int(found.threads), vocabulary: Int(found.vocabulary), hiddenSize: Int(found.hidden_size),
      prefixLength: Int(found.prefix_length),
      canvasLength: found.canvas_length == 0 ? nil : Int(found.canvas_length),
      maxPositions: found.max_positions == 0 ? nil : Int(found.max_positions),
      causalPrefix: found.causal_prefix != 0)
  }
}

/// What the event callback gets as its user data.
private final class Receiver {
  let onEvent: (Event) -> Bool

  init(_ onEvent: @escaping (Event) -> Bool) { self.onEvent = onEvent }
}

private func receive(_ event: UnsafePointer<ek_event>?, _ user: UnsafeMutableRawPointer?) -> Int32 {
  guard let event, let user, let converted = Event(event.pointee) else { return 0 }
  return Unmanaged<Receiver>.fromOpaque(user).takeUnretainedValue().onEvent(converted) ? 0 : 1
}

extension Event {
  /// nil for kinds that a later version of the library may add.
  fileprivate init?(_ event: ek_event) {
    let tokens = UnsafeBufferPointer(start: event.ids, count: Int(event.count)).map { Int($0) }
    switch event.kind {
    case EK_EVENT_DRAFT:
      let accepted = UnsafeBufferPointer(start: event.accepted, count: Int(event.count)).map { $0 != 0 }
      self = .draft(
        Draft(
          canvasIndex: Int(event.canvas_index), step: Int(event.step), start: Int(event.start), tokens: tokens,
          accepted: accepted))
    case EK_EVENT_COMMITTED:
      self = .committed(Committed(canvasIndex: Int(event.canvas_index), start: Int(event.start), tokens: tokens))
    case EK_EVENT_DONE:
      self = .done(event.statistics.map { GenerationStatistics($0.pointee) } ?? GenerationStatistics())
    default:
      return nil
    }
  }
}
