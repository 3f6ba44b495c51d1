import Foundation
import Synchronization

/// A thread with an engine of its own: jobs run on it one after the other. Passes compute for seconds, which would
/// starve the cooperative pool that Swift's tasks share, and the errors of the C ABI belong to a thread.
final class EngineThread: Sendable {
  typealias Job = @Sendable (Result<any Engine, EdgeKitError>) -> Void

  /// Of secondary threads, Foundation's default is 512 KB on Apple's systems.
  private static let stackBytes = 8 << 20

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
  init(name: String, make: @escaping @Sendable () throws(EdgeKitError) -> any Engine) {
    let queue = queue
    let thread = Thread {
      let engine: Result<any Engine, EdgeKitError>
      do throws(EdgeKitError) { engine = .success(try make()) } catch { engine = .failure(error) }
      while let job = queue.next() { job(engine) }
    }
    thread.name = name
    thread.stackSize = Self.stackBytes
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

  /// Takes no more jobs. The engine is released on the thread after the last.
  func finish() {
    let first = queue.state.withLock { state in
      defer { state.isFinished = true }
      return !state.isFinished
    }
    if first { queue.wake.signal() }
  }
}
