import CEdgeKit
import XCTest

@testable import EdgeKit

/// What engines state about their memory, and what the core plans with it.
final class MemoryTests: XCTestCase {
  private struct Recorded: Decodable {
    var recording: String
    var rows: Int
    var kept: Int
    var head_rows: Int
    var activations: UInt64
    var scratch: UInt64
    var head: UInt64
    var allowance: UInt64
  }

  private func bundles() throws -> [(EdgeKit.Bundle, SegmentExecutor)] {
    try Fixtures().decode("segments.json", as: [String: String].self).map { name, format in
      let recording = try Recording(name)
      let replay = Replay(recording)
      let executor: SegmentExecutor = format == "mlx" ? .functions(replay) : .packages(replay)
      return (try EdgeKit.Bundle(path: recording.path), executor)
    }
  }

  func testEnginesStateWhatThoseOfPythonDo() throws {
    for each in try Fixtures().decode("memory.json", as: [Recorded].self) {
      let bundle = try EdgeKit.Bundle(path: try Recording(each.recording).path)
      let replay = Replay(try Recording(each.recording))
      let engine = try SegmentExecutor.engine(bundle, replay)
      let found = engine.bytes(rows: each.rows, kept: each.kept, headRows: each.head_rows)
      XCTAssertEqual(found.activations, each.activations, each.recording)
      XCTAssertEqual(found.head, each.head, each.recording)
      XCTAssertEqual(found.allowance, each.allowance, each.recording)
      // Python sees runs with their padding, here there are the tensors alone.
      XCTAssertLessThanOrEqual(found.scratch, each.scratch, each.recording)
      XCTAssertGreaterThanOrEqual(found.scratch + 2 * (64 << 10), each.scratch, each.recording)
    }
  }

  func testAPlanHoldsWhatTheEngineStates() throws {
    for (bundle, executor) in try bundles() {
      guard case .functions(let runner) = executor else { continue }
      let engine = try SegmentExecutor.engine(bundle, runner)
      let table = EngineTable(engine)
      var options = ek_session_options(
        struct_size: UInt32(MemoryLayout<ek_session_options>.size), threads: 0, memory_bytes: 1 << 40,
        resident_bytes: .max, positions: 32, canvas: 16, sequences: 1, segments: 0, cached: 0,
        adapter: 0)
      var native = table.native
      var plan: OpaquePointer?
      try CoreCall.check(table) { ek_plan_session(bundle.path, &options, &native, 0, &plan) }
      defer { ek_plan_close(plan) }
      var found = ek_memory_plan()
      found.struct_size = UInt32(MemoryLayout<ek_memory_plan>.size)
      try EdgeKitError.check(ek_plan_get_memory(plan, &found))
      let own = engine.bytes(rows: 16, kept: bundle.manifest.model.causalPrefix ? 32 : 0, headRows: 16)
      XCTAssertGreaterThanOrEqual(found.activations, own.activations)
      XCTAssertGreaterThanOrEqual(found.head, own.head)
      XCTAssertEqual([found.scratch, found.allowance], [own.scratch, own.allowance])
      XCTAssertEqual(found.pinned, found.weights)
    }
  }

  func testABudgetForTheProcessHoldsWhatItMustOrSaysWhatIsEnough() throws {
    for (bundle, executor) in try bundles() {
      var options = SessionOptions(memoryBytes: 1, positions: 32, canvas: 16)
      func opened() throws(EdgeKitError) -> SessionStatistics {
        try Denoiser(bundle, executor, options, nil).statistics()
      }
      do throws(EdgeKitError) {
        _ = try opened()
        XCTFail("no error")
      } catch {
        guard case .budgetExceeded(let text, let sufficient) = error else { return XCTFail("\(error)") }
        XCTAssertTrue(text.contains("a memory budget of 1 B is too small") && text.contains("activations"), text)
        // The process has grown a little since.
        options.memoryBytes = sufficient + 16 << 20
      }
      let small = try opened()
      options.memoryBytes = 1 << 40
      let large = try opened()
      XCTAssertEqual(large.streamedBytesPerStep, 0)
      XCTAssertLessThanOrEqual(small.pinnedBytes, large.pinnedBytes)
      options.memoryBytes = nil
      options.residentBytes = 0
      let streamed = try opened()
      XCTAssertEqual(streamed.pinnedBytes, 0)
      XCTAssertGreaterThan(streamed.streamedBytesPerStep, 0)
    }
  }
}
