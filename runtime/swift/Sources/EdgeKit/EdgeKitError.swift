import CEdgeKit
import Foundation

/// What can go wrong, by what a caller can do about it. Messages are one line of English for the user: what was found,
/// where, and what to do.
public enum EdgeKitError: Error, Equatable, Sendable {
  /// An option, a prompt or a length that the model does not take.
  case invalidArgument(String)
  /// Prompt and answer are longer than the model takes, or than its programs were exported for: ask for fewer tokens
  /// (`GenerationSettings.maxNewTokens`), shorten the prompt, or export with longer `--lengths`.
  case promptTooLong(String)
  case outOfMemory(String)
  case openFailed(String)
  case readFailed(String)
  case truncatedFile(String)
  /// A file was replaced or written while it was open.
  case fileChanged(String)
  case checksumMismatch(String)
  case malformedFile(String)
  case unsupportedVersion(String)
  /// The bundle is for another engine, or asks for something that this version does not do.
  case unsupportedBundle(String)
  /// The memory budget is too small; `sufficientBytes` would have been enough (0: unknown).
  case budgetExceeded(String, sufficientBytes: UInt64)
  /// Scores are NaN or infinite: the weights are broken.
  case notFinite(String)
  case invalidState(String)
  /// The session was closed.
  case closed(String)
  /// An engine of the system (Core ML, MLX) or of the application failed.
  case engineFailed(String)
  /// A file cannot be written, or the disk has no room for it.
  case writeFailed(String)
  /// A source of a bundle did not give what it was asked for: no server can be reached, or none has it.
  case fetchFailed(String)
  /// An error in the library: please report it.
  case internalError(String)

  /// The one line for the user.
  public var message: String {
    switch self {
    case .invalidArgument(let text), .promptTooLong(let text), .outOfMemory(let text), .openFailed(let text),
      .readFailed(let text), .truncatedFile(let text), .fileChanged(let text), .checksumMismatch(let text), .malformedFile(let text),
      .unsupportedVersion(let text), .unsupportedBundle(let text), .budgetExceeded(let text, _),
      .notFinite(let text), .invalidState(let text), .closed(let text), .engineFailed(let text),
      .writeFailed(let text), .fetchFailed(let text), .internalError(let text):
      return text
    }
  }
}

extension EdgeKitError: LocalizedError, CustomStringConvertible {
  public var errorDescription: String? { message }
  public var description: String { message }
}

extension EdgeKitError {
  /// The error of a status of the C ABI. For the thread that made the failing call: its message is that thread's.
  init(status: ek_status) {
    let last = String(cString: ek_last_error())
    let text = last.isEmpty ? String(cString: ek_status_message(status)) : last
    switch status {
    case EK_INVALID_ARGUMENT, EK_INVALID_PROMPT: self = .invalidArgument(text)
    case EK_PROMPT_TOO_LONG: self = .promptTooLong(text)
    case EK_OUT_OF_MEMORY: self = .outOfMemory(text)
    case EK_OPEN_FAILED: self = .openFailed(text)
    case EK_READ_FAILED: self = .readFailed(text)
    case EK_TRUNCATED_FILE: self = .truncatedFile(text)
    case EK_FILE_CHANGED: self = .fileChanged(text)
    case EK_CHECKSUM_MISMATCH: self = .checksumMismatch(text)
    case EK_MALFORMED_FILE: self = .malformedFile(text)
    case EK_UNSUPPORTED_VERSION: self = .unsupportedVersion(text)
    case EK_UNSUPPORTED_BUNDLE: self = .unsupportedBundle(text)
    case EK_BUDGET_EXCEEDED: self = .budgetExceeded(text, sufficientBytes: ek_last_error_bytes())
    case EK_NOT_FINITE: self = .notFinite(text)
    case EK_INVALID_STATE: self = .invalidState(text)
    case EK_ENGINE_FAILED: self = .engineFailed(text)
    case EK_WRITE_FAILED: self = .writeFailed(text)
    case EK_FETCH_FAILED: self = .fetchFailed(text)
    default: self = .internalError(text)
    }
  }

  /// Whatever a model, an executor or a closure of the application threw.
  init(_ error: any Error) {
    self = error as? EdgeKitError ?? .engineFailed("\(error)")
  }

  /// Throws unless `status` is EK_OK.
  static func check(_ status: ek_status) throws(EdgeKitError) {
    if status != EK_OK { throw EdgeKitError(status: status) }
  }
}
