import XCTest
@testable import EdgeKit
final class SmokeTests: XCTestCase { func testNothing() { XCTAssertTrue(true) } }
