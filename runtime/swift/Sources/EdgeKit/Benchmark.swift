import Foundation

/// How a benchmark looks on.
public struct BenchmarkOptions: Sendable {
  /// Reads, waits and uses of weights that the report has of every test, the first of them.
  public var spans = 0
  /// Between looks at memory and meters; 0: 20.
  public var intervalMilliseconds = 0
  /// Joules since any moment, from a meter of the application's; nil: not known. Called often, from another thread. On
  /// Apple's systems the library knows no meter, and iOS has none.
  public var joules: (@Sendable () -> Double?)?

  public init(spans: Int = 0, intervalMilliseconds: Int = 0, joules: (@Sendable () -> Double?)? = nil) {
    self.spans = spans
    self.intervalMilliseconds = intervalMilliseconds
    self.joules = joules
  }
}

/// Measures generations of a session; its report is that of `edgekit bench`, which tabulates it with others
/// (`edgekit bench --merge`). docs/bench.md of the repository says what it holds.
///
///     let report = try await Benchmark.run(bundle: path, prompt: ids, settings: GenerationSettings(maxNewTokens: 128))
///     try report.write(to: url)
///
/// or test by test, of a session that the application has:
///
///     let benchmark = try await Benchmark(session)
///     try await benchmark.test(ids, label: ["run": 0])
///     let report = try await benchmark.report()
///
/// Releasing it ends it; a session has one at a time.
public final class Benchmark: Sendable {
  private let session: Session

  /// `about` goes into the report: the application, the model. Throws `invalidState` for a session that is measured
  /// already or whose engine cannot be.
  public init(
    _ session: Session, about: [String: JSONValue] = [:], options: BenchmarkOptions = BenchmarkOptions()
  ) async throws {
    let text = try Self.json(about, "about")
    try await session.measured { denoiser, _ throws(EdgeKitError) in try denoiser.record(about: text, options) }
    self.session = session  // last: one that failed ends nobody's recorder
  }

  deinit { session.stopMeasuring() }

  /// Generates once, which is a test of that name, and forgets it where that fails or its task is cancelled. `forwards`
  /// end it after so many denoising passes; 0: at its end.
  public func test(
    _ prompt: [Int], settings: GenerationSettings = GenerationSettings(), label: [String: JSONValue] = [:],
    forwards: Int = 0
  ) async throws {
    let text = try Self.json(label, "the label")
    let finished = try await session.measured { denoiser, goesOn throws(EdgeKitError) in
      try denoiser.test(prompt, settings, label: text, forwards: forwards, goesOn: goesOn)
    }
    guard finished else {
      try Task.checkCancellation()
      throw EdgeKitError.closed("the session was closed while it was measured")
    }
  }

  /// All tests so far, with the machine, the bundle and the session: one line of JSON.
  public func report() async throws -> Data {
    try await session.measured { denoiser, _ throws(EdgeKitError) in try denoiser.report() }
  }

  /// What `edgekit bench` does for one configuration: opens the bundle, generates `warmups` times without counting,
  /// then `repetitions` times, and reports. `label` is asked before each of these what the application knows of the
  /// device, such as the level of its battery; `probe` measures first, for about three seconds, what the machine can
  /// do at most. With a budget, `session.positions` and `session.canvas` must hold prompt and answer.
  public static func run(
    bundle path: String, prompt: [Int], session options: SessionOptions = SessionOptions(),
    settings: GenerationSettings = GenerationSettings(), repetitions: Int = 5, warmups: Int = 1, forwards: Int = 0,
    recording: BenchmarkOptions = BenchmarkOptions(), probe: Bool = true,
    label: @Sendable () async -> [String: JSONValue] = { Benchmark.deviceState() }
  ) async throws -> Data {
    guard repetitions > 0, warmups >= 0, forwards >= 0 else {
      throw EdgeKitError.invalidArgument(
        "\(repetitions) repetitions after \(warmups) warm-ups, \(forwards) forwards; use 1 or more repetitions, the "
          + "others at least 0")
    }
    let bundle = try Bundle(path: path)
    var limits: JSONValue?
    if probe { limits = try await MachineLimits.measured(bundle: bundle.path) }
    let session = try await Session(bundle: bundle, options: options)
    for _ in 0..<warmups {
      let finished = try await session.measured { denoiser, goesOn throws(EdgeKitError) in
        try denoiser.generate(prompt, settings, forwards: forwards, for: nil, goesOn: goesOn)
      }
      if !finished { throw CancellationError() }
    }
    let facts = Self.about(bundle, settings, forwards, limits)
    let benchmark = try await Benchmark(session, about: facts, options: recording)
    for number in 0..<repetitions {
      let own = await label().merging(["run": .integer(Int64(number))]) { _, run in run }
      try await benchmark.test(prompt, settings: settings, label: own, forwards: forwards)
    }
    let report = try await benchmark.report()
    await session.close()
    return report
  }

  /// How hot the system says that the device is; empty where it does not say.
  public static func deviceState() -> [String: JSONValue] {
    #if canImport(Darwin)
      let names: [ProcessInfo.ThermalState: JSONValue] = [
        .nominal: "nominal", .fair: "fair", .serious: "serious", .critical: "critical",
      ]
      return ["thermal_state": names[ProcessInfo.processInfo.thermalState] ?? .null]
    #else
      return [:]
    #endif
  }

  /// The member "about": what `edgekit bench` says beside the facts of the library.
  private static func about(
    _ bundle: Bundle, _ settings: GenerationSettings, _ forwards: Int, _ limits: JSONValue?
  ) -> [String: JSONValue] {
    var wanted = settings.options
    if let steps = settings.steps { wanted["steps"] = .integer(Int64(steps)) }
    var test: [String: JSONValue] = [
      "sequences": 1, "prompt": "tokens", "forwards": .integer(Int64(forwards)), "settings": .object(wanted),
    ]
    if let count = settings.maxNewTokens {
      let canvas = bundle.manifest.model.canvasLength ?? 1
      test["new_tokens"] = .integer(Int64((count + canvas - 1) / canvas * canvas))  // whole canvases are written
    }
    var facts: [String: JSONValue] = ["case": .object(test)]
    facts["limits"] = limits
    return facts
  }

  private static func json(_ value: [String: JSONValue], _ what: String) throws(EdgeKitError) -> String {
    guard let text = NativeLibrary.json(value) else {
      throw .invalidArgument("\(what) holds a number that is not finite; JSON has none")
    }
    return text
  }
}
