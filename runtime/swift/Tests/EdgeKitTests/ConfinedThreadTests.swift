import Foundation
import Synchronization
import XCTest

@testable import EdgeKit

final class ConfinedThreadTests: XCTestCase {
  /// What a body captures is not kept beyond the wait, from any number of threads.
  func testWhoWaitsGetsTheValueOfTheOneThread() throws {
    let thread = ConfinedThread<Thread>(name: "one") { Thread.current }
    let owners = Mutex<Set<Bool>>([])
    DispatchQueue.concurrentPerform(iterations: 200) { number in
      let found = try? thread.wait { (own: Thread) throws(EdgeKitError) -> Int in
        owners.withLock { _ = $0.insert(own === Thread.current) }
        return number * 2
      }
      XCTAssertEqual(found, number * 2)
    }
    XCTAssertEqual(owners.withLock { $0 }, [true])
  }

  func testErrorsAreTheCallers() throws {
    let gone = EdgeKitError.readFailed("gone")
    let thread = ConfinedThread<Int>(name: "two") { 7 }
    XCTAssertThrowsError(try thread.wait { (_: Int) throws(EdgeKitError) -> Int in throw gone }) {
      XCTAssertEqual($0 as? EdgeKitError, gone)
    }
    XCTAssertEqual(try thread.wait { (own: Int) throws(EdgeKitError) -> Int in own }, 7)
    let broken = ConfinedThread<Int>(name: "three") { () throws(EdgeKitError) -> Int in throw gone }
    XCTAssertThrowsError(try broken.wait { (own: Int) throws(EdgeKitError) -> Int in own }) {
      XCTAssertEqual($0 as? EdgeKitError, gone)
    }
    thread.finish()
    XCTAssertThrowsError(try thread.wait { (own: Int) throws(EdgeKitError) -> Int in own }) { error in
      guard case EdgeKitError.internalError = error else { return XCTFail("\(error)") }
    }
  }

  func testATaskIsWaitedFor() throws {
    let found = try waitFor {
      try await Task.sleep(for: .milliseconds(1))
      return 5
    }
    XCTAssertEqual(found, 5)
    XCTAssertThrowsError(try waitFor { () async throws -> Int in throw EdgeKitError.closed("it") }) {
      XCTAssertEqual($0 as? EdgeKitError, .closed("it"))
    }
  }
}
