import XCTest

@testable import EdgeKit

/// The part of a report that these tests look at.
private struct Report: Decodable {
  struct Sequence: Decodable {
    var forwards: Int
    var committed_tokens: Int
    var done: Bool
  }

  struct Meter: Decodable {
    var meter: String
    var joules: Double?
  }

  struct Test: Decodable {
    var label: [String: JSONValue]
    var prompt_tokens: Int
    var denoise_passes: Int
    var sequences: [Sequence]
    var energy: [Meter]
  }

  var edgekit_bench: Int
  var about: [String: JSONValue]
  var tests: [Test]

  init(_ data: Data) throws { self = try JSONDecoder().decode(Report.self, from: data) }
}

final class BenchmarkTests: XCTestCase {
  private func recorded() throws -> [RecordedGeneration] { try Fixtures().decode("generations.json") }

  func testAReportCountsWhatTheGenerationCounted() async throws {
    for expected in try recorded() {
      let data = try await Benchmark.run(
        bundle: expected.bundle, prompt: expected.prompt, settings: expected.settings, repetitions: 2, probe: false)
      let report = try Report(data)
      XCTAssertEqual(report.edgekit_bench, 1)
      XCTAssertEqual(report.tests.map { $0.label["run"] }, [0, 1])
      for test in report.tests {
        XCTAssertEqual(test.prompt_tokens, expected.prompt.count)
        XCTAssertEqual(test.sequences.count, 1)
        XCTAssertTrue(test.sequences[0].done)
        XCTAssertEqual(.integer(Int64(test.sequences[0].forwards)), expected.statistics["forwards"])
        XCTAssertEqual(.integer(Int64(test.sequences[0].committed_tokens)), expected.statistics["committed_tokens"])
      }
    }
  }

  func testFewForwardsEndARunWhichCounts() async throws {
    let expected = try XCTUnwrap(try recorded().first { $0.events.count > 4 })
    let data = try await Benchmark.run(
      bundle: expected.bundle, prompt: expected.prompt, settings: expected.settings, repetitions: 1, warmups: 0,
      forwards: 2, probe: false)
    let report = try Report(data)
    XCTAssertEqual(report.tests.map(\.denoise_passes), [2])
    XCTAssertFalse(report.tests[0].sequences[0].done)
  }

  func testASessionHasOneBenchmarkAtATime() async throws {
    let expected = try XCTUnwrap(try recorded().first)
    let session = try await Session(path: expected.bundle)
    var first: Benchmark? = try await Benchmark(session, options: BenchmarkOptions(joules: { 1 }))
    do {
      _ = try await Benchmark(session)
      XCTFail("no error")
    } catch let error as EdgeKitError {
      guard case .invalidState = error else { return XCTFail("\(error)") }
    }
    try await first?.test(expected.prompt, settings: expected.settings)
    let data = try await first?.report()
    let report = try Report(try XCTUnwrap(data))
    XCTAssertEqual(report.tests[0].energy.map(\.meter), ["own"])
    XCTAssertEqual(report.tests[0].energy.map(\.joules), [0])
    first = nil
    _ = try await Benchmark(session)
  }
}
