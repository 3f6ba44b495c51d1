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
      let segments = try open(recording, format, replay, weightBytes: nil)
      try check(recording, segments.denoiser)
      XCTAssertEqual(replay.unused, [], name)
    }
  }

  func testWhatIsOpenedAheadChangesNothingAndStaysInTheBudget() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      let recording = try Recording(name)
      let bundle = try EdgeKit.Bundle(path: recording.path)
      var sizes: [String: UInt64] = [:]
      if case .packages(let programs) = bundle.manifest.programs {
        sizes = programs.packages.mapValues { UInt64($0.bytes) }
      }
      let budget: UInt64
      do {
        _ = try open(recording, format, Replay(recording), weightBytes: 1)
        return XCTFail("\(name): a budget of one byte is enough")
      } catch EdgeKitError.budgetExceeded(_, let sufficient) {
        budget = sufficient
      }
      let replay = Replay(recording)
      let segments = try open(recording, format, replay, weightBytes: budget)
      try check(recording, segments.denoiser)
      XCTAssertEqual(replay.unused, [], name)
      if !sizes.isEmpty {
        XCTAssertLessThanOrEqual(replay.mostOpenBytes, budget)
        XCTAssertGreaterThan(replay.opened, sizes.count, "packages are opened anew in every pass")
      }
    }
  }

  func testPinsAreDroppedUnderMemoryPressureAtAnyTime() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) where format == "coreml" {
      for level in [MemoryPressure.warning, .critical] {
        let recording = try Recording(name)
        let replay = Replay(recording)
        let pressure = ManualMemoryPressure()
        let segments = try open(recording, format, replay, weightBytes: nil, memoryPressure: pressure)
        let all = replay.openNow
        // In the middle of a pass, from another thread.
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
        let closed = expectation(description: "closed")
        DispatchQueue.global().async {
          // What was opened ahead of the next pass is not a pin.
          segmentsSettled(replay)
          closed.fulfill()
        }
        wait(for: [closed], timeout: 60)
        XCTAssertLessThan(replay.openNow, all)
      }
    }
  }

  func testAFailureEndsThePassAndTheNextOneRuns() throws {
    for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) {
      let recording = try Recording(name)
      let replay = Replay(recording)
      let segments = try open(recording, format, replay, weightBytes: nil)
      replay.beforeCall(1) { throw EdgeKitError.engineFailed("the device is gone") }
      let first = try XCTUnwrap(recording.passes.first)
      func run() throws {
        if first.kind == "prefill" { return try segments.denoiser.prefill(first.ids) }
        _ = try segments.denoiser.denoise(first.ids, HeadRequest(), soft: nil)
      }
      XCTAssertThrowsError(try run())
      XCTAssertEqual(segments.denoiser.prefixLength, 0)
      replay.restart()
      try check(recording, segments.denoiser)
    }
  }

  private func open(
    _ recording: Recording, _ format: String, _ replay: Replay, weightBytes: UInt64?,
    memoryPressure: (any MemoryPressureSource)? = nil
  ) throws -> Segments {
    let bundle = try EdgeKit.Bundle(path: recording.path)
    return format == "mlx"
      ? try Segments(bundle: bundle, runner: replay, weightBytes: weightBytes, memoryPressure: memoryPressure)
      : try Segments(bundle: bundle, executor: replay, weightBytes: weightBytes, memoryPressure: memoryPressure)
  }
}

/// Makes the passes of a recording; every answer must be the recorded one.
func check(_ recording: Recording, _ denoiser: any Denoiser, tolerance: Float = 1e-4) throws {
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
      request.gumbelScale = asked.gumbelScale ?? 1
      request.soft = asked.soft ?? false
      request.topK = asked.topK ?? 0
      request.logits = asked.logits ?? false
      if let noise = asked.noise.map(recording.tensor) {
        let values = noise.floats
        let width = noise.shape[1]
        request.gumbel = { start, stop in
          var part: [Float] = []
          for row in 0..<noise.shape[0] { part += values[(row * width + start)..<(row * width + stop)] }
          return part
        }
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
    let least: Float = ["logits", "top_z", "log_z"].contains(name) ? 1 : 1e-3
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
}

/// Waits until nothing is opened or closed any more.
private func segmentsSettled(_ replay: Replay) {
  var last = -1
  while last != replay.opened {
    last = replay.opened
    Thread.sleep(forTimeInterval: 0.2)
  }
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
    /// The pass that begins here.
    var begins: String?
  }

  struct Request: Decodable {
    var rows: [Int]?
    var temperature: Float
    var gumbelScale: Float?
    var noise: Place?
    var soft: Bool?
    var topK: Int?
    var logits: Bool?

    enum CodingKeys: String, CodingKey {
      case rows, temperature, noise, soft, logits
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

  /// Has every recorded call answered once more, and counts calls anew, without hooks.
  func restart() {
    state.withLock { state in
      state.used = []
      state.count = 0
      state.hooks = [:]
    }
  }

  func call(
    _ name: String, _ function: MLXPrograms.Function, inputs: [Tensor]
  ) throws(EdgeKitError) -> [Tensor] {
    let named = Dictionary(uniqueKeysWithValues: zip(function.inputs.map(\.name), inputs))
    let outputs = try answer("", name, named)
    return function.outputs.compactMap { outputs[$0.name] }
  }

  func open(
    _ url: URL, _ package: PackagePrograms.Package, functions: [String]
  ) throws(EdgeKitError) -> any OpenPackage {
    XCTAssertTrue(FileManager.default.fileExists(atPath: url.path), url.path)
    XCTAssertTrue(functions.allSatisfy { package.functions[$0] != nil })
    state.withLock { state in
      state.openBytes += UInt64(package.bytes)
      state.mostOpenBytes = max(state.mostOpenBytes, state.openBytes)
      state.openNow += 1
      state.opened += 1
    }
    return Package(self, url.deletingPathExtension().lastPathComponent, UInt64(package.bytes))
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

    func call(
      _ name: String, _ function: PackagePrograms.Function, inputs: [String: Tensor]
    ) throws(EdgeKitError) -> [String: Tensor] {
      XCTAssertFalse(isClosed.withLock { $0 })
      var given = inputs
      for feature in function.inputs {
        XCTAssertEqual(inputs[feature.name]?.shape, feature.shape, feature.role)
        if feature.dtype == "float16", let tensor = inputs[feature.name] {
          given[feature.name] = Tensor(tensor.shape, tensor.floats.map { float16(float16Bits($0)) })
        }
      }
      return try replay.answer(self.name, name, given)
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
    let (hook, used) = state.withLock { state in
      state.count += 1
      state.lastUnit = unit
      state.lastFunction = function
      return (state.hooks[state.count], state.used)
    }
    do { try hook?() } catch { throw error as? EdgeKitError ?? .internalError("\(error)") }
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
        uniqueKeysWithValues: call.outputs.compactMap { argument in
          argument.array.map { (argument.name, recording.tensor($0)) }
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
