import CEdgeKit
import Synchronization

/// Gives weights of a session back under memory pressure, from any thread: half of what stays in memory after a warning,
/// all when memory is critical. The core does so between two passes, of a generation too.
final class Relief: Sendable {
  /// The core takes limits from any thread.
  private struct Session: @unchecked Sendable {
    let handle: OpaquePointer
  }

  private struct State {
    /// nil: it is about to be closed.
    var session: Session?
    var pinnedBytes: UInt64
    var wake: (@Sendable () -> Void)?
  }

  private let state: Mutex<State>

  init(_ session: OpaquePointer, pinnedBytes: UInt64) {
    state = Mutex(State(session: Session(handle: session), pinnedBytes: pinnedBytes))
  }

  /// `body` has the session made idle, on its thread, where no pass is to follow.
  func wake(_ body: @escaping @Sendable () -> Void) { state.withLock { $0.wake = body } }

  func feel(_ pressure: MemoryPressure) {
    guard pressure > .normal else { return }
    let wake: (@Sendable () -> Void)? = state.withLock { state in
      guard let session = state.session else { return nil }
      state.pinnedBytes = pressure == .critical ? 0 : state.pinnedBytes / 2
      // It fails for no session that is open.
      _ = ek_session_limit_resident(session.handle, state.pinnedBytes)
      return state.wake
    }
    wake?()
  }

  func end() { state.withLock { $0.session = nil } }
}
