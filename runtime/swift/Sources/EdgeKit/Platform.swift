import Foundation

/// What decides which bundles of several can run.
struct Platform: Equatable {
  /// As bundles.json names systems, "ios" or "macos"; nil for others, which it does not name.
  var system: String?
  /// Numbers with dots between them.
  var version: String
  /// Formats that the build executes.
  var formats: Set<String>

  static var current: Platform {
    #if os(iOS)
      let system: String? = "ios"
    #elseif os(macOS)
      let system: String? = "macos"
    #else
      let system: String? = nil
    #endif
    let found = ProcessInfo.processInfo.operatingSystemVersion
    return Platform(
      system: system, version: "\(found.majorVersion).\(found.minorVersion).\(found.patchVersion)",
      formats: SegmentExecutor.formats)
  }
}
