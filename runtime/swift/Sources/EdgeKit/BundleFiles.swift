import CEdgeKit
import Foundation

/// The files of a bundle as the native library gives them: each is compared with the manifest first, and the manifest
/// with its own digest. A file that the manifest does not list cannot be read.
final class BundleFiles: Sendable {
  // Different threads may use it at the same time.
  private nonisolated(unsafe) let handle: OpaquePointer

  /// Reads and checks the manifest alone. Throws `openFailed`, `readFailed`, `checksumMismatch`, `malformedFile`,
  /// `unsupportedVersion`.
  init(path: String) throws(EdgeKitError) {
    try NativeLibrary.check()
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_bundle_open(path, &opened))
    guard let opened else { throw .internalError("ek_bundle_open gave no bundle") }
    handle = opened
  }

  deinit { ek_bundle_close(handle) }

  func manifest() throws(EdgeKitError) -> Data {
    var text: UnsafePointer<CChar>?
    var size: UInt64 = 0
    try EdgeKitError.check(ek_bundle_manifest(handle, &text, &size))
    guard let text else { throw .internalError("ek_bundle_manifest gave no text") }
    return Data(bytes: text, count: Int(size))
  }

  /// Throws `invalidArgument` for a file that is not listed, and the errors of reading.
  func read(_ name: String) throws(EdgeKitError) -> Data {
    var size: UInt64 = 0
    try EdgeKitError.check(ek_bundle_read_file(handle, name, nil, 0, &size))
    // Never empty: a buffer without a place would ask for the size again.
    var data = Data(count: Int(size) + 1)
    try EdgeKitError.check(
      data.withUnsafeMutableBytes { ek_bundle_read_file(handle, name, $0.baseAddress, size, &size) })
    return data.prefix(Int(size))
  }

  /// For files that something else opens by their path; of the weights it compares the header. Throws as `read`.
  func check(_ name: String) throws(EdgeKitError) { try EdgeKitError.check(ek_bundle_check_file(handle, name)) }
}
