import XCTest

@testable import EdgeKit

final class PlanTests: XCTestCase {
  private struct Case: Decodable {
    struct Unit: Decodable {
      var name: String
      var bytes: UInt64
      var group: String
    }

    var units: [Unit]
    var budget: UInt64
    var pinned: [String]?
    var ahead: UInt64
    var needed: UInt64
  }

  func testPlansAreThoseOfThePythonPlanner() throws {
    for each in try Fixtures().decode("plans.json", as: [Case].self) {
      var units: [ResidencyUnit] = []
      for unit in each.units {
        var own = ResidencyUnit(unit.name, bytes: unit.bytes, group: unit.group)
        own.group = unit.group
        units.append(own)
      }
      do throws(EdgeKitError) {
        let experts = units.contains { $0.group == "expert" }
        let plan = try ResidencyPlan(
          units, budgetBytes: each.budget, leastAheadBytes: 0, unitsAhead: experts ? 3 : 2)
        XCTAssertEqual(plan.pinned.sorted(), each.pinned)
        XCTAssertEqual(plan.aheadBytes, each.ahead)
      } catch {
        XCTAssertNil(each.pinned)
        guard case .budgetExceeded(_, let sufficient) = error else { return XCTFail("\(error)") }
        XCTAssertEqual(sufficient, each.needed)
      }
    }
  }

  func testWithoutABudgetEverythingStays() throws {
    let plan = try ResidencyPlan([ResidencyUnit("a", bytes: 5, group: "layer")], WeightLimits())
    XCTAssertEqual(plan.pinned, ["a"])
    XCTAssertEqual(plan.aheadBytes, 0)
    XCTAssertThrowsError(
      try ResidencyPlan([ResidencyUnit("a", bytes: 0, group: "layer")], WeightLimits(weightBytes: 9))
    ) { XCTAssertTrue("\($0)".contains("unit a"), "\($0)") }
  }
}
