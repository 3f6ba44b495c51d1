import Foundation
import Synchronization

/// A model being run. Generations of one session run one after the other, on a thread of its own.
///
///     let session = try await Session(path: "llada", options: SessionOptions(memoryBytes: 1_500_000_000))
///     for try await event in session.generate(prompt, settings: GenerationSettings(seed: 1)) {
///       if case .committed(let part) = event { print(part.tokens) }
///     }
///
/// Memory pressure never ends the process. Where the native core computes, a warning has the weights given back after the
/// generation that runs; when memory is critical, that generation stops at its next step with
/// `EdgeKitError.memoryPressure`. Over segments the generation goes on, and gives weights back between two calls. Later
/// generations run with fewer weights in memory, to the same tokens.
public final class Session: Sendable {
  /// The opened bundle.
  public let bundle: Bundle
  private let core: Core

  /// Opens the bundle in the folder `path`, or the one of several there that fits this system, and reads the weights that
  /// stay in memory. Throws what `Bundle.init(path:)` throws, and as below.
  public convenience init(
    path: String, options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) async throws {
    let bundle = try Bundle(path: path)
    try await self.init(bundle: bundle, options: options, memoryPressure: memoryPressure)
  }

  /// Reads the weights of a bundle that stay in memory. The native core computes, or Core ML, Core AI or MLX, whichever
  /// the bundle was exported for. Throws `unsupportedBundle` when this build does not execute that format,
  /// `budgetExceeded`, and the errors of reading.
  public convenience init(
    bundle: Bundle, options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) async throws {
    guard case .native = bundle.manifest.programs else {
      try await self.init(bundle: bundle) {
        try Segments(bundle: bundle, options: options, memoryPressure: memoryPressure)
      }
      return
    }
    let path = bundle.path
    try await self.init(bundle: bundle, memoryPressure: memoryPressure) { () throws(EdgeKitError) in
      try NativeEngine(path: path, options: options)
    }
  }

  /// Generates over segments that an executor of the application's computes, or with a budget for their weights alone.
  /// `segments` opens them, on the session's thread, which alone uses them:
  ///
  ///     let session = try await Session(bundle: bundle) {
  ///       try Segments(bundle: bundle, executor: MyPackages(), weightBytes: 800_000_000)
  ///     }
  ///
  /// The segments observe memory pressure themselves and give weights back between two calls, so no generation stops
  /// for it. Throws what `segments` throws, as `engineFailed` where it is no `EdgeKitError`.
  public convenience init(bundle: Bundle, segments: @escaping @Sendable () throws -> Segments) async throws {
    try await self.init(bundle: bundle, memoryPressure: nil) { () throws(EdgeKitError) in
      do { return try SegmentEngine(bundle.manifest, try segments()) } catch { throw EdgeKitError(error) }
    }
  }

  /// Waits until the engine is there.
  init(
    bundle: Bundle, memoryPressure: (any MemoryPressureSource)?,
    engine: @escaping @Sendable () throws(EdgeKitError) -> any Engine
  ) async throws {
    self.bundle = bundle
    core = Core(ConfinedThread(name: "edgekit \(bundle.path)", make: engine))
    core.observe(memoryPressure)
    _ = try await info()
  }

  /// Generates behind `prompt`, token ids of the bundle's tokenizer, chat template included where the model wants one.
  ///
  /// The stream ends after `done`, or throws an `EdgeKitError`. To cancel, cancel the task that iterates, or stop
  /// iterating: computation ends at the next step boundary, and other generations of this session come after it.
  public func generate(
    _ prompt: [Int], settings: GenerationSettings = GenerationSettings()
  ) -> AsyncThrowingStream<Event, any Error> {
    core.generate(prompt, settings)
  }

  /// What the model is, and how much text it holds now.
  public func info() async throws -> SessionInfo {
    try await core.call { engine throws(EdgeKitError) in try engine.info() }
  }

  /// I/O and compute so far; they start anew when memory pressure had the weights given back.
  public func statistics() async throws -> SessionStatistics {
    try await core.call { engine throws(EdgeKitError) in try engine.statistics() }
  }

  /// Stops the generation under way and gives memory and files back. Releasing the session does so too, after the
  /// generations that were asked for.
  public func close() async { await core.close() }
}

/// Why a generation is to stop.
private enum Stop: Int { case none, cancelled, memoryPressure, closed }

/// Asked from the engine's thread, set from any other. The first reason stays.
private final class StopRequest: Sendable {
  private let reason = Atomic(Stop.none.rawValue)

  var current: Stop { Stop(rawValue: reason.load(ordering: .acquiring)) ?? .none }

  func stop(_ why: Stop) {
    _ = reason.compareExchange(expected: Stop.none.rawValue, desired: why.rawValue, ordering: .acquiringAndReleasing)
  }
}

/// What of a session outlives it while generations that it began are under way.
private final class Core: Sendable {
  private struct State {
    var next = 0
    /// Generations that wait or run.
    var requests: [Int: StopRequest] = [:]
    /// The one that runs.
    var running: StopRequest?
    /// Not relieved yet.
    var pressure = MemoryPressure.normal
    var isClosed = false
    var observation: (any MemoryPressureObservation)?
  }

  private static let closedError = EdgeKitError.closed("the session is closed")
  private let thread: ConfinedThread<any Engine>
  private let state = Mutex(State())

  init(_ thread: ConfinedThread<any Engine>) { self.thread = thread }

  func observe(_ source: (any MemoryPressureSource)?) {
    let observation = source?.observe { [weak self] in self?.feel($0) }
    state.withLock { $0.observation = observation }
  }

  func generate(_ prompt: [Int], _ settings: GenerationSettings) -> AsyncThrowingStream<Event, any Error> {
    // Unbounded: every event is wanted, and there is one a step.
    let (stream, continuation) = AsyncThrowingStream.makeStream(of: Event.self, throwing: (any Error).self)
    let request = StopRequest()
    let id: Int? = state.withLock { state in
      guard !state.isClosed else { return nil }
      state.next += 1
      state.requests[state.next] = request
      return state.next
    }
    guard let id else {
      continuation.finish(throwing: Self.closedError)
      return stream
    }
    continuation.onTermination = { if case .cancelled = $0 { request.stop(.cancelled) } }
    let taken = thread.submit { engine in
      self.state.withLock { $0.running = request }
      let outcome = Self.run(engine, prompt, settings, request) { continuation.yield($0) }
      self.state.withLock { state in
        state.requests[id] = nil
        state.running = nil
      }
      self.relieve(engine)
      continuation.finish(throwing: outcome)
    }
    if !taken { continuation.finish(throwing: Self.closedError) }
    return stream
  }

  /// What `body` says of the engine, on its thread.
  func call<Value: Sendable>(
    _ body: @escaping @Sendable (any Engine) throws(EdgeKitError) -> Value
  ) async throws -> Value {
    try await withCheckedThrowingContinuation { continuation in
      let taken = thread.submit { engine in
        continuation.resume(with: Result { try body(try engine.get()) })
      }
      if !taken { continuation.resume(throwing: Self.closedError) }
    }
  }

  func close() async {
    let requests = state.withLock { state in
      state.isClosed = true
      state.observation = nil
      return Array(state.requests.values)
    }
    for request in requests { request.stop(.closed) }
    await withCheckedContinuation { continuation in
      if !thread.submit({ _ in continuation.resume() }) { continuation.resume() }
    }
    thread.finish()
  }

  /// Tells of memory pressure, from any thread.
  private func feel(_ pressure: MemoryPressure) {
    guard pressure > .normal else { return }
    let running = state.withLock { state in
      state.pressure = max(state.pressure, pressure)
      return state.running
    }
    if pressure == .critical { running?.stop(.memoryPressure) }
    thread.submit { self.relieve($0) }
  }

  /// On the engine's thread.
  private func relieve(_ engine: Result<any Engine, EdgeKitError>) {
    let pressure = state.withLock { state in
      defer { state.pressure = .normal }
      return state.pressure
    }
    if pressure > .normal, case .success(let engine) = engine { engine.relieve(pressure) }
  }

  /// The error that the stream ends with; nil after a cancellation too, which its consumer asked for.
  private static func run(
    _ engine: Result<any Engine, EdgeKitError>, _ prompt: [Int], _ settings: GenerationSettings,
    _ request: StopRequest, _ yield: (Event) -> Void
  ) -> EdgeKitError? {
    do throws(EdgeKitError) {
      let engine = try engine.get()
      if request.current == .none {
        try engine.generate(prompt: prompt, settings: settings) { event in
          yield(event)
          return request.current == .none
        }
      }
    } catch {
      return error
    }
    switch request.current {
    case .none, .cancelled: return nil
    case .memoryPressure:
      return .memoryPressure("memory ran low: the generation was stopped and the weights given back; ask again")
    case .closed: return closedError
    }
  }
}
