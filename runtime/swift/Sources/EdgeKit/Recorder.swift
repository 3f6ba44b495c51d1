import CEdgeKit
import Foundation

/// Looks on while a session runs, and writes the report: `ek_bench` of the C ABI. Confined to the session's thread, and
/// closed before the session.
final class Recorder {
  private let handle: OpaquePointer
  /// Read by a thread of the library's until the recorder is closed.
  private let meter: Meter?

  init(_ session: OpaquePointer, about: String, options: BenchmarkOptions) throws(EdgeKitError) {
    let meter = options.joules.map(Meter.init)
    var opened: OpaquePointer?
    let status = about.withCString { text in
      var wanted = ek_bench_options()
      wanted.struct_size = UInt32(MemoryLayout<ek_bench_options>.size)
      wanted.interval_milliseconds = UInt32(clamping: options.intervalMilliseconds)
      wanted.spans = Int64(options.spans)
      wanted.about = text
      if let meter {
        wanted.joules = readMeter
        wanted.user_data = Unmanaged.passUnretained(meter).toOpaque()
      }
      return ek_bench_open(session, &wanted, &opened)
    }
    try EdgeKitError.check(status)
    guard let opened else { throw .internalError("ek_bench_open gave no bench") }
    (handle, self.meter) = (opened, meter)
  }

  deinit { withExtendedLifetime(meter) { ek_bench_close(handle) } }

  func begin(_ label: String, promptTokens: Int) -> ek_status { ek_bench_begin(handle, label, Int64(promptTokens)) }
  func tell(_ event: UnsafePointer<ek_event>) -> ek_status { ek_bench_tell(handle, 0, event) }
  func end() -> ek_status { ek_bench_end(handle) }
  func drop() { _ = ek_bench_drop(handle) }

  func report() throws(EdgeKitError) -> Data {
    var size: UInt64 = 0
    try EdgeKitError.check(ek_bench_get_report(handle, nil, 0, &size))
    // Numbers of the machine may be longer the second time.
    let capacity = Int(size) + 4096
    var buffer = [CChar](repeating: 0, count: capacity)
    try EdgeKitError.check(ek_bench_get_report(handle, &buffer, UInt64(capacity), &size))
    let count = Int(size)
    return buffer.withUnsafeBytes { Data($0.prefix(count)) }
  }
}

/// What the library's callback gets as its user data.
private final class Meter: Sendable {
  let joules: @Sendable () -> Double?

  init(_ joules: @escaping @Sendable () -> Double?) { self.joules = joules }
}

private func readMeter(_ user: UnsafeMutableRawPointer?) -> Double {
  guard let user else { return -1 }
  return Unmanaged<Meter>.fromOpaque(user).takeUnretainedValue().joules() ?? -1
}

extension Denoiser {
  /// Has a recorder look on from now on. Throws `invalidState` where one does.
  func record(about: String, _ options: BenchmarkOptions) throws(EdgeKitError) {
    guard recorder == nil else {
      throw .invalidState("the session is measured already; release that Benchmark, or open another session")
    }
    recorder = try Recorder(handle, about: about, options: options)
  }

  /// A test of one generation, which counts only where it came as far as `generate` says and did not fail.
  func test(
    _ prompt: [Int], _ settings: GenerationSettings, label: String, forwards: Int, goesOn: () -> Bool
  ) throws(EdgeKitError) -> Bool {
    let recorder = try recording()
    try CoreCall.check(table) { recorder.begin(label, promptTokens: prompt.count) }
    do throws(EdgeKitError) {
      guard try generate(prompt, settings, forwards: forwards, for: recorder, goesOn: goesOn) else {
        recorder.drop()
        return false
      }
    } catch {
      recorder.drop()
      throw error
    }
    try CoreCall.check(table) { recorder.end() }
    return true
  }

  /// Whether a generation came to its end, or to so many denoising passes (0: all); else `goesOn` said no.
  func generate(
    _ prompt: [Int], _ settings: GenerationSettings, forwards: Int, for recorder: Recorder?, goesOn: () -> Bool
  ) throws(EdgeKitError) -> Bool {
    guard goesOn() else { return false }
    var reached = false
    var failure: EdgeKitError?
    let finished = try run(prompt, settings) { event in
      // At once: the generation's own end has another message.
      do throws(EdgeKitError) {
        try EdgeKitError.check(recorder?.tell(event) ?? EK_OK)
      } catch {
        failure = error
        return false
      }
      reached = forwards > 0 && (event.pointee.statistics?.pointee.forwards ?? 0) >= Int64(forwards)
      return !reached && goesOn()
    }
    if let failure { throw failure }
    return finished || reached
  }

  /// All tests so far.
  func report() throws(EdgeKitError) -> Data { try recording().report() }

  private func recording() throws(EdgeKitError) -> Recorder {
    guard let recorder else { throw .invalidState("nothing measures the session") }
    return recorder
  }
}
