import Foundation
import Synchronization

/// A model being run. Generations of one session run one after the other, on a thread of its own.
///
///     let session = try await Session(path: "llada", options: SessionOptions(memoryBytes: 1_500_000_000))
///     for try await text in session.answer("Why is the sky blue?") { print(text, terminator: "") }
///
/// Memory pressure ends neither the process nor a generation: before its next pass a warning has half of the weights that
/// stay in memory given back, and all of them when memory is critical. It goes on, slower, to the same tokens, and so do
/// later ones.
public final class Session: Sendable {
  /// The opened bundle.
  public let bundle: Bundle
  private let core: Core
  private let text: Result<Tokenizer, EdgeKitError>

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
    try await self.init(bundle: bundle) { () throws(EdgeKitError) in
      try Denoiser(bundle, try .own(bundle), options, memoryPressure)
    }
  }

  /// Generates over what an executor of the application's computes. `segments` opens it, on the session's thread, which
  /// alone uses it:
  ///
  ///     let session = try await Session(bundle: bundle) {
  ///       try Segments(bundle: bundle, executor: MyPackages(), options: SessionOptions(memoryBytes: 1_500_000_000))
  ///     }
  ///
  /// Throws what `segments` throws, as `engineFailed` where it is no `EdgeKitError`.
  public convenience init(bundle: Bundle, segments: @escaping @Sendable () throws -> Segments) async throws {
    try await self.init(bundle: bundle) { () throws(EdgeKitError) in
      do { return try segments().denoiser } catch { throw EdgeKitError(error) }
    }
  }

  /// Waits until the engine is there.
  init(bundle: Bundle, engine: @escaping @Sendable () throws(EdgeKitError) -> any Engine) async throws {
    self.bundle = bundle
    // Before the engine, whose memory budget counts what the process holds.
    do throws(EdgeKitError) { text = .success(try Tokenizer(bundle: bundle.path)) } catch { text = .failure(error) }
    core = Core(ConfinedThread(name: "edgekit \(bundle.path)", make: engine))
    try await core.listen()
  }

  /// Generates behind `prompt`, token ids of the bundle's tokenizer, chat template included where the model wants one.
  ///
  /// Committed tokens come with their text, see `Event.text`.
  ///
  /// The stream ends after `done`, or throws an `EdgeKitError`. To cancel, cancel the task that iterates, or stop
  /// iterating: computation ends at the next step boundary, and other generations of this session come after it.
  public func generate(
    _ prompt: [Int], settings: GenerationSettings = GenerationSettings()
  ) -> AsyncThrowingStream<Event, any Error> {
    core.generate(prompt, settings, try? text.get())
  }

  /// The bundle's tokenizer. Throws where it has none, or one that the core does not read: then prompts and answers are
  /// token ids.
  public func tokenizer() throws(EdgeKitError) -> Tokenizer { try text.get() }

  /// Text that answers a question and will not change, as it becomes certain; see `answer(_:settings:)`.
  public func answer(
    _ question: String, settings: GenerationSettings = GenerationSettings()
  ) -> AsyncThrowingStream<String, any Error> {
    answer([Message(.user, question)], settings: settings)
  }

  /// Text that answers the last message of a conversation and will not change, as it becomes certain. The stream throws an
  /// `EdgeKitError`; it is cancelled as `generate` is.
  public func answer(
    _ conversation: [Message], settings: GenerationSettings = GenerationSettings()
  ) -> AsyncThrowingStream<String, any Error> {
    let (parts, continuation) = AsyncThrowingStream.makeStream(of: String.self, throwing: (any Error).self)
    let task = Task {
      do {
        let tokenizer = try self.tokenizer()
        for try await event in self.generate(try tokenizer.prompt(conversation), settings: settings) {
          if case .text(let part) = event { continuation.yield(part) }
        }
        continuation.finish()
      } catch {
        continuation.finish(throwing: error)
      }
    }
    continuation.onTermination = { _ in task.cancel() }
    return parts
  }

  /// What the model is, and how much text it holds now.
  public func info() async throws -> SessionInfo {
    try await core.call { engine throws(EdgeKitError) in try engine.info() }
  }

  /// I/O and compute so far.
  public func statistics() async throws -> SessionStatistics {
    try await core.call { engine throws(EdgeKitError) in try engine.statistics() }
  }

  /// What `body` says of what is run pass by pass, on its thread; where its last argument says no, it should end soon.
  /// Throws `invalidState` for an engine that cannot be measured.
  func measured<Value: Sendable>(
    _ body: @escaping @Sendable (Denoiser, () -> Bool) throws(EdgeKitError) -> Value
  ) async throws -> Value {
    try await core.stoppable { engine, goesOn throws(EdgeKitError) in
      guard let denoiser = engine as? Denoiser else {
        throw .invalidState("the session's engine computes whole generations, which cannot be measured")
      }
      return try body(denoiser, goesOn)
    }
  }

  /// Ends what looks on, after what was asked for before.
  func stopMeasuring() { core.stopMeasuring() }

  /// Stops the generation under way and gives memory and files back. Releasing the session does so too, after the
  /// generations that were asked for.
  public func close() async { await core.close() }
}

/// Why a generation is to stop.
private enum Stop: Int { case none, cancelled, closed }

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
    var isClosed = false
  }

  private static let closedError = EdgeKitError.closed("the session is closed")
  private let thread: ConfinedThread<any Engine>
  private let state = Mutex(State())

  init(_ thread: ConfinedThread<any Engine>) { self.thread = thread }

  /// Has the engine give memory back where no generation runs that would.
  func listen() async throws {
    let thread = thread
    try await call { engine throws(EdgeKitError) in
      // An engine must not keep its own thread.
      engine.whenRelieved { [weak thread] in
        _ = thread?.submit { if case .success(let engine) = $0 { try? engine.idle() } }
      }
    }
  }

  func generate(
    _ prompt: [Int], _ settings: GenerationSettings, _ tokenizer: Tokenizer?
  ) -> AsyncThrowingStream<Event, any Error> {
    // Unbounded: every event is wanted, and there are few a step.
    let (stream, continuation) = AsyncThrowingStream.makeStream(of: Event.self, throwing: (any Error).self)
    let request = StopRequest()
    guard let id = begin(request) else {
      continuation.finish(throwing: Self.closedError)
      return stream
    }
    continuation.onTermination = { if case .cancelled = $0 { request.stop(.cancelled) } }
    let taken = thread.submit { engine in
      let outcome = Self.run(engine, prompt, settings, request, tokenizer) { continuation.yield($0) }
      self.state.withLock { $0.requests[id] = nil }
      continuation.finish(throwing: outcome)
    }
    if !taken { continuation.finish(throwing: Self.closedError) }
    return stream
  }

  /// A number for what is under way from now on; nil where the session is closed.
  private func begin(_ request: StopRequest) -> Int? {
    state.withLock { state in
      guard !state.isClosed else { return nil }
      state.next += 1
      state.requests[state.next] = request
      return state.next
    }
  }

  /// As `call`; the last argument of `body` says whether neither its task was cancelled nor the session closed.
  func stoppable<Value: Sendable>(
    _ body: @escaping @Sendable (any Engine, () -> Bool) throws(EdgeKitError) -> Value
  ) async throws -> Value {
    let request = StopRequest()
    guard let id = begin(request) else { throw Self.closedError }
    defer { state.withLock { $0.requests[id] = nil } }
    return try await withTaskCancellationHandler {
      try await call { engine throws(EdgeKitError) in try body(engine) { request.current == .none } }
    } onCancel: {
      request.stop(.cancelled)
    }
  }

  func stopMeasuring() {
    _ = thread.submit { if case .success(let engine) = $0 { (engine as? Denoiser)?.recorder = nil } }
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
      return Array(state.requests.values)
    }
    for request in requests { request.stop(.closed) }
    await withCheckedContinuation { continuation in
      if !thread.submit({ _ in continuation.resume() }) { continuation.resume() }
    }
    thread.finish()
  }

  /// The error that the stream ends with; nil after a cancellation too, which its consumer asked for.
  private static func run(
    _ engine: Result<any Engine, EdgeKitError>, _ prompt: [Int], _ settings: GenerationSettings,
    _ request: StopRequest, _ tokenizer: Tokenizer?, _ yield: (Event) -> Void
  ) -> EdgeKitError? {
    do throws(EdgeKitError) {
      let engine = try engine.get()
      if request.current == .none {
        let text = try EventText(tokenizer)
        try engine.generate(prompt: prompt, settings: settings) { event in
          text.pass(event, to: yield)
          return text.failure == nil && request.current == .none
        }
        if let failure = text.failure { throw failure }
      }
    } catch {
      return error
    }
    switch request.current {
    case .none, .cancelled: return nil
    case .closed: return closedError
    }
  }
}
