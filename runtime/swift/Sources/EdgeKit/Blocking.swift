import Dispatch
import Synchronization

/// What `body` returns, waited for on the calling thread. For threads of this package's own: a task that waits like this
/// may keep the threads of all tasks from `body`.
func waitFor<Value: Sendable>(_ body: @escaping @Sendable () async throws -> Value) throws -> Value {
  let result = Mutex<Result<Value, any Error>?>(nil)
  let done = DispatchSemaphore(value: 0)
  Task.detached {
    let outcome: Result<Value, any Error>
    do { outcome = .success(try await body()) } catch { outcome = .failure(error) }
    result.withLock { $0 = outcome }
    done.signal()
  }
  done.wait()
  guard let outcome = result.withLock({ $0 }) else { throw EdgeKitError.internalError("a task ended without a result") }
  return try outcome.get()
}
