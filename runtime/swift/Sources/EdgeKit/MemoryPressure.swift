import Dispatch
import Synchronization

/// How short of memory the system says it is.
public enum MemoryPressure: Int, Sendable, Comparable {
  case normal, warning, critical

  public static func < (left: MemoryPressure, right: MemoryPressure) -> Bool { left.rawValue < right.rawValue }
}

/// Something that tells of memory pressure.
public protocol MemoryPressureSource: Sendable {
  /// Calls `handler` from any thread whenever the level changes, until the returned observation is released.
  func observe(_ handler: @escaping @Sendable (MemoryPressure) -> Void) -> any MemoryPressureObservation
}

/// Ends an observation when it is released.
public protocol MemoryPressureObservation: AnyObject, Sendable {}

/// A source that a caller drives: where the system has none, for what it learns otherwise
/// (`didReceiveMemoryWarning`, a cgroup), and for tests.
public final class ManualMemoryPressure: MemoryPressureSource {
  public typealias Handler = @Sendable (MemoryPressure) -> Void

  private final class Observation: MemoryPressureObservation {
    let id: Int
    let source: ManualMemoryPressure

    init(id: Int, source: ManualMemoryPressure) {
      self.id = id
      self.source = source
    }

    deinit { source.forget(id) }
  }

  private struct State {
    var next = 0
    var handlers: [Int: Handler] = [:]
  }

  private let state = Mutex(State())

  public init() {}

  public func observe(_ handler: @escaping Handler) -> any MemoryPressureObservation {
    let id = state.withLock { state in
      state.next += 1
      state.handlers[state.next] = handler
      return state.next
    }
    return Observation(id: id, source: self)
  }

  /// Tells all observers, on the calling thread.
  public func send(_ pressure: MemoryPressure) {
    let handlers = state.withLock { Array($0.handlers.values) }
    for handler in handlers { handler(pressure) }
  }

  private func forget(_ id: Int) {
    state.withLock { _ = $0.handlers.removeValue(forKey: id) }
  }
}

#if canImport(Darwin)
  /// The system's own source.
  public struct SystemMemoryPressure: MemoryPressureSource {
    private final class Observation: MemoryPressureObservation, @unchecked Sendable {
      let source: any DispatchSourceMemoryPressure

      init(_ source: any DispatchSourceMemoryPressure) { self.source = source }

      deinit { source.cancel() }
    }

    public init() {}

    public func observe(_ handler: @escaping @Sendable (MemoryPressure) -> Void) -> any MemoryPressureObservation {
      let source = DispatchSource.makeMemoryPressureSource(
        eventMask: [.normal, .warning, .critical], queue: .global(qos: .userInitiated))
      let observation = Observation(source)
      source.setEventHandler { [weak observation] in
        guard let event = observation?.source.data else { return }
        handler(event.contains(.critical) ? .critical : event.contains(.warning) ? .warning : .normal)
      }
      source.activate()
      return observation
    }
  }
#endif

/// What a session observes unless it is given another source: the system's own on Apple's systems, none elsewhere.
public func defaultMemoryPressureSource() -> (any MemoryPressureSource)? {
  #if canImport(Darwin)
    return SystemMemoryPressure()
  #else
    return nil
  #endif
}
