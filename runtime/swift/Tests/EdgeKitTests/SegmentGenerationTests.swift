import CEdgeKit
import Foundation
import Synchronization
import XCTest

@testable import EdgeKit

/// Whole generations over denoisers: event for event those of `ek_generate`.
final class SegmentGenerationTests: XCTestCase {
  private func recorded() throws -> [RecordedGeneration] { try Fixtures().decode("generations.json") }

  private func open(_ expected: RecordedGeneration, _ hooks: Hooks = Hooks()) async throws -> Session {
    let bundle = try EdgeKit.Bundle(path: expected.bundle)
    return try await Session(bundle: bundle, memoryPressure: nil) { () throws(EdgeKitError) in
      try SegmentEngine(bundle.manifest, try NativeDenoiser(bundle, hooks))
    }
  }

  func testGenerationsAreThoseOfTheCABI() async throws {
    var families: Set<Bool> = []
    for expected in try recorded() {
      let hooks = Hooks()
      let session = try await open(expected, hooks)
      families.insert(try await session.info().causalPrefix)
      for round in 1...2 {
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.map(RecordedEvent.init), expected.events, expected.bundle)
        guard case .done(let statistics) = events.last else { return XCTFail("the last event is not done") }
        XCTAssertEqual(statistics.plain, expected.statistics)
        XCTAssertEqual(hooks.idles, round)
      }
      let seconds = try await session.statistics().passSeconds
      XCTAssertGreaterThan(seconds, 0)
    }
    XCTAssertEqual(families, [false, true])
  }

  func testAPrefixIsContinued() async throws {
    for expected in try recorded() where try EdgeKit.Bundle(path: expected.bundle).manifest.model.causalPrefix {
      let sessions = [try await Session(path: expected.bundle), try await open(expected)]
      var settings = expected.settings
      settings.options["continue_prefix"] = true
      var lengths: [Int] = []
      var answers: [[Event]] = []
      for session in sessions {
        _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
        answers.append(try await collect(session.generate([4, 9], settings: settings)))
        lengths.append(try await session.info().prefixLength)
      }
      XCTAssertEqual(answers[0], answers[1])
      XCTAssertEqual(lengths[0], lengths[1])
      XCTAssertGreaterThan(lengths[0], expected.prompt.count)
      // The prefix counts among the positions that the model was made for.
      let info = try await sessions[0].info()
      let (most, canvas) = (try XCTUnwrap(info.maxPositions), try XCTUnwrap(info.canvasLength))
      settings.maxNewTokens = (most - 1) / canvas * canvas
      for session in sessions {
        do {
          _ = try await collect(session.generate([4], settings: settings))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          guard case .invalidArgument(let text) = error else { return XCTFail("\(error)") }
          XCTAssertTrue(text.contains("positions"), text)
        }
      }
    }
  }

  /// With what was committed until then, encoded and not, as that of `ek_generate`.
  func testAConversationGoesOnWhereAGenerationWasStopped() throws {
    for expected in try recorded() {
      let bundle = try EdgeKit.Bundle(path: expected.bundle)
      guard bundle.manifest.model.causalPrefix else { continue }
      var settings = expected.settings
      settings.options["continue_prefix"] = true
      for stop in 1...expected.events.count {
        let engines: [any Engine] = [
          try NativeEngine(path: expected.bundle, options: SessionOptions()),
          try SegmentEngine(bundle.manifest, try NativeDenoiser(bundle, Hooks())),
        ]
        var seen: [[Event]] = []
        for engine in engines {
          var events: [Event] = []
          try engine.generate(prompt: expected.prompt, settings: expected.settings) {
            events.append($0)
            return events.count < stop
          }
          XCTAssertEqual(events.map(RecordedEvent.init), Array(expected.events.prefix(stop)))
          let length = try engine.info().prefixLength
          try engine.generate(prompt: [4, 9], settings: settings) {
            events.append($0)
            return true
          }
          XCTAssertGreaterThan(try engine.info().prefixLength, length)
          seen.append(events)
        }
        XCTAssertEqual(seen[0], seen[1], "after \(stop) events")
      }
    }
  }

  /// Text that is encoded in vain is lost with the prefix, and nothing of it goes before the next prompt.
  func testAPrefixThatIsLostTakesWhatIsUncachedWithIt() throws {
    for expected in try recorded() {
      let bundle = try EdgeKit.Bundle(path: expected.bundle)
      guard bundle.manifest.model.causalPrefix else { continue }
      let hooks = Hooks()
      let denoiser = try NativeDenoiser(bundle, hooks)
      let engine = try SegmentEngine(bundle.manifest, denoiser)
      var settings = expected.settings
      try engine.generate(prompt: expected.prompt, settings: settings) { _ in true }
      XCTAssertFalse(denoiser.uncached.isEmpty)
      XCTAssertEqual(denoiser.encoded.first, expected.prompt)
      XCTAssertEqual(denoiser.encoded.joined().count, denoiser.prefixLength)
      hooks.beforePass(hooks.passes + 1) { throw EdgeKitError.readFailed("gone") }
      settings.options["continue_prefix"] = true
      XCTAssertThrowsError(try engine.generate(prompt: [4, 9], settings: settings) { _ in true })
      XCTAssertEqual([denoiser.prefixLength, denoiser.encoded.count, denoiser.uncached.count], [0, 0, 0])
      var events: [Event] = []
      try engine.generate(prompt: expected.prompt, settings: settings) {
        events.append($0)
        return true
      }
      XCTAssertEqual(events.map(RecordedEvent.init), expected.events)
    }
  }

  func testWhatADenoiserThrowsEndsTheStream() async throws {
    struct Plain: Error, CustomStringConvertible { let description = "the fan is on fire" }
    for expected in try recorded() {
      let gone = EdgeKitError.readFailed("layers.1: the disk is gone")
      let cases: [(any Error & Sendable, EdgeKitError)] = [
        (gone, gone), (Plain(), .engineFailed("the fan is on fire")),
      ]
      for (thrown, found) in cases {
        let hooks = Hooks()
        let session = try await open(expected, hooks)
        hooks.beforePass(2) { throw thrown }
        do {
          _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          XCTAssertEqual(error, found)
        }
        // The session goes on.
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.map(RecordedEvent.init), expected.events, expected.bundle)
      }
    }
  }

  func testErrorsOfTheLoopsHaveTheirOwnCases() async throws {
    let expected = try XCTUnwrap(try recorded().first)
    let hooks = Hooks()
    let session = try await open(expected, hooks)
    // A failure of an earlier generation is not this one's.
    hooks.beforePass(1) { throw EdgeKitError.readFailed("gone") }
    _ = try? await collect(session.generate(expected.prompt, settings: expected.settings))
    for (prompt, options, words) in [
      ([1 << 40], [:] as [String: JSONValue], "vocabulary"), ([5], ["no_such_option": 1], "no_such_option"),
      ([5], ["temperature": .number(.nan)], "JSON"),
    ] {
      do {
        _ = try await collect(session.generate(prompt, settings: GenerationSettings(options: options)))
        XCTFail("no error for \(words)")
      } catch let error as EdgeKitError {
        guard case .invalidArgument(let text) = error else { return XCTFail("\(error)") }
        XCTAssertTrue(text.contains(words), text)
      }
    }
  }

  func testOutputsOfAnotherSizeAndScoresThatAreNotFiniteAreErrors() async throws {
    let expected = try XCTUnwrap(try recorded().first)
    let changes: [(@Sendable (inout HeadOutput) -> Void, @Sendable (EdgeKitError) -> Bool)] = [
      (
        { $0.entropy.removeLast() },
        { if case .engineFailed(let text) = $0 { text.contains("entropy") } else { false } }
      ),
      (
        { $0.sample = nil },
        { if case .engineFailed(let text) = $0 { text.contains("0 values as sample") } else { false } }
      ),
      (
        { $0.soft = $0.soft.map { Tensor([1], [$0.floats[0]]) } },
        { if case .engineFailed(let text) = $0 { text.contains("1 values as soft") } else { false } }
      ),
      ({ $0.entropy[0] = .nan }, { if case .engineFailed(let text) = $0 { text.contains("NaN") } else { false } }),
      ({ $0.argmax[0] = -1 }, { if case .engineFailed(let text) = $0 { text.contains("token -1") } else { false } }),
      ({ $0.logZ[0] = .infinity }, { if case .notFinite = $0 { true } else { false } }),
    ]
    for (change, isExpected) in changes {
      let hooks = Hooks()
      let session = try await open(expected, hooks)
      hooks.change(change)
      do {
        _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTFail("no error")
      } catch let error as EdgeKitError {
        XCTAssertTrue(isExpected(error), "\(error)")
      }
    }
  }

  func testCancellingStopsAtAStepBoundary() async throws {
    for expected in try recorded() {
      let hooks = Hooks()
      let session = try await open(expected, hooks)
      _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
      let whole = hooks.passes
      // One of the last passes waits until the stream was left.
      let left = DispatchSemaphore(value: 0)
      hooks.beforePass(2 * whole - 2) { left.wait() }
      var seen: [Event] = []
      for try await event in session.generate(expected.prompt, settings: expected.settings) {
        seen.append(event)
        break
      }
      left.signal()
      XCTAssertEqual(seen.map(RecordedEvent.init), Array(expected.events.prefix(1)))
      _ = try await session.info()
      XCTAssertLessThan(hooks.passes, 2 * whole, "it went on")
      XCTAssertEqual(hooks.idles, 2)
      let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
      XCTAssertEqual(events.map(RecordedEvent.init), expected.events)
    }
  }

  /// Over the functions of a bundle in segments, answered from a recording of Python's generation.
  private func segmentGenerations() throws -> [(name: String, expected: RecordedGeneration)] {
    let found = try Fixtures().decode("segment_generations.json", as: [String: RecordedGeneration].self)
    XCTAssertGreaterThanOrEqual(found.count, 2)
    return found.sorted { $0.key < $1.key }.map { ($0.key, $0.value) }
  }

  private func open(
    _ expected: RecordedGeneration, _ replay: Replay, limits: WeightLimits = WeightLimits(),
    _ pressure: ManualMemoryPressure? = nil, _ opened: Opened = Opened()
  ) async throws -> Session {
    let bundle = try EdgeKit.Bundle(path: expected.bundle)
    return try await Session(bundle: bundle) {
      let segments = try Segments(bundle, executor(bundle, replay), pressure) { _ in limits }
      opened.segments = segments
      return segments
    }
  }

  func testGenerationsOverSegmentsAreThoseOfPython() async throws {
    for (name, expected) in try segmentGenerations() {
      for resident in [nil, UInt64(0)] {
        let replay = Replay(try Recording(name))
        let session = try await open(expected, replay, limits: WeightLimits(residentBytes: resident))
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.map(RecordedEvent.init), expected.events, name)
        XCTAssertEqual(replay.unused, [], name)
        let statistics = try await session.statistics()
        XCTAssertEqual(statistics.pinnedBytes == 0, resident == 0)
        XCTAssertEqual(statistics.streamedBytesPerStep == 0, resident == nil)
      }
    }
  }

  /// Pins go between two calls, in the middle of a pass; the tokens stay.
  func testMemoryPressureInTheMiddleOfAPassDropsPinsAndTheTokensStay() async throws {
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let total = recording.calls.count
      // Not the first call of a pass, nor of the generation.
      let places = [total / 3, 2 * total / 3].map { from in
        (from..<total).first { recording.calls[$0].begins == nil } ?? from
      }
      for levels in [[MemoryPressure.warning, .critical], [.critical, .warning], [.warning, .warning]] {
        let (replay, pressure, opened) = (Replay(recording), ManualMemoryPressure(), Opened())
        let session = try await open(expected, replay, pressure, opened)
        let all = try await session.statistics().pinnedBytes
        let pinned = Mutex<[UInt64]>([])
        for (place, level) in zip(places, levels) {
          // Counted from 1. From another thread; the next call is made with what is left.
          replay.beforeCall(place + 1) {
            let sent = DispatchSemaphore(value: 0)
            Thread.detachNewThread {
              pressure.send(level)
              sent.signal()
            }
            sent.wait()
          }
          replay.beforeCall(place + 2) { pinned.withLock { $0.append(opened.pinnedBytes) } }
        }
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.map(RecordedEvent.init), expected.events, name)
        XCTAssertEqual(replay.unused, [], name)
        let found = pinned.withLock { $0 }
        XCTAssertEqual(found.count, 2)
        XCTAssertLessThanOrEqual(found[0], levels[0] == .critical ? 0 : all / 2, name)
        XCTAssertLessThanOrEqual(found[1], levels.contains(.critical) ? 0 : found[0] / 2, name)
        let after = try await session.statistics()
        XCTAssertEqual(after.pinnedBytes, found[1])
        XCTAssertEqual(after.pinnedBytes + after.streamedBytesPerStep, all)
        // The session goes on with what is left.
        replay.restart()
        let again = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(again.map(RecordedEvent.init), expected.events, name)
      }
    }
  }

  /// At every kind of call, also among experts of which some stay and others do not.
  func testMemoryPressureAtAnyCallLeavesTheTokens() async throws {
    for (name, expected) in try segmentGenerations() where name.contains("gemma") {
      let recording = try Recording(name)
      let total = recording.calls.count
      let begin = try XCTUnwrap((total / 2..<total).first { recording.calls[$0].begins == "denoise" })
      let end = (begin + 1..<total).first { recording.calls[$0].begins != nil } ?? total
      let bundle = try EdgeKit.Bundle(path: expected.bundle)
      let all = try Segments(bundle, executor(bundle, Replay(recording)), nil) { _ in WeightLimits() }.residency.pinned
      for place in stride(from: begin, to: end, by: max(1, (end - begin) / 12)) {
        let (replay, pressure) = (Replay(recording), ManualMemoryPressure())
        let session = try await open(expected, replay, limits: WeightLimits(residentBytes: all / 2), pressure)
        replay.beforeCall(place + 1) { pressure.send(place % 2 == 0 ? .critical : .warning) }
        let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
        XCTAssertEqual(events.map(RecordedEvent.init), expected.events, "\(name) \(place)")
        XCTAssertEqual(replay.unused, [], name)
      }
    }
  }

  func testCancellingOverSegmentsStopsAtAStepBoundary() async throws {
    for (name, expected) in try segmentGenerations() {
      let recording = try Recording(name)
      let replay = Replay(recording)
      let session = try await open(expected, replay, limits: WeightLimits(residentBytes: 0))
      // A call in the middle of a later pass waits until the stream was left.
      let (reached, left) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
      let place = try XCTUnwrap(
        (recording.calls.count / 2..<recording.calls.count).first { recording.calls[$0].begins == nil })
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
      XCTAssertEqual(seen.map(RecordedEvent.init), Array(expected.events.prefix(seen.count)), name)
      // The pass that ran came to its end, and no other began.
      _ = try await session.info()
      XCTAssertGreaterThan(replay.count, place)
      XCTAssertLessThan(replay.count, recording.calls.count, "\(name) went on")
      let next = try XCTUnwrap(recording.calls[replay.count].begins, "\(name) stopped in the middle of a pass")
      XCTAssertTrue(["denoise", "prefill"].contains(next), "\(name) stopped before a \(next)")
      replay.restart()
      let events = try await collect(session.generate(expected.prompt, settings: expected.settings))
      XCTAssertEqual(events.map(RecordedEvent.init), expected.events, name)
    }
  }

  func testSegmentsThatCannotBeOpenedAreTheErrorOfOpening() async throws {
    let expected = try XCTUnwrap(try recorded().first)
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

private func executor(_ bundle: EdgeKit.Bundle, _ replay: Replay) -> SegmentExecutor {
  bundle.manifest.programs.format == "mlx" ? .functions(replay) : .packages(replay)
}

/// Segments as a test sees them from their session's thread, between two calls.
private final class Opened: @unchecked Sendable {
  weak var segments: Segments?
  var pinnedBytes: UInt64 { segments?.residency.pinned ?? .max }
}

private struct NoExecutor: PackageExecutor {
  func open(
    _ url: URL, _ package: PackagePrograms.Package, functions: [String]
  ) throws(EdgeKitError) -> any OpenPackage { throw .engineFailed("not called") }
}

/// What a test does to the passes of a denoiser on the session's thread, and sees of them.
private final class Hooks: Sendable {
  private struct State {
    var passes = 0
    var idles = 0
    var before: [Int: @Sendable () throws -> Void] = [:]
    var change: @Sendable (inout HeadOutput) -> Void = { _ in }
  }

  private let state = Mutex(State())

  var passes: Int { state.withLock { $0.passes } }
  var idles: Int { state.withLock { $0.idles } }

  func beforePass(_ number: Int, _ body: @escaping @Sendable () throws -> Void) {
    state.withLock { $0.before[number] = body }
  }

  func change(_ body: @escaping @Sendable (inout HeadOutput) -> Void) { state.withLock { $0.change = body } }

  func pass() throws {
    let body = state.withLock { state in
      state.passes += 1
      return state.before.removeValue(forKey: state.passes)
    }
    try body?()
  }

  func changed(_ output: HeadOutput) -> HeadOutput {
    var output = output
    state.withLock { $0.change }(&output)
    return output
  }

  func idle() { state.withLock { $0.idles += 1 } }
}

/// Passes of a native session. It takes no noise of the caller's: samples are drawn here, from all scores.
private final class NativeDenoiser: Denoiser {
  private let session: OpaquePointer
  private let hooks: Hooks
  private var rows = 0
  let vocabulary: Int
  let hiddenSize: Int

  init(_ bundle: EdgeKit.Bundle, _ hooks: Hooks) throws(EdgeKitError) {
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_session_open(bundle.path, nil, &opened))
    guard let opened else { throw .internalError("no session") }
    session = opened
    self.hooks = hooks
    vocabulary = bundle.manifest.model.vocabularySize
    hiddenSize = bundle.manifest.model.hiddenSize
  }

  deinit { ek_session_close(session) }

  var prefixLength: Int {
    var info = ek_session_info()
    info.struct_size = UInt32(MemoryLayout<ek_session_info>.size)
    XCTAssertEqual(ek_session_get_info(session, &info), EK_OK)
    return Int(info.prefix_length)
  }

  private(set) var encoded: [[Int]] = []
  var uncached: [Int] = []

  func reset() {
    XCTAssertEqual(ek_session_reset(session), EK_OK)
    (encoded, uncached) = ([], [])
  }

  func prefill(_ ids: [Int]) throws {
    do {
      try hooks.pass()
    } catch {
      // What a prefill that fails does.
      XCTAssertEqual(ek_session_reset(session), EK_OK)
      encoded = []
      throw error
    }
    try EdgeKitError.check(ek_session_prefill(session, ids.map(Int64.init), Int64(ids.count)))
    encoded.append(ids)
  }

  func denoise(_ ids: [Int], _ request: HeadRequest, soft: Tensor?) throws -> HeadOutput {
    try hooks.pass()
    rows = ids.count
    return try answer(request) { request, output in
      guard let soft else {
        return ek_session_denoise(session, ids.map(Int64.init), Int64(ids.count), nil, request, output)
      }
      return ek_session_denoise(session, ids.map(Int64.init), Int64(ids.count), soft.floats, request, output)
    }
  }

  func project(_ request: HeadRequest) throws -> HeadOutput {
    try hooks.pass()
    return try answer(request) { ek_session_project(session, $0, $1) }
  }

  func idle() { hooks.idle() }

  private func answer(
    _ request: HeadRequest, _ call: (UnsafePointer<ek_head_request>, UnsafePointer<ek_head_output>) -> ek_status
  ) throws -> HeadOutput {
    let count = request.rows?.count ?? rows
    let k = min(request.topK, vocabulary)
    let (argmax, topIds) = (Values<Int64>(count), Values<Int64>(count * k))
    let (others, entropy, logZ) = (Values<Float>(count), Values<Float>(count), Values<Float>(count))
    let (topZ, soft, logits) = (
      Values<Float>(count * k), Values<Float>(request.soft ? count * hiddenSize : 0), Values<Float>(count * vocabulary)
    )
    defer { withExtendedLifetime((argmax, topIds, others, entropy, logZ, topZ, soft, logits)) {} }
    let status = (request.rows ?? Array(0..<count)).map(Int64.init).withUnsafeBufferPointer { rows in
      var asked = ek_head_request()
      asked.struct_size = UInt32(MemoryLayout<ek_head_request>.size)
      asked.temperature = request.temperature
      asked.rows = rows.baseAddress
      asked.row_count = Int64(count)
      asked.soft = request.soft ? 1 : 0
      asked.top_k = Int64(k)
      var output = ek_head_output()
      output.struct_size = UInt32(MemoryLayout<ek_head_output>.size)
      output.argmax = argmax.start
      output.others = others.start
      output.entropy = entropy.start
      output.log_z = logZ.start
      if k > 0 { (output.top_ids, output.top_z) = (topIds.start, topZ.start) }
      if request.soft { output.soft = soft.start }
      output.logits = logits.start
      return call(&asked, &output)
    }
    try EdgeKitError.check(status)
    var found = HeadOutput(
      argmax: argmax.all.map { Int($0) }, others: others.all, entropy: entropy.all, logZ: logZ.all)
    if request.soft { found.soft = Tensor([count, hiddenSize], soft.all) }
    if k > 0 {
      found.topIds = (0..<count).map { row in topIds.all[(row * k)..<((row + 1) * k)].map { Int($0) } }
      found.topZ = (0..<count).map { row in Array(topZ.all[(row * k)..<((row + 1) * k)]) }
    }
    if request.logits { found.logits = Tensor([count, vocabulary], logits.all) }
    if let gumbel = request.gumbel {
      let (logits, logZ) = (logits.all, logZ.all)
      // In tiles, as heads draw it.
      var (samples, best) = ([Int](repeating: 0, count: count), [Float](repeating: -.infinity, count: count))
      for start in stride(from: 0, to: vocabulary, by: 100) {
        let width = min(100, vocabulary - start)
        let noise = try gumbel(start, start + width)
        for row in 0..<count {
          for token in 0..<width {
            let score = logits[row * vocabulary + start + token] + request.gumbelScale * noise[row * width + token]
            if score > best[row] { (best[row], samples[row]) = (score, start + token) }
          }
        }
      }
      found.sample = samples
      found.sampleProbability = (0..<count).map { exp(logits[$0 * vocabulary + samples[$0]] - logZ[$0]) }
    }
    return hooks.changed(found)
  }
}

/// An array that C fills.
private final class Values<Element: Numeric> {
  let buffer: UnsafeMutableBufferPointer<Element>

  init(_ count: Int) {
    buffer = .allocate(capacity: count)
    buffer.initialize(repeating: 0)
  }

  deinit { buffer.deallocate() }

  var start: UnsafeMutablePointer<Element>? { buffer.baseAddress }
  var all: [Element] { Array(buffer) }
}
