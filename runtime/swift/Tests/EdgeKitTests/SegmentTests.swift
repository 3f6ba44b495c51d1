import Foundation
import Synchronization
import XCTest

@testable import EdgeKit

/// Passes of models in segments: every call must be one that the Python session made, with the same inputs, and what
/// comes out of a pass must be what it said. Calls are answered from the recording.
final class SegmentTests: XCTestCase {
  func testPassesAreThoseOfPython() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      let recording = try Recording(name)
      let replay = Replay(recording)
      let segments = try open(recording, format, replay)
      try check(recording, segments.denoiser)
      XCTAssertEqual(replay.unused, [], name)
    }
  }

  func testWhatIsOpenedAheadChangesNothingAndStaysInTheBudget() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      let recording = try Recording(name)
      let bundle = try EdgeKit.Bundle(path: recording.path)
      let replay = Replay(recording)
      let segments = try open(recording, format, replay, SessionOptions(residentBytes: 0))
      try check(recording, segments.denoiser)
      XCTAssertEqual(replay.unused, [], name)
      let statistics = try segments.denoiser.statistics()
      XCTAssertEqual(statistics.pinnedBytes, 0)
      XCTAssertGreaterThan(statistics.bytesRead, 0)
      if case .packages(let programs) = bundle.manifest.programs {
        XCTAssertLessThanOrEqual(replay.mostOpenBytes, statistics.ringBytes)
        XCTAssertGreaterThan(replay.opened, programs.packages.count, "packages are opened anew in every pass")
        try segments.denoiser.idle()
        XCTAssertEqual(replay.openNow, 0)
      }
    }
  }

  /// Asked for in the middle of a pass, from another thread; before the next pass they are gone.
  func testPinsAreDroppedUnderMemoryPressureAtAnyTime() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      for level in [MemoryPressure.warning, .critical] {
        let recording = try Recording(name)
        let replay = Replay(recording)
        let pressure = ManualMemoryPressure()
        let segments = try open(recording, format, replay, memoryPressure: pressure)
        let (all, packages) = (try segments.denoiser.statistics().pinnedBytes, replay.openNow)
        XCTAssertEqual(packages > 0, format == "coreml")
        replay.beforeCall(5) {
          let sent = DispatchSemaphore(value: 0)
          Thread.detachNewThread {
            pressure.send(level)
            sent.signal()
          }
          sent.wait()
        }
        try check(recording, segments.denoiser)
        XCTAssertEqual(replay.unused, [], name)
        let found = try segments.denoiser.statistics()
        XCTAssertLessThanOrEqual(found.pinnedBytes, level == .critical ? 0 : all / 2)
        XCTAssertTrue(found.streamedBytesPerStep > 0 || level == .warning)
        try segments.denoiser.idle()
        // After a warning it may be a table that goes, which is no package.
        XCTAssertLessThanOrEqual(replay.openNow, level == .critical ? 0 : packages)
      }
    }
  }

  func testAFailureEndsThePassAndTheNextOneRuns() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      for options in [SessionOptions(), SessionOptions(residentBytes: 0)] {
        let recording = try Recording(name)
        let replay = Replay(recording)
        let segments = try open(recording, format, replay, options)
        let gone = EdgeKitError.readFailed("the device is gone")
        replay.beforeCall(1) { throw gone }
        let first = try XCTUnwrap(recording.passes.first)
        do throws(EdgeKitError) {
          if first.kind == "prefill" {
            try segments.denoiser.prefill(first.ids)
          } else {
            _ = try segments.denoiser.denoise(first.ids, HeadRequest(), soft: nil)
          }
          XCTFail("no error")
        } catch {
          XCTAssertEqual(error, gone, "that of the executor")
        }
        XCTAssertEqual(segments.denoiser.prefixLength, 0)
        replay.restart()
        try check(recording, segments.denoiser)
      }
    }
  }

  func testPackagesThatCannotBeOpenedAreTheErrorOfTheExecutor() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) where format == "coreml" {
      let recording = try Recording(name)
      let gone = EdgeKitError.openFailed("the cache is full")
      let whole = Replay(recording)
      whole.beforeOpening(3) { throw gone }
      XCTAssertThrowsError(try open(recording, format, whole)) { XCTAssertEqual($0 as? EdgeKitError, gone) }
      XCTAssertEqual(whole.openNow, 0, "what was opened before is closed")
      let replay = Replay(recording)
      let segments = try open(recording, format, replay, SessionOptions(residentBytes: 0))
      replay.beforeOpening(2) { throw gone }
      let first = try XCTUnwrap(recording.passes.first)
      func run() throws {
        if first.kind == "prefill" { return try segments.denoiser.prefill(first.ids) }
        _ = try segments.denoiser.denoise(first.ids, HeadRequest(), soft: nil)
      }
      XCTAssertThrowsError(try run()) { XCTAssertEqual($0 as? EdgeKitError, gone) }
      XCTAssertEqual(replay.openNow, 0)
      replay.restart()
      try check(recording, segments.denoiser)
    }
  }

  /// What an executor gives is looked at before anything is made of it.
  func testArraysOfAnotherShapeAndTokensThatATileDoesNotHaveAreErrors() throws {
    let shorter: @Sendable (Tensor) -> Tensor = { Tensor(zeros: [$0.count + 1]) }
    let outside: @Sendable (Tensor) -> Tensor = {
      Tensor($0.shape, integers: [Int64](repeating: 1 << 30, count: $0.count))
    }
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      let recording = try Recording(name)
      let places = try [recording.calls.firstIndex { !$0.isHead }, recording.calls.firstIndex { $0.isHead }].map {
        try XCTUnwrap($0)
      }
      // Arrays of packages are the core's, of the right size.
      let shapes: [(Int, Int, @Sendable (Tensor) -> Tensor)] =
        format == "coreml" ? [] : [(places[0], 0, shorter), (places[1], 0, shorter)]
      for (place, output, change) in shapes + [(places[1], 1, outside)] {
        let replay = Replay(recording)
        let segments = try open(recording, format, replay)
        replay.change(place + 1, output, change)
        XCTAssertThrowsError(try check(recording, segments.denoiser)) { error in
          guard case EdgeKitError.engineFailed(let text) = error else { return XCTFail("\(name): \(error)") }
          XCTAssertTrue(text.contains("export the bundle again"), text)
        }
        replay.restart()
        try segments.denoiser.reset()
        try check(recording, segments.denoiser)
      }
    }
  }

  private func open(
    _ recording: Recording, _ format: String, _ replay: Replay, _ options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = nil
  ) throws -> Segments {
    let bundle = try EdgeKit.Bundle(path: recording.path)
    return format == "mlx"
      ? try Segments(bundle: bundle, runner: replay, options: options, memoryPressure: memoryPressure)
      : try Segments(bundle: bundle, executor: replay, options: options, memoryPressure: memoryPressure)
  }
}

/// Makes the passes of a recording; every answer must be the recorded one.
func check(_ recording: Recording, _ denoiser: Denoiser, tolerance: Float = 1e-4) throws {
  for pass in recording.passes {
    switch pass.kind {
    case "prefill":
      let before = denoiser.prefixLength
      try denoiser.prefill(pass.ids)
      XCTAssertEqual(denoiser.prefixLength, before + pass.ids.count)
    default:
      let asked = try XCTUnwrap(pass.request)
      var request = HeadRequest()
      request.rows = asked.rows
      request.temperature = asked.temperature
      request.soft = asked.soft ?? false
      request.topK = asked.topK ?? 0
      request.logits = asked.logits ?? false
      request.roles = asked.roles ?? false
      if let seed = asked.seed, let draw = asked.draw {
        request.gumbel = HeadRequest.Gumbel(seed: seed, draw: draw, scale: asked.gumbelScale ?? 1)
      }
      let found =
        pass.kind == "project"
        ? try denoiser.project(request)
        : try denoiser.denoise(pass.ids, request, soft: pass.soft.map(recording.tensor))
      try compare(found, try XCTUnwrap(pass.output).mapValues(recording.tensor), tolerance)
    }
  }
}

private func compare(_ found: HeadOutput, _ expected: [String: Tensor], _ tolerance: Float) throws {
  func close(_ values: [Float]?, _ name: String) {
    guard let wanted = expected[name]?.floats else { return XCTAssertNil(values, name) }
    guard let values, values.count == wanted.count else { return XCTFail(name) }
    // Scores lie around 0, the others are of one sign.
    let least: Float = ["logits", "top_z", "log_z", "roles"].contains(name) ? 1 : 1e-3
    let worst = zip(values, wanted).map { abs($0 - $1) / max(least, abs($1)) }.max() ?? 0
    XCTAssertLessThan(worst, tolerance, name)
  }
  func same(_ values: [Int]?, _ name: String) {
    XCTAssertEqual(values, expected[name]?.integers, name)
  }
  same(found.argmax, "argmax")
  close(found.others, "others")
  close(found.entropy, "entropy")
  close(found.logZ, "log_z")
  same(found.sample, "sample")
  close(found.sampleProbability, "sample_prob")
  close(found.soft?.floats, "soft")
  same(found.topIds?.flatMap { $0 }, "top_ids")
  close(found.topZ?.flatMap { $0 }, "top_z")
  close(found.logits?.floats, "logits")
  close(found.roles?.floats, "roles")
}

/// Passes of a Python session and the calls it made.
struct Recording {
  struct Place: Decodable {
    var dtype: String
    var shape: [Int]
    var offset: Int
  }

  struct Argument: Decodable {
    var name: String
    var array: Place?
    var byte_sum: Int?
  }

  struct Call: Decodable {
    var unit: String
    var function: String
    var inputs: [Argument]
    var outputs: [Argument]

    /// Of a tile of the vocabulary head, with which a pass over a canvas ends.
    var isHead: Bool { unit.isEmpty ? function.hasPrefix("head") : unit.hasPrefix("head") }
  }

  struct Request: Decodable {
    var rows: [Int]?
    var temperature: Float
    var gumbelScale: Float?
    var seed: UInt64?
    var draw: UInt64?
    var soft: Bool?
    var topK: Int?
    var logits: Bool?
    var roles: Bool?

    enum CodingKeys: String, CodingKey {
      case rows, temperature, seed, draw, soft, logits, roles
      case gumbelScale = "gumbel_scale"
      case topK = "top_k"
    }
  }

  struct Pass: Decodable {
    var kind: String
    var ids: [Int]
    var request: Request?
    var soft: Place?
    var output: [String: Place]?
  }

  private struct File: Decodable {
    var bundle: String
    var passes: [Pass]
    var calls: [Call]
  }

  let name: String
  let path: String
  let passes: [Pass]
  let calls: [Call]
  private let data: Data

  init(_ name: String) throws {
    let fixtures = try Fixtures()
    let file = try fixtures.decode("\(name).json", as: File.self)
    self.name = name
    (path, passes, calls) = (file.bundle, file.passes, file.calls)
    data = try Data(contentsOf: fixtures.folder.appendingPathComponent("\(name).bin"))
  }

  /// Whether a pass begins with this call, behind one over a canvas.
  func begins(_ index: Int) -> Bool { index == 0 || calls[index - 1].isHead && !calls[index].isHead }

  func tensor(_ place: Place) -> Tensor {
    let count = place.shape.reduce(1, *)
    return data.withUnsafeBytes { raw in
      if place.dtype == "int64" {
        return Tensor(
          place.shape,
          integers: (0..<count).map { raw.loadUnaligned(fromByteOffset: place.offset + 8 * $0, as: Int64.self) })
      }
      return Tensor(
        place.shape, (0..<count).map { raw.loadUnaligned(fromByteOffset: place.offset + 4 * $0, as: Float.self) })
    }
  }
}

/// Answers calls from a recording, each once.
final class Replay: FunctionRunner, PackageExecutor {
  private struct State {
    var used: Set<Int> = []
    var count = 0
    var hooks: [Int: @Sendable () throws -> Void] = [:]
    var openings: [Int: @Sendable () throws -> Void] = [:]
    var changes: [Int: (output: Int, change: @Sendable (Tensor) -> Tensor)] = [:]
    var openBytes: UInt64 = 0
    var mostOpenBytes: UInt64 = 0
    var openNow = 0
    var opened = 0
    var lastUnit = ""
    var lastFunction = ""
  }

  private let recording: Recording
  private let state = Mutex(State())

  init(_ recording: Recording) { self.recording = recording }

  /// Calls that nobody made.
  var unused: [String] {
    let used = state.withLock { $0.used }
    return recording.calls.indices.filter { !used.contains($0) }.map { recording.calls[$0].function }
  }

  /// Name of the unit and the function of the last call.
  var last: (unit: String, function: String) { state.withLock { ($0.lastUnit, $0.lastFunction) } }
  var count: Int { state.withLock { $0.count } }
  var mostOpenBytes: UInt64 { state.withLock { $0.mostOpenBytes } }
  var openNow: Int { state.withLock { $0.openNow } }
  var opened: Int { state.withLock { $0.opened } }

  func beforeCall(_ number: Int, _ body: @escaping @Sendable () throws -> Void) {
    state.withLock { $0.hooks[number] = body }
  }

  func beforeOpening(_ number: Int, _ body: @escaping @Sendable () throws -> Void) {
    state.withLock { $0.openings[number] = body }
  }

  /// Has a call give something else.
  func change(_ number: Int, _ output: Int, _ body: @escaping @Sendable (Tensor) -> Tensor) {
    state.withLock { $0.changes[number] = (output, body) }
  }

  /// Has every recorded call answered once more, and counts calls anew, without hooks.
  func restart() {
    state.withLock { state in
      state.used = []
      state.count = 0
      (state.hooks, state.openings, state.changes) = ([:], [:], [:])
    }
  }

  func call(
    _ name: String, _ function: MLXPrograms.Function, inputs: [Tensor]
  ) throws(EdgeKitError) -> [Tensor] {
    let named = Dictionary(uniqueKeysWithValues: zip(function.inputs.map(\.name), inputs))
    let outputs = try answer("", name, named)
    return function.outputs.compactMap { outputs[$0.name] }
  }

  func open(_ url: URL, functions: [String]) throws(EdgeKitError) -> any OpenPackage {
    let name = url.deletingPathExtension().lastPathComponent
    guard case .packages(let programs) = try EdgeKit.Bundle(path: recording.path).manifest.programs,
      let package = programs.packages[name]
    else { throw .internalError("there is no package \(name)") }
    XCTAssertTrue(FileManager.default.fileExists(atPath: url.path), url.path)
    XCTAssertTrue(functions.allSatisfy { package.functions[$0] != nil })
    let hook = state.withLock { $0.openings.removeValue(forKey: $0.opened + 1) }
    do { try hook?() } catch { throw EdgeKitError(error) }
    state.withLock { state in
      state.openBytes += UInt64(package.bytes)
      state.mostOpenBytes = max(state.mostOpenBytes, state.openBytes)
      state.openNow += 1
      state.opened += 1
    }
    return Package(self, name, UInt64(package.bytes))
  }

  private final class Package: OpenPackage {
    let replay: Replay
    let name: String
    let bytes: UInt64
    let isClosed = Mutex(false)

    init(_ replay: Replay, _ name: String, _ bytes: UInt64) {
      self.replay = replay
      self.name = name
      self.bytes = bytes
    }

    func call(_ function: String, inputs: [PackageArray], outputs: [PackageArray]) throws(EdgeKitError) {
      XCTAssertFalse(isClosed.withLock { $0 })
      let given = inputs.map { ($0.name, tensor($0)) }
      let found = try replay.answer(name, function, Dictionary(uniqueKeysWithValues: given))
      for output in outputs {
        guard let own = found[output.name], own.shape == output.shape else {
          throw .internalError("no \(output.name) of \(output.shape) is recorded")
        }
        switch output.dtype {
        case "int32": store(own.integers.map { Int32(clamping: $0) }, output)
        case "float16": store(own.floats.map { halves[$0] ?? 0x7e00 }, output)
        default: store(own.floats, output)
        }
      }
    }

    func close() {
      XCTAssertFalse(isClosed.withLock { $0 }, "closed twice")
      isClosed.withLock { $0 = true }
      replay.state.withLock { state in
        state.openBytes -= bytes
        state.openNow -= 1
      }
    }
  }

  private func answer(
    _ unit: String, _ function: String, _ inputs: [String: Tensor]
  ) throws(EdgeKitError) -> [String: Tensor] {
    let (hook, used, changed) = state.withLock { state in
      state.count += 1
      state.lastUnit = unit
      state.lastFunction = function
      return (state.hooks[state.count], state.used, state.changes[state.count])
    }
    do { try hook?() } catch { throw EdgeKitError(error) }
    // Experts run in the order in which they are at hand: among calls of a function, the first with these inputs.
    var nearest = "no call of that name is left"
    for (index, call) in recording.calls.enumerated()
    where call.unit == unit && call.function == function && !used.contains(index) {
      if let difference = difference(call, inputs) {
        nearest = difference
        continue
      }
      state.withLock { _ = $0.used.insert(index) }
      return Dictionary(
        uniqueKeysWithValues: call.outputs.enumerated().compactMap { place, argument in
          guard let own = argument.array.map(recording.tensor) else { return nil }
          return (argument.name, changed?.output == place ? changed?.change(own) ?? own : own)
        })
    }
    throw .internalError("\(recording.name): Python made no such call of \(unit) \(function): \(nearest)")
  }

  /// How the inputs differ from those of a recorded call; nil: not at all.
  private func difference(_ call: Recording.Call, _ inputs: [String: Tensor]) -> String? {
    guard Set(inputs.keys) == Set(call.inputs.map(\.name)) else { return "inputs \(inputs.keys.sorted())" }
    for argument in call.inputs {
      guard let own = inputs[argument.name] else { return "no \(argument.name)" }
      if let sum = argument.byte_sum {
        guard case .stored(_, let bytes) = own.values,
          bytes.withUnsafeBytes({ $0.reduce(0) { $0 + Int($1) } }) == sum
        else {
          return "weights \(argument.name)"
        }
      } else if let place = argument.array {
        let expected = recording.tensor(place)
        guard own.shape == expected.shape else { return "\(argument.name) of shape \(own.shape)" }
        // Sines and cosines of this system may differ in their last digit.
        let worst = zip(own.floats, expected.floats).map { abs($0 - $1) / max(1, abs($1)) }.max() ?? 0
        if !(worst < 2e-6) { return "\(argument.name) differs by \(worst)" }
      }
    }
    return nil
  }
}

/// Bits of halves, by the numbers that they are: recordings have no others.
private let halves = Dictionary(
  (UInt16.min...UInt16.max).map { (float16($0), $0) }.filter { !$0.0.isNaN }, uniquingKeysWith: { first, _ in first })

private func tensor(_ array: PackageArray) -> Tensor {
  func numbers<Number>(_ type: Number.Type) -> [Number] {
    (0..<array.count).map {
      array.bytes.loadUnaligned(fromByteOffset: $0 * MemoryLayout<Number>.size, as: type)
    }
  }
  switch array.dtype {
  case "int32": return Tensor(array.shape, integers: numbers(Int32.self).map { Int64($0) })
  case "float16": return Tensor(array.shape, numbers(UInt16.self).map(float16))
  default: return Tensor(array.shape, numbers(Float.self))
  }
}

private func store<Number: BitwiseCopyable>(_ numbers: [Number], _ array: PackageArray) {
  numbers.withUnsafeBytes { own in
    if let start = own.baseAddress { array.bytes.copyMemory(from: start, byteCount: own.count) }
  }
}
