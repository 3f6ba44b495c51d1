import Foundation
import Synchronization

/// A thread with a value of its own, such as an engine: jobs run on it one after the other. Passes compute for seconds,
/// which would starve the cooperative pool that Swift's tasks share; the errors of the C ABI belong to a thread, and so
/// do the streams of MLX.
final class ConfinedThread<Confined>: Sendable {
  typealias Job = @Sendable (Result<Confined, EdgeKitError>) -> Void

  private struct State {
    var jobs: [Job] = []
    var isFinished = false
  }

  private final class Queue: Sendable {
    let state = Mutex(State())
    let wake = DispatchSemaphore(value: 0)

    /// The next job, when there is one; nil when there will be none.
    func next() -> Job? {
      wake.wait()
      return state.withLock { $0.jobs.isEmpty ? nil : $0.jobs.removeFirst() }
    }
  }

  private let queue = Queue()

  /// `make` runs on the thread, before the first job, which gets its error if it throws one.
  init(name: String, make: @escaping @Sendable () throws(EdgeKitError) -> Confined) {
    let queue = queue
    let thread = Thread {
      let confined: Result<Confined, EdgeKitError>
      do throws(EdgeKitError) { confined = .success(try make()) } catch { confined = .failure(error) }
      while let job = queue.next() { job(confined) }
    }
    thread.name = name
    // Of secondary threads, Foundation's default is 512 KB on Apple's systems.
    thread.stackSize = 8 << 20
    thread.start()
  }

  /// Releasing the thread lets it end after the jobs it was given.
  deinit { finish() }

  /// Runs `job` after those before it. False when the thread takes no more.
  @discardableResult
  func submit(_ job: @escaping Job) -> Bool {
    let taken = queue.state.withLock { state in
      if !state.isFinished { state.jobs.append(job) }
      return !state.isFinished
    }
    if taken { queue.wake.signal() }
    return taken
  }

  /// What `body` gives on the thread; the caller waits for it, on another thread.
  func wait<Value>(_ body: (Confined) throws(EdgeKitError) -> Value) throws(EdgeKitError) -> Value {
    let outcome = withoutActuallyEscaping(body) { body in
      let call = Call(body)
      let taken = submit { confined in
        call.run(confined)
        call.done.signal()
      }
      if taken { call.done.wait() }
      return call.outcome
    }
    guard let outcome else { throw .internalError("a thread that has ended was asked for work") }
    return try outcome.get()
  }

  /// Whoever waits and the thread use it one after the other.
  private final class Call<Value>: @unchecked Sendable {
    let done = DispatchSemaphore(value: 0)
    private(set) var outcome: Result<Value, EdgeKitError>?
    private var body: ((Confined) throws(EdgeKitError) -> Value)?

    init(_ body: @escaping (Confined) throws(EdgeKitError) -> Value) { self.body = body }

    func run(_ confined: Result<Confined, EdgeKitError>) {
      guard let body else { return }
      do throws(EdgeKitError) { outcome = .success(try body(try confined.get())) } catch { outcome = .failure(error) }
      // The thread may hold this object a little longer than the caller waits: the body must not outlive the wait.
      self.body = nil
    }
  }

  /// Takes no more jobs. The value is released on the thread after the last.
  func finish() {
    let first = queue.state.withLock { state in
      defer { state.isFinished = true }
      return !state.isFinished
    }
    if first { queue.wake.signal() }
  }
}
