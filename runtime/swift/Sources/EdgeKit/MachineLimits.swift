import CEdgeKit
import Foundation

/// What this machine can do at most, as reports of `edgekit bench` have it.
enum MachineLimits {
  /// Of each figure of the processor, and of the disk.
  static let processorSeconds = 0.3
  static let diskSeconds = 1.0

  /// Measures processor and memory, and the disk that the bundle in folder `path` is on. Nothing else should run meanwhile.
  static func measured(bundle path: String) async throws -> JSONValue {
    let thread = ConfinedThread(name: "edgekit limits") { () throws(EdgeKitError) in try found(path) }
    return try await withCheckedThrowingContinuation { continuation in
      thread.submit { continuation.resume(with: $0) }
    }
  }

  private static func found(_ path: String) throws(EdgeKitError) -> JSONValue {
    try NativeLibrary.check()
    var buffer = [CChar](repeating: 0, count: Int(EK_LIMITS_SIZE))
    var size: UInt64 = 0
    try EdgeKitError.check(
      ek_describe_limits(path, processorSeconds, diskSeconds, &buffer, UInt64(buffer.count), &size))
    let data = buffer.withUnsafeBytes { Data($0.prefix(Int(size))) }
    do { return try JSONDecoder().decode(JSONValue.self, from: data) } catch { throw .internalError("\(error)") }
  }
}
