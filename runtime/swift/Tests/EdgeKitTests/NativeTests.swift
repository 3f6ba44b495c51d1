import CEdgeKit
import XCTest

@testable import EdgeKit

/// Generations of real bundles: event for event what `ek_generate` says to Python.
final class NativeTests: XCTestCase {
  private func recorded() throws -> [RecordedGeneration] { try Fixtures().decode("generations.json") }

  func testGenerationsAreThoseOfTheCABI() async throws {
    for expected in try recorded() {
      let session = try await Session(path: expected.bundle)
      for _ in 0..<2 {
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, expected.bundle)
        guard case .done(let statistics) = events.last else { return XCTFail("the last event is not done") }
        XCTAssertEqual(statistics.plain, expected.statistics)
        try checkTextAndRate(events, statistics, session)
      }
      await session.close()
    }
  }

  /// Text is that of the tokens, and what a screen shows ends as both; seconds only grow.
  private func checkTextAndRate(_ events: [Event], _ statistics: GenerationStatistics, _ session: Session) throws {
    let tokenizer = try session.tokenizer()
    var (text, tokens, seconds, canvas) = ("", [Int](), 0.0, CanvasText(tokenizer))
    for event in events {
      try canvas.fold(event)
      switch event {
      case .text(let part): text += part
      case .committed(let part):
        tokens += part.tokens
        XCTAssertGreaterThan(part.statistics.seconds, seconds)
        seconds = part.statistics.seconds
      case .draft, .done: break
      }
    }
    XCTAssertEqual(text, try tokenizer.decode(tokens))
    XCTAssertEqual(canvas.answer, tokens)
    XCTAssertEqual(try canvas.text(), text)
    XCTAssertEqual(canvas.statistics, statistics)
    XCTAssertGreaterThanOrEqual(statistics.seconds, seconds)
    XCTAssertEqual(statistics.tokensPerSecond * statistics.seconds, Double(statistics.committedTokens), accuracy: 1e-6)
  }

  func testTheCanvasOfAScreen() throws {
    func draft(_ step: Int, _ tokens: [Int], _ accepted: [Bool], start: Int = 0) -> Event {
      .draft(Draft(canvasIndex: 0, step: step, start: start, tokens: tokens, accepted: accepted))
    }
    let recorded: [RecordedCanvases] = try Fixtures().decode("canvases.json")
    for each in recorded {
      let tokenizer = try Tokenizer(bundle: each.bundle)
      var text = CanvasText(tokenizer)
      try text.fold(draft(1, [9, 5, 9], [false, true, false]))
      let guess = tokenizer.mask == nil ? CanvasText.State.draft : .kept
      XCTAssertEqual(text.cells.map(\.state), [guess, .accepted, guess])
      try text.fold(draft(2, [4, 5, tokenizer.mask ?? 9], [true, false, false]))
      XCTAssertEqual(text.cells.map(\.state), [.accepted, guess, tokenizer.mask == nil ? .draft : .open])
      XCTAssertEqual(text.step, 2)
      try text.fold(.committed(Committed(canvasIndex: 0, start: 0, tokens: [4, 6])))
      XCTAssertEqual(text.answer, [4, 6])
      XCTAssertEqual(text.cells.count, tokenizer.mask == nil ? 2 : 3)
      try text.fold(draft(1, [7, 8], [true, false], start: 2))
      XCTAssertEqual(text.cells.map(\.token), [4, 6, 7, 8])
      XCTAssertEqual(text.cells.map(\.id), [0, 1, 2, 3])
      XCTAssertEqual(text.cells.map(\.state), [.committed, .committed, .accepted, guess])
      let before = text
      XCTAssertThrowsError(try text.fold(draft(2, [7], [])))
      XCTAssertEqual(text, before)
      try text.fold(.committed(Committed(canvasIndex: 1, start: 2, tokens: [7, 1])))
      try text.fold(.done(GenerationStatistics()))
      XCTAssertEqual(text.answer, [4, 6, 7, 1])
      XCTAssertEqual(text.statistics, GenerationStatistics())
      XCTAssertNotEqual(text, before)
    }
  }

  /// Against the plain loops of tests/support/canvas_text.py.
  func testCanvasesAreDrawnAsRecorded() throws {
    let recorded: [RecordedCanvases] = try Fixtures().decode("canvases.json")
    for each in recorded {
      let tokenizer = try Tokenizer(bundle: each.bundle)
      XCTAssertEqual(try tokenizer.count(), each.count)
      XCTAssertEqual(try tokenizer.encodeBehind(each.text), each.behind)
      XCTAssertGreaterThan(each.answers.count, 50)
      for (index, answer) in each.answers.enumerated() {
        var canvas = CanvasText(tokenizer)
        for drawn in answer {
          try canvas.fold(drawn.event.event)
          XCTAssertEqual(canvas.cells.map(\.token), drawn.tokens, "\(index)")
          XCTAssertEqual(canvas.cells.map(\.id), Array(drawn.tokens.indices), "\(index)")
          XCTAssertEqual(canvas.cells.map(\.state.rawValue), drawn.states, "\(index)")
          let parts = try canvas.parts()
          XCTAssertEqual(parts.map(\.text), drawn.partTexts, "\(index)")
          XCTAssertEqual(parts.map(\.state.rawValue), drawn.partStates, "\(index)")
        }
      }
    }
  }

  func testTheSameTokensComeOutOfStreamedWeights() async throws {
    for expected in try recorded() {
      let session = try await Session(
        path: expected.bundle, options: SessionOptions(threads: 1, residentBytes: 0), memoryPressure: nil)
      let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
      XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, expected.bundle)
      let statistics = try await session.statistics()
      XCTAssertEqual(statistics.pinnedBytes, 0)
      XCTAssertGreaterThan(statistics.bytesRead, 0)
    }
  }

  func testMemoryPressureInTheMiddleOfAGenerationLeavesTheTokens() throws {
    for expected in try recorded() {
      let pressure = ManualMemoryPressure()
      let model = try Segments(bundle: try EdgeKit.Bundle(path: expected.bundle), memoryPressure: pressure).denoiser
      let all = try model.statistics().pinnedBytes
      XCTAssertGreaterThan(all, 0)
      for (level, most) in [(MemoryPressure.normal, all), (.warning, all / 2), (.critical, 0)] {
        var events: [Event] = []
        try model.generate(prompt: expected.prompt, settings: expected.settings) { event in
          events.append(event)
          if events.count == 2 { pressure.send(level) }
          return true
        }
        XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, expected.bundle)
        let statistics = try model.statistics()
        XCTAssertLessThanOrEqual(statistics.pinnedBytes, most)
        XCTAssertEqual(statistics.bytesRead > 0, level > .normal)
        XCTAssertEqual(statistics.ringBytes > 0, level > .normal)
      }
    }
  }

  func testMemoryPressureWhereNothingRunsIsFollowedAtOnce() async throws {
    for expected in try recorded() {
      let pressure = ManualMemoryPressure()
      let session = try await Session(path: expected.bundle, memoryPressure: pressure)
      pressure.send(.critical)
      let held = try await session.statistics().pinnedBytes
      XCTAssertEqual(held, 0)
      let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
      XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, expected.bundle)
      await session.close()
      pressure.send(.critical)
    }
  }

  func testAPrefixIsContinuedBehindMemoryPressure() async throws {
    var continued = 0
    for expected in try recorded() {
      let pressure = ManualMemoryPressure()
      let sessions = [
        try await Session(path: expected.bundle, memoryPressure: nil),
        try await Session(path: expected.bundle, memoryPressure: pressure),
      ]
      guard try await sessions[0].info().causalPrefix else { continue }
      var settings = expected.settings
      settings.options["continue_prefix"] = true
      var answers: [[Event]] = []
      for session in sessions {
        _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
        pressure.send(.critical)
        answers.append(try await collect(session.generate([4, 9], settings: settings)))
      }
      XCTAssertEqual(answers[0].compactMap(RecordedEvent.init), answers[1].compactMap(RecordedEvent.init))
      let length = try await sessions[1].info().prefixLength
      XCTAssertGreaterThan(length, expected.prompt.count)
      continued += 1
    }
    XCTAssertGreaterThan(continued, 0)
  }

  func testAStopIsAtAStepBoundary() async throws {
    let expected = try XCTUnwrap(try recorded().first { $0.events.count > 4 })
    let session = try await Session(path: expected.bundle)
    var seen: [Event] = []
    for try await event in session.generate(expected.prompt, settings: expected.settings) {
      seen.append(event)
      if seen.count == 2 { break }
    }
    XCTAssertEqual(seen.compactMap(RecordedEvent.init), Array(expected.events.prefix(2)))
    let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
    XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events)
  }

  func testErrorsOfTheLibraryHaveTheirOwnCases() async throws {
    let expected = try XCTUnwrap(try recorded().first)
    do {
      _ = try await Session(path: expected.bundle, options: SessionOptions(memoryBytes: 1000))
      XCTFail("no error")
    } catch let error as EdgeKitError {
      guard case .budgetExceeded(let text, let bytes) = error else { return XCTFail("\(error)") }
      XCTAssertGreaterThan(bytes, 1000)
      XCTAssertTrue(text.contains("memory budget"), text)
      _ = try await Session(path: expected.bundle, options: SessionOptions(memoryBytes: bytes + (64 << 20)))
    }
    let session = try await Session(path: expected.bundle)
    for (prompt, settings, words) in [
      ([1 << 40], GenerationSettings(), "vocabulary"),
      ([5], GenerationSettings(options: ["no_such_option": 1]), "no_such_option"),
      ([5], GenerationSettings(options: ["temperature": .number(.nan)]), "JSON"),
      ([5], GenerationSettings(maxNewTokens: -4), "max_new_tokens"),
    ] {
      do {
        _ = try await collect(session.generate(prompt, settings: settings))
        XCTFail("no error for \(words)")
      } catch let error as EdgeKitError {
        guard case .invalidArgument(let text) = error else { return XCTFail("\(error)") }
        XCTAssertTrue(text.contains(words), text)
      }
    }
  }

  func testFormatsThatThisBuildDoesNotExecuteAreRefused() async throws {
    let names: [String: String] = try Fixtures().decode("bundles.json")
    XCTAssertTrue(SegmentExecutor.formats.contains("native"))
    var refused = 0
    for (format, path) in names where !SegmentExecutor.formats.contains(format) {
      do {
        _ = try await Session(path: path)
        XCTFail("no error for \(format)")
      } catch let error as EdgeKitError {
        guard case .unsupportedBundle(let text) = error else { return XCTFail("\(error)") }
        XCTAssertTrue(text.contains(SegmentExecutor.missing(format)) && text.contains("native"), text)
        XCTAssertFalse(text.contains("\n"))
        refused += 1
      }
    }
    XCTAssertGreaterThan(refused, 0)
  }

  /// Single passes, also behind one of another length that a generation has made.
  func testPassesGiveAsManyRowsAsWereAskedFor() throws {
    var withRoles = 0
    for expected in try recorded() {
      let model = try Segments(bundle: try EdgeKit.Bundle(path: expected.bundle)).denoiser
      XCTAssertThrowsError(try model.project(HeadRequest())) { error in
        guard case EdgeKitError.invalidState = error else { return XCTFail("\(error)") }
      }
      var request = HeadRequest()
      (request.topK, request.logits, request.temperature) = (4, true, 0.5)
      request.gumbel = HeadRequest.Gumbel(seed: 3, draw: 1)
      request.roles = try model.info().roleHead
      let found = try model.denoise(expected.prompt, request, soft: nil)
      XCTAssertEqual(found.argmax, try model.project(request).argmax)
      XCTAssertEqual(found.topIds?.map { $0[0] }, found.argmax)
      XCTAssertEqual(found.logits?.shape, [expected.prompt.count, model.vocabulary])
      XCTAssertEqual(found.sample?.count, expected.prompt.count)
      XCTAssertNil(found.soft)
      XCTAssertEqual(found.roles?.shape, request.roles ? [expected.prompt.count, 5] : nil)
      withRoles += request.roles ? 1 : 0
      try model.generate(prompt: expected.prompt, settings: expected.settings) { _ in true }
      XCTAssertEqual(try model.project(request).argmax.count, expected.prompt.count)
      request.rows = []
      XCTAssertEqual(try model.project(request).argmax, [])
      request.rows = [1 << 20]
      XCTAssertThrowsError(try model.project(request))
    }
    XCTAssertEqual(withRoles, 1)
  }

  func testEveryStatusHasAMessage() {
    for status in 1...19 {
      XCTAssertFalse(EdgeKitError(status: ek_status(status)).message.isEmpty)
    }
  }
}
