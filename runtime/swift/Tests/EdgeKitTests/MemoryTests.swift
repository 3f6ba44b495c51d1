import XCTest

@testable import EdgeKit

/// What a memory budget holds besides weights, and what stays in memory: as in Python.
final class MemoryTests: XCTestCase {
  private struct Recorded: Decodable {
    struct Needs: Decodable {
      var positions: Int
      var canvas: Int
      var prefix: UInt64
      var activations: UInt64
      var scratch: UInt64
    }

    struct Plan: Decodable {
      var weights: UInt64?
      var resident: UInt64?
      var pinned: UInt64?
      var ahead: UInt64?
      var streamed: UInt64?
      var needed: UInt64?
    }

    var recording: String
    var format: String
    var needs: [Needs]
    var plans: [Plan]
  }

  private func recorded() throws -> [Recorded] { try Fixtures().decode("memory.json") }

  func testNeedsAreThoseOfPython() throws {
    for each in try recorded() {
      let bundle = try EdgeKit.Bundle(path: try Recording(each.recording).path)
      let file = try FlashFile(bundle)
      for expected in each.needs {
        let found = try MemoryNeeds(bundle.manifest, file, positions: expected.positions, canvas: expected.canvas)
        XCTAssertEqual(found.prefix, expected.prefix, each.recording)
        XCTAssertEqual(found.activations, expected.activations, each.recording)
        XCTAssertEqual(found.scratch, expected.scratch, each.recording)
        XCTAssertGreaterThan(found.process, 1 << 20)
      }
    }
  }

  func testPlansAreThoseOfPython() throws {
    var budgets = 0
    for each in try recorded() {
      let recording = try Recording(each.recording)
      let bundle = try EdgeKit.Bundle(path: recording.path)
      let replay = Replay(recording)
      let executor: SegmentExecutor = each.format == "mlx" ? .functions(replay) : .packages(replay)
      for plan in each.plans {
        let limits = WeightLimits(weightBytes: plan.weights, residentBytes: plan.resident)
        do throws(EdgeKitError) {
          let found = try Segments(bundle, executor, nil) { _ in limits }.residency
          XCTAssertEqual(found.pinned, plan.pinned, "\(each.recording) \(limits)")
          XCTAssertEqual(found.ahead, plan.ahead, "\(each.recording) \(limits)")
          XCTAssertEqual(found.streamed, plan.streamed, "\(each.recording) \(limits)")
        } catch {
          guard case .budgetExceeded(_, let sufficient) = error else { return XCTFail("\(error)") }
          XCTAssertEqual(sufficient, plan.needed, "\(each.recording) \(limits)")
          budgets += 1
        }
      }
    }
    XCTAssertGreaterThan(budgets, 0)
  }

  func testABudgetForTheProcessHoldsWhatItMustOrSaysWhatIsEnough() throws {
    for each in try recorded() {
      let recording = try Recording(each.recording)
      let bundle = try EdgeKit.Bundle(path: recording.path)
      let replay = Replay(recording)
      let executor: SegmentExecutor = each.format == "mlx" ? .functions(replay) : .packages(replay)
      var options = SessionOptions(memoryBytes: 1, positions: 40, canvas: 16)
      do throws(EdgeKitError) {
        _ = try Segments(bundle, executor, options, nil)
        XCTFail("no error")
      } catch {
        guard case .budgetExceeded(let text, let sufficient) = error else { return XCTFail("\(error)") }
        XCTAssertTrue(text.contains("a memory budget of 1 MB is too small") && text.contains("activations"), text)
        // The process has grown a little since.
        options.memoryBytes = sufficient + 16 << 20
      }
      let small = try Segments(bundle, executor, options, nil).residency
      options.memoryBytes = 1 << 40
      let large = try Segments(bundle, executor, options, nil).residency
      XCTAssertEqual(large.streamed, 0)
      XCTAssertLessThanOrEqual(small.pinned, large.pinned)
      options.memoryBytes = nil
      options.residentBytes = 0
      let streamed = try Segments(bundle, executor, options, nil).residency
      XCTAssertEqual(streamed.pinned, 0)
      XCTAssertEqual(streamed.streamed, large.pinned)
    }
  }
}
