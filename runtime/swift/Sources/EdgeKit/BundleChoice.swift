import CEdgeKit
import Foundation

/// What is in a folder, and which bundle of several there is to be opened, as the native library says.
enum BundleChoice {
  /// Whether the folder holds a bundle, or several.
  static func holdsBundle(_ folder: String) throws(EdgeKitError) -> Bool {
    try NativeLibrary.check()
    var kind: Int32 = EK_FOLDER_OTHER
    try EdgeKitError.check(ek_folder_look(folder, &kind))
    return kind != EK_FOLDER_OTHER
  }

  /// The folder itself where it is a bundle, or that of the first of several which `platform` runs. Throws `openFailed`,
  /// `malformedFile`, `unsupportedVersion`, `checksumMismatch`, the errors of reading, and `unsupportedBundle` when none can
  /// run.
  static func folder(in folder: String, on platform: Platform) throws(EdgeKitError) -> String {
    try NativeLibrary.check()
    let formats = platform.formats.sorted().map { copied($0) }
    let system = platform.system.map { copied($0) }
    let version = platform.system.map { _ in copied(platform.version) }
    defer {
      for text in formats { text.deallocate() }
      system?.deallocate()
      version?.deallocate()
    }
    var chosen = Data()
    var size: UInt64 = 0
    let status = formats.map { Optional(UnsafePointer($0)) }.withUnsafeBufferPointer { pointers in
      var wanted = ek_choose_options(
        struct_size: UInt32(MemoryLayout<ek_choose_options>.size), format_count: Int32(clamping: formats.count),
        formats: pointers.baseAddress, system: system, system_version: version, listed: 0, reserved: 0)
      let status = ek_bundle_choose(folder, &wanted, nil, 0, &size)
      guard status == EK_OK else { return status }
      chosen = Data(count: Int(size))
      return chosen.withUnsafeMutableBytes {
        ek_bundle_choose(folder, &wanted, $0.bindMemory(to: CChar.self).baseAddress, UInt64($0.count), &size)
      }
    }
    try EdgeKitError.check(status)
    return String(decoding: chosen, as: UTF8.self)
  }
}
