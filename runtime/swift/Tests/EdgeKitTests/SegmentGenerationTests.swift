import Foundation
import XCTest

@testable import EdgeKit

/// Whole generations over packages and functions, answered from recordings of Python's: event for event the same.
final class SegmentGenerationTests: XCTestCase {
  /// Over the functions of a bundle in segments, answered from a recording of Python's generation.
  private func segmentGenerations() throws -> [(name: String, expected: RecordedGeneration)] {
    let found = try Fixtures().decode("segment_generations.json", as: [String: RecordedGeneration].self)
    XCTAssertGreaterThanOrEqual(found.count, 2)
    return found.sorted { $0.key < $1.key }.map { ($0.key, $0.value) }
  }

  private func open(
    _ expected: RecordedGeneration, _ replay: Replay, _ options: SessionOptions = SessionOptions(),
    _ pressure: ManualMemoryPressure? = nil
  ) async throws -> Session {
    let bundle = try EdgeKit.Bundle(path: expected.bundle)
    return try await Session(bundle: bundle) {
      guard case .mlx = bundle.manifest.programs else {
        return try Segments(bundle: bundle, executor: replay, options: options, memoryPressure: pressure)
      }
      return try Segments(bundle: bundle, runner: replay, options: options, memoryPressure: pressure)
    }
  }

  func testGenerationsOverSegmentsAreThoseOfPython() async throws {
    for (name, expected) in try segmentGenerations() {
      for resident in [nil, UInt64(0)] {
        let replay = Replay(try Recording(name))
        let session = try await open(expected, replay, SessionOptions(residentBytes: resident))
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, name)
        XCTAssertEqual(replay.unused, [], name)
        let statistics = try await session.statistics()
        XCTAssertEqual(statistics.pinnedBytes == 0, resident == 0)
        XCTAssertEqual(statistics.streamedBytesPerStep == 0, resident == nil)
        XCTAssertEqual(statistics.bytesRead == 0, resident == nil)
        XCTAssertGreaterThan(statistics.passSeconds, 0)
      }
    }
  }

  /// In the middle of passes, all over a generation; the tokens stay.
  func testMemoryPressureAtAnyCallLeavesTheTokens() async throws {
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let total = recording.calls.count
      for (number, place) in stride(from: 1, to: total, by: max(1, total / 5)).enumerated() {
        let levels = number % 2 == 0 ? [MemoryPressure.critical] : [.warning, .warning]
        let (replay, pressure) = (Replay(recording), ManualMemoryPressure())
        let session = try await open(expected, replay, SessionOptions(), pressure)
        let all = try await session.statistics().pinnedBytes
        replay.beforeCall(place) {
          // From another thread.
          let sent = DispatchSemaphore(value: 0)
          Thread.detachNewThread {
            for level in levels { pressure.send(level) }
            sent.signal()
          }
          sent.wait()
        }
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, "\(name) \(place)")
        XCTAssertEqual(replay.unused, [], name)
        let after = try await session.statistics()
        XCTAssertLessThanOrEqual(after.pinnedBytes, levels.count == 1 ? 0 : all / 4)
        XCTAssertTrue(after.streamedBytesPerStep > 0 || levels.count > 1)
        if number > 0 { continue }
        // The session goes on with what is left.
        replay.restart()
        let again = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(again.compactMap(RecordedEvent.init), expected.events, name)
      }
    }
  }

  func testWhatAnExecutorThrowsEndsTheStream() async throws {
    struct Plain: Error, CustomStringConvertible { let description = "the fan is on fire" }
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let gone = EdgeKitError.readFailed("layers.1: the disk is gone")
      let cases: [(any Error & Sendable, EdgeKitError)] = [
        (gone, gone), (Plain(), .engineFailed("the fan is on fire")),
      ]
      for (thrown, found) in cases {
        let replay = Replay(recording)
        let session = try await open(expected, replay, SessionOptions(residentBytes: 0))
        replay.beforeCall(recording.calls.count / 2) { throw thrown }
        do {
          _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          XCTAssertEqual(error, found)
        }
        do {
          _ = try await collect(session.generate([1 << 40]))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          guard case .invalidArgument = error else { return XCTFail("an earlier failure: \(error)") }
        }
        replay.restart()
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, name)
      }
    }
  }

  func testScoresThatAreNotFiniteAreAnError() async throws {
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let replay = Replay(recording)
      let session = try await open(expected, replay)
      let tile = try XCTUnwrap(recording.calls.firstIndex { $0.isHead })
      replay.change(tile + 1, 0) { Tensor($0.shape, [Float](repeating: .nan, count: $0.count)) }
      do {
        _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTFail("no error")
      } catch let error as EdgeKitError {
        guard case .notFinite = error else { return XCTFail("\(name): \(error)") }
      }
    }
  }

  func testCancellingStopsAtAStepBoundary() async throws {
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let replay = Replay(recording)
      let session = try await open(expected, replay, SessionOptions(residentBytes: 0))
      // A call in the middle of a later pass waits until the stream was left.
      let (reached, left) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      let place = try XCTUnwrap(
        (recording.calls.count / 2..<recording.calls.count).first { !recording.begins($0) })
      replay.beforeCall(place + 1) {
        reached.signal()
        left.wait()
      }
      let task = Task {
        var seen: [Event] = []
        for try await event in session.generate(expected.prompt, settings: expected.settings) { seen.append(event) }
        return seen
      }
      await withCheckedContinuation { (continuation: CheckedContinuation<Void, Never>) in
        Thread.detachNewThread {
          reached.wait()
          continuation.resume()
        }
      }
      task.cancel()
      let seen = try await task.value
      left.signal()
      XCTAssertEqual(seen.compactMap(RecordedEvent.init), Array(expected.events.prefix(seen.count)), name)
      // The pass that ran came to its end, and no other began.
      _ = try await session.info()
      XCTAssertGreaterThan(replay.count, place)
      XCTAssertLessThan(replay.count, recording.calls.count, "\(name) went on")
      XCTAssertTrue(recording.begins(replay.count), "\(name) stopped in the middle of a pass")
      XCTAssertEqual(replay.openNow, 0, "what was opened ahead is closed")
      replay.restart()
      let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
      XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, name)
    }
  }

  /// Of a session whose weights stay, that is when it is opened; of one that reads them in every step, in a pass.
  func testDamagedRunsEndPasses() async throws {
    struct Damaged: Decodable {
      var bundle: String
      var file: String
      var run: String
    }
    let all = try Fixtures().decode("damaged.json", as: [String: Damaged].self)
    for (name, damaged) in all {
      let bundle = try EdgeKit.Bundle(path: damaged.bundle)
      let generation = "\(name)-generation"
      let expected = try XCTUnwrap(try segmentGenerations().first { $0.name == generation }?.expected)
      for options in [SessionOptions(), SessionOptions(residentBytes: 0)] {
        let replay = Replay(try Recording(generation))
        do {
          let session = try await Session(bundle: bundle) {
            try Segments(bundle: bundle, runner: replay, options: options)
          }
          XCTAssertNotNil(options.residentBytes, "it was opened with damaged weights")
          _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          guard case .checksumMismatch(let text) = error else { return XCTFail("\(error)") }
          XCTAssertTrue(text.contains(damaged.file) && text.contains(damaged.run), text)
        }
      }
    }
  }

  func testSegmentsThatCannotBeOpenedAreTheErrorOfOpening() async throws {
    let expected = try XCTUnwrap(try Fixtures().decode("generations.json", as: [RecordedGeneration].self).first)
    let bundle = try EdgeKit.Bundle(path: expected.bundle)
    do {
      _ = try await Session(bundle: bundle) {
        try Segments(bundle: bundle, executor: NoExecutor())
      }
      XCTFail("no error")
    } catch let error as EdgeKitError {
      guard case .unsupportedBundle(let text) = error else { return XCTFail("\(error)") }
      XCTAssertTrue(text.contains("native"), text)
    }
  }
}

private struct NoExecutor: PackageExecutor {
  func open(_ url: URL, functions: [String]) throws(EdgeKitError) -> any OpenPackage { throw .engineFailed("not called") }
}
