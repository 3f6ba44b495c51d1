import CEdgeKit

/// A model being run, pass by pass: a session of the native core, over its own engine or one that this package plugs
/// in. A canvas goes in, statistics of the scores come out: full scores (positions times vocabulary) are hundreds of
/// megabytes.
///
/// Not for use by several threads at once.
public final class Denoiser {
  public let vocabulary: Int
  public let hiddenSize: Int
  let handle: OpaquePointer
  /// nil: the native engine.
  let table: (any CoreTable)?
  /// Who looks on; it ends before the session does.
  var recorder: Recorder?
  private let relief: Relief
  private let observation: (any MemoryPressureObservation)?
  /// Positions of the last canvas.
  private var positions = 0

  /// Reads the weights that stay in memory. Throws `unsupportedBundle`, `budgetExceeded`, and what opening throws.
  init(
    _ bundle: Bundle, _ executor: SegmentExecutor, _ options: SessionOptions,
    _ memoryPressure: (any MemoryPressureSource)?
  ) throws(EdgeKitError) {
    try NativeLibrary.check()
    let table = try executor.table(bundle)
    var wanted = ek_session_options(
      struct_size: UInt32(MemoryLayout<ek_session_options>.size), threads: Int32(clamping: options.threads),
      memory_bytes: options.memoryBytes ?? 0, resident_bytes: options.residentBytes ?? .max,
      positions: Int64(options.positions), canvas: Int64(options.canvas), sequences: 1, segments: 0,
      cached: 0, adapter: Int64(options.adapter))
    var opened: OpaquePointer?
    try CoreCall.check(table) {
      guard let table else { return ek_session_open(bundle.path, &wanted, &opened) }
      return table.open(bundle.path, &wanted, &opened)
    }
    guard let opened else { throw .internalError("the native library gave no session") }
    (handle, self.table) = (opened, table)
    let (info, statistics): (SessionInfo, SessionStatistics)
    do throws(EdgeKitError) {
      (info, statistics) = (try Self.info(of: opened), try Self.statistics(of: opened))
    } catch {
      ek_session_close(opened)
      throw error
    }
    (vocabulary, hiddenSize) = (info.vocabulary, info.hiddenSize)
    let relief = Relief(opened, pinnedBytes: statistics.pinnedBytes)
    self.relief = relief
    observation = memoryPressure?.observe { relief.feel($0) }
  }

  deinit {
    relief.end()
    recorder = nil
    // What the engine fails with now nobody waits for.
    withExtendedLifetime(table) { ek_session_close(handle) }
  }

  /// Committed positions whose keys and values are kept.
  public var prefixLength: Int { (try? info().prefixLength) ?? 0 }

  /// Forgets the prefix, and what a generation has left to be encoded.
  public func reset() throws(EdgeKitError) { try CoreCall.check(table) { ek_session_reset(handle) } }

  /// Causal pass over `ids` that appends their keys and values to the prefix. A failure forgets the whole prefix.
  public func prefill(_ ids: [Int]) throws(EdgeKitError) {
    let ids = ids.map(Int64.init)
    try CoreCall.check(table) { ek_session_prefill(handle, ids, Int64(ids.count)) }
  }

  /// Bidirectional pass of `ids` behind the prefix. `soft` [ids, hidden] is what the last step gave as
  /// `HeadOutput.soft`, or nil.
  public func denoise(_ ids: [Int], _ request: HeadRequest, soft: Tensor?) throws(EdgeKitError) -> HeadOutput {
    if let soft, soft.shape != [ids.count, hiddenSize] {
      throw .invalidArgument("soft embeddings of shape \(soft.shape) for \(ids.count) positions of \(hiddenSize)")
    }
    let (own, earlier) = (ids.map(Int64.init), soft?.floats)
    let found = try answer(request, request.rows ?? Array(ids.indices)) { request, output in
      guard let earlier else { return ek_session_denoise(handle, own, Int64(own.count), nil, request, output) }
      return ek_session_denoise(handle, own, Int64(own.count), earlier, request, output)
    }
    positions = ids.count
    return found
  }

  /// What the last `denoise` would have given to this request.
  public func project(_ request: HeadRequest) throws(EdgeKitError) -> HeadOutput {
    // All by number: whatever pass the core remembers, it writes no more rows than there is room for.
    try answer(request, request.rows ?? Array(0..<positions)) { ek_session_project(handle, $0, $1) }
  }

  /// Tells that no pass follows soon.
  public func idle() throws(EdgeKitError) { try CoreCall.check(table) { ek_session_idle(handle) } }

  private func answer(
    _ request: HeadRequest, _ rows: [Int],
    _ call: (UnsafePointer<ek_head_request>, UnsafePointer<ek_head_output>) -> ek_status
  ) throws(EdgeKitError) -> HeadOutput {
    let (count, k) = (rows.count, min(request.topK, vocabulary))
    let argmax = Results<Int64>(count)
    let sample = Results<Int64>(request.gumbel == nil ? nil : count)
    let topIds = Results<Int64>(k > 0 ? count * k : nil)
    let (others, entropy, logZ) = (Results<Float>(count), Results<Float>(count), Results<Float>(count))
    let probability = Results<Float>(request.gumbel == nil ? nil : count)
    let soft = Results<Float>(request.soft ? count * hiddenSize : nil)
    let topZ = Results<Float>(k > 0 ? count * k : nil)
    let logits = Results<Float>(request.logits ? count * vocabulary : nil)
    let roles = Results<Float>(request.roles ? count * Int(EK_ROLES) : nil)
    var output = ek_head_output()
    output.struct_size = UInt32(MemoryLayout<ek_head_output>.size)
    (output.argmax, output.sample, output.top_ids) = (argmax.start, sample.start, topIds.start)
    (output.others, output.entropy, output.log_z) = (others.start, entropy.start, logZ.start)
    (output.sample_prob, output.soft, output.top_z) = (probability.start, soft.start, topZ.start)
    (output.logits, output.roles) = (logits.start, roles.start)
    try CoreCall.check(table) { request.withNative(rows) { call($0, &output) } }
    func lists<Value>(_ values: [Value]?) -> [[Value]]? {
      values.map { values in (0..<count).map { Array(values[($0 * k)..<(($0 + 1) * k)]) } }
    }
    return HeadOutput(
      argmax: argmax.integers ?? [], others: others.all ?? [], entropy: entropy.all ?? [], logZ: logZ.all ?? [],
      sample: sample.integers, sampleProbability: probability.all,
      soft: soft.all.map { Tensor([count, hiddenSize], $0) }, topIds: lists(topIds.integers), topZ: lists(topZ.all),
      logits: logits.all.map { Tensor([count, vocabulary], $0) },
      roles: roles.all.map { Tensor([count, Int(EK_ROLES)], $0) })
  }
}

extension Denoiser: Engine {
  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError) {
    _ = try run(prompt, settings) { event in Event(event.pointee).map(onEvent) ?? true }
  }

  /// Whether a generation came to its end; `onEvent` gets its events as C has them, and returns false to stop there.
  func run(
    _ prompt: [Int], _ settings: GenerationSettings, onEvent: (UnsafePointer<ek_event>) -> Bool
  ) throws(EdgeKitError) -> Bool {
    let ids = prompt.map(Int64.init)
    var stopped = false
    try CoreCall.check(table) {
      let status = withoutActuallyEscaping(onEvent) { escapable in
        let receiver = Receiver(escapable)
        return withExtendedLifetime(receiver) {
          NativeLibrary.withOptions(settings) { options in
            ek_generate(
              handle, ids, Int64(ids.count), options, receive, Unmanaged.passUnretained(receiver).toOpaque(), nil)
          }
        }
      }
      stopped = status == EK_STOPPED
      return stopped ? EK_OK : status  // a stop is no error
    }
    return !stopped
  }

  func info() throws(EdgeKitError) -> SessionInfo { try Self.info(of: handle) }
  func statistics() throws(EdgeKitError) -> SessionStatistics { try Self.statistics(of: handle) }
  func whenRelieved(_ wake: @escaping @Sendable () -> Void) { relief.wake(wake) }

  private static func info(of session: OpaquePointer) throws(EdgeKitError) -> SessionInfo {
    var found = ek_session_info()
    found.struct_size = UInt32(MemoryLayout<ek_session_info>.size)
    try EdgeKitError.check(ek_session_get_info(session, &found))
    return SessionInfo(
      threads: Int(found.threads), vocabulary: Int(found.vocabulary), hiddenSize: Int(found.hidden_size),
      prefixLength: Int(found.prefix_length),
      canvasLength: found.canvas_length == 0 ? nil : Int(found.canvas_length),
      maxPositions: found.max_positions == 0 ? nil : Int(found.max_positions),
      causalPrefix: found.causal_prefix != 0, roleHead: found.role_head != 0)
  }

  private static func statistics(of session: OpaquePointer) throws(EdgeKitError) -> SessionStatistics {
    var found = ek_session_statistics()
    found.struct_size = UInt32(MemoryLayout<ek_session_statistics>.size)
    try EdgeKitError.check(ek_session_get_statistics(session, &found))
    return SessionStatistics(
      ioMode: found.io_mode.map { String(cString: $0) } ?? "", pinnedBytes: found.pinned_bytes,
      ringBytes: found.ring_bytes, streamedBytesPerStep: found.streamed_bytes_per_step,
      bytesRead: found.bytes_read, ioSeconds: found.io_seconds, ioWaitSeconds: found.io_wait_seconds,
      passSeconds: found.pass_seconds)
  }
}

extension HeadRequest {
  /// As the C ABI has it, for these rows.
  fileprivate func withNative<Result>(
    _ rows: [Int], _ body: (UnsafePointer<ek_head_request>) -> Result
  ) -> Result {
    var asked = ek_head_request()
    asked.struct_size = UInt32(MemoryLayout<ek_head_request>.size)
    asked.temperature = temperature
    if let gumbel {
      asked.gumbel = 1
      (asked.gumbel_scale, asked.seed, asked.draw) = (gumbel.scale, gumbel.seed, gumbel.draw)
    }
    asked.soft = soft ? 1 : 0
    asked.roles = roles ? 1 : 0
    asked.top_k = Int64(topK)
    // Never without a place, which stands for all rows.
    return (rows.map(Int64.init) + [0]).withUnsafeBufferPointer { own in
      (asked.rows, asked.row_count) = (own.baseAddress, Int64(rows.count))
      return body(&asked)
    }
  }
}

/// An array that C fills; none for nil.
private final class Results<Element: Numeric> {
  private let buffer: UnsafeMutableBufferPointer<Element>?
  private let size: Int

  init(_ count: Int?) {
    buffer = count.map { .allocate(capacity: max($0, 1)) }
    buffer?.initialize(repeating: 0)
    size = count ?? 0
  }

  deinit { buffer?.deallocate() }

  var start: UnsafeMutablePointer<Element>? { buffer?.baseAddress }
  var all: [Element]? { buffer.map { Array($0.prefix(size)) } }
}

extension Results where Element == Int64 {
  fileprivate var integers: [Int]? { all?.map { Int($0) } }
}

/// What the event callback gets as its user data.
private final class Receiver {
  let onEvent: (UnsafePointer<ek_event>) -> Bool

  init(_ onEvent: @escaping (UnsafePointer<ek_event>) -> Bool) { self.onEvent = onEvent }
}

private func receive(_ event: UnsafePointer<ek_event>?, _ user: UnsafeMutableRawPointer?) -> Int32 {
  guard let event, let user else { return 0 }
  return Unmanaged<Receiver>.fromOpaque(user).takeUnretainedValue().onEvent(event) ? 0 : 1
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
      self = .committed(
        Committed(
          canvasIndex: Int(event.canvas_index), start: Int(event.start), tokens: tokens,
          statistics: Self.statistics(of: event)))
    case EK_EVENT_DONE:
      self = .done(Self.statistics(of: event))
    default:
      return nil
    }
  }

  private static func statistics(of event: ek_event) -> GenerationStatistics {
    event.statistics.map { GenerationStatistics($0.pointee) } ?? GenerationStatistics()
  }
}
