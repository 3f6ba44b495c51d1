import CEdgeKit
import Foundation

/// What engines over the native core's denoising loops share.
enum NativeLibrary {
  /// `ek_generate` or `ek_model_generate` on what is to generate: prompt, its length, options, callback, user data.
  typealias Generate = (
    UnsafePointer<Int64>?, Int64, UnsafePointer<ek_generate_options>, ek_event_callback, UnsafeMutableRawPointer
  ) -> ek_status

  /// Throws `unsupportedVersion` for a library of another ABI than the header's.
  static func check() throws(EdgeKitError) {
    guard ek_abi_version() == EK_ABI_VERSION else {
      throw .unsupportedVersion(
        "the native library has ABI version \(ek_abi_version()), this package was built for \(EK_ABI_VERSION); "
          + "build both from the same release")
    }
  }

  /// Events go to `onEvent` until it returns false; a stop is no error.
  static func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool, _ call: Generate
  ) throws(EdgeKitError) {
    let ids = prompt.map(Int64.init)
    let status = withoutActuallyEscaping(onEvent) { escapable in
      let receiver = Receiver(escapable)
      return withExtendedLifetime(receiver) {
        withJSON(settings.options) { text in
          var wanted = ek_generate_options(
            struct_size: UInt32(MemoryLayout<ek_generate_options>.size), reserved: 0, seed: settings.seed,
            max_new_tokens: Int64(settings.maxNewTokens ?? 0), steps: Int64(settings.steps ?? 0), options: text)
          return call(ids, Int64(ids.count), &wanted, receive, Unmanaged.passUnretained(receiver).toOpaque())
        }
      }
    }
    if status != EK_STOPPED { try EdgeKitError.check(status) }
  }

  private static func withJSON<Result>(
    _ options: [String: JSONValue], _ body: (UnsafePointer<CChar>?) -> Result
  ) -> Result {
    guard !options.isEmpty else { return body(nil) }
    // Encoding fails for numbers alone that JSON has no form for; the core then says what is wrong with the text.
    return (json(options) ?? "not a finite number").withCString(body)
  }

  /// nil where a number is not finite.
  static func json(_ value: some Encodable) -> String? {
    (try? JSONEncoder().encode(value)).map { String(decoding: $0, as: UTF8.self) }
  }
}

/// What the event callback gets as its user data.
private final class Receiver {
  let onEvent: (Event) -> Bool

  init(_ onEvent: @escaping (Event) -> Bool) { self.onEvent = onEvent }
}

private func receive(_ event: UnsafePointer<ek_event>?, _ user: UnsafeMutableRawPointer?) -> Int32 {
  guard let event, let user, let converted = Event(event.pointee) else { return 0 }
  return Unmanaged<Receiver>.fromOpaque(user).takeUnretainedValue().onEvent(converted) ? 0 : 1
}

extension Event {
  /// nil for kinds that a later version of the library may add.
  fileprivate init?(_ event: ek_event) {
    let tokens = UnsafeBufferPointer(start: event.ids, count: Int(event.count)).map { Int($0) }
    switch event.kind {
    case EK_EVENT_DRAFT:
      let accepted = UnsafeBufferPointer(start: event.accepted, count: Int(event.count)).map { $0 != 0 }
      self = .draft(
        Draft(
          canvasIndex: Int(event.canvas_index), step: Int(event.step), start: Int(event.start), tokens: tokens,
          accepted: accepted))
    case EK_EVENT_COMMITTED:
      self = .committed(Committed(canvasIndex: Int(event.canvas_index), start: Int(event.start), tokens: tokens))
    case EK_EVENT_DONE:
      self = .done(event.statistics.map { GenerationStatistics($0.pointee) } ?? GenerationStatistics())
    default:
      return nil
    }
  }
}

extension GenerationStatistics {
  fileprivate init(_ found: ek_generation_statistics) {
    let reasons: [Int32: FinishReason] = [
      EK_FINISH_EOS: .endToken, EK_FINISH_LENGTH: .length, EK_FINISH_STOPPED: .stopped,
    ]
    finishReason = reasons[found.finish_reason]
    denoisingSteps = Int(found.denoising_steps)
    forwards = Int(found.forwards)
    projections = Int(found.projections)
    prefills = Int(found.prefills)
    committedTokens = Int(found.committed_tokens)
    canvases = Int(found.canvases)
  }
}
