import Foundation
import Synchronization

/// Opens packages one after the other, on a thread of its own, and keeps those that are open. For one thread at a time.
final class PackageOpener {
  /// A package on its way.
  private final class Opening: Sendable {
    let done = DispatchSemaphore(value: 0)
    let outcome = Mutex<(result: Result<any OpenPackage, EdgeKitError>, seconds: Double)?>(nil)
  }

  private let thread = ConfinedThread<Void>(name: "edgekit packages") {}
  private let open: @Sendable (String) throws(EdgeKitError) -> any OpenPackage
  private var underWay: [String: Opening] = [:]
  private var opened: [String: any OpenPackage] = [:]

  /// `open` is called on the thread.
  init(open: @escaping @Sendable (String) throws(EdgeKitError) -> any OpenPackage) { self.open = open }

  func begin(_ name: String) throws(EdgeKitError) {
    let (opening, open) = (Opening(), open)
    let taken = thread.submit { _ in
      let start = ContinuousClock.now
      let result: Result<any OpenPackage, EdgeKitError>
      do throws(EdgeKitError) { result = .success(try open(name)) } catch { result = .failure(error) }
      opening.outcome.withLock { $0 = (result, (ContinuousClock.now - start) / .seconds(1)) }
      opening.done.signal()
    }
    guard taken else { throw .internalError("package \(name) is asked for after the last") }
    underWay[name] = opening
  }

  /// Waits until it is open, and gives the seconds that opening took. Throws what opening it threw.
  func finish(_ name: String) throws(EdgeKitError) -> Double {
    guard let opening = underWay.removeValue(forKey: name) else { throw notOpen(name) }
    opening.done.wait()
    guard let (result, seconds) = opening.outcome.withLock({ $0 }) else { throw notOpen(name) }
    opened[name] = try result.get()
    return seconds
  }

  /// The open package of that name.
  func package(_ name: String) throws(EdgeKitError) -> any OpenPackage {
    guard let package = opened[name] else { throw notOpen(name) }
    return package
  }

  func close(_ name: String) throws(EdgeKitError) {
    guard let package = opened.removeValue(forKey: name) else { throw notOpen(name) }
    package.close()
  }

  private func notOpen(_ name: String) -> EdgeKitError {
    .internalError("package \(name) is used while it is not open; please report it")
  }
}
