import CEdgeKit
import Foundation

/// What engines over the native core share.
enum NativeLibrary {
  /// Of the library, such as "0.1.0".
  static var version: String { String(cString: ek_version()) }

  /// Throws `unsupportedVersion` for a library of another ABI than the header's.
  static func check() throws(EdgeKitError) {
    guard ek_abi_version() == EK_ABI_VERSION else {
      throw .unsupportedVersion(
        "the native library has ABI version \(ek_abi_version()), this package was built for \(EK_ABI_VERSION); "
          + "build both from the same release")
    }
  }

  /// Runs `body` on the settings as the C ABI has them.
  static func withOptions<Result>(
    _ settings: GenerationSettings, _ body: (UnsafePointer<ek_generate_options>) -> Result
  ) -> Result {
    withJSON(settings.options) { text in
      var wanted = ek_generate_options(
        struct_size: UInt32(MemoryLayout<ek_generate_options>.size), reserved: 0, seed: settings.seed,
        max_new_tokens: Int64(settings.maxNewTokens ?? 0), steps: Int64(settings.steps ?? 0), options: text)
      return body(&wanted)
    }
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

extension GenerationStatistics {
  init(_ found: ek_generation_statistics) {
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
    seconds = found.seconds
  }
}
