import Foundation

/// Opens units in the order of a schedule, on a thread of its own, as long as those that are open together stay within
/// `budgetBytes` (one may always be open).
final class OpenAhead<Opened: Sendable>: Sendable {
  private struct State {
    var queued: [String] = []
    var ready: [(name: String, result: Result<Opened, EdgeKitError>)] = []
    /// Bytes of units that are being opened, ready, or taken.
    var held: UInt64 = 0
    var isOpening = false
    /// Counts cancellations: what is being opened across one is not wanted any more.
    var epoch = 0
    var isClosed = false
  }

  /// State under a condition; the compiler cannot see that every access holds its lock.
  private final class Guarded: @unchecked Sendable {
    let condition = NSCondition()
    var state = State()

    func locked<Value>(_ body: (inout State) -> Value) -> Value {
      condition.lock()
      defer {
        condition.broadcast()
        condition.unlock()
      }
      return body(&state)
    }

    /// `body` once `holds` is true.
    func wait<Value>(until holds: (State) -> Bool, _ body: (inout State) -> Value) -> Value {
      condition.lock()
      defer {
        condition.broadcast()
        condition.unlock()
      }
      while !holds(state) { condition.wait() }
      return body(&state)
    }
  }

  private let guarded = Guarded()
  private let close: @Sendable (Opened) -> Void
  private let sizes: [String: UInt64]

  init(
    sizes: [String: UInt64], budgetBytes: UInt64,
    open: @escaping @Sendable (String) throws(EdgeKitError) -> Opened, close: @escaping @Sendable (Opened) -> Void
  ) {
    self.sizes = sizes
    self.close = close
    let guarded = guarded
    let thread = Thread {
      Self.work(guarded, sizes, budgetBytes, open, close)
    }
    thread.name = "edgekit segments"
    thread.stackSize = 4 << 20
    thread.start()
  }

  /// Closes what was not taken, in time; the thread ends.
  deinit {
    cancel()
    guarded.locked { $0.isClosed = true }
  }

  /// Queues units behind those that are queued.
  func schedule(_ names: [String]) {
    guarded.locked { $0.queued += names }
  }

  /// The next unit of the schedule, once it is open; `release` it after use. Throws what opening it threw.
  func take(_ name: String) throws(EdgeKitError) -> Opened {
    let next = guarded.wait(until: { !$0.ready.isEmpty || ($0.queued.isEmpty && !$0.isOpening) }) { state in
      state.ready.first?.name == name ? state.ready.removeFirst().result : nil
    }
    guard let next else { throw .internalError("segment \(name) is not the next of the schedule; please report it") }
    return try next.get()
  }

  /// Closes a unit that was taken.
  func release(_ name: String, _ opened: Opened) {
    close(opened)
    guarded.locked { $0.held -= sizes[name] ?? 0 }
  }

  /// Closes what was opened ahead, and forgets the schedule.
  func cancel() {
    let unused = guarded.locked { state in
      state.epoch += 1
      state.queued = []
      defer { state.ready = [] }
      return state.ready
    }
    for (name, result) in unused {
      if case .success(let opened) = result { release(name, opened) }
    }
  }

  private static func work(
    _ guarded: Guarded, _ sizes: [String: UInt64], _ budget: UInt64,
    _ open: (String) throws(EdgeKitError) -> Opened, _ close: (Opened) -> Void
  ) {
    func mayOpen(_ state: State) -> Bool {
      guard let name = state.queued.first else { return false }
      return state.held == 0 || state.held + (sizes[name] ?? 0) <= budget
    }
    while true {
      let job: (name: String, epoch: Int)? = guarded.wait(until: { $0.isClosed || mayOpen($0) }) { state in
        if state.isClosed { return nil }
        let name = state.queued.removeFirst()
        state.held += sizes[name] ?? 0
        state.isOpening = true
        return (name, state.epoch)
      }
      guard let job else { return }
      let result: Result<Opened, EdgeKitError>
      do throws(EdgeKitError) { result = .success(try open(job.name)) } catch { result = .failure(error) }
      let unwanted: Opened? = guarded.locked { state in
        state.isOpening = false
        let wanted = state.epoch == job.epoch
        if wanted { state.ready.append((job.name, result)) }
        switch result {
        case .failure:
          state.held -= sizes[job.name] ?? 0
          return nil
        case .success(let opened): return wanted ? nil : opened
        }
      }
      if let unwanted {
        close(unwanted)
        guarded.locked { $0.held -= sizes[job.name] ?? 0 }
      }
    }
  }
}
