import Foundation

/// `bundles.json`: bundles of one model in folders beside it, one for each format (flashload/bundle_set.py).
struct BundleList: Decodable, Equatable {
  static let fileName = "bundles.json"
  static let schemaVersion = 2
  static let mostBytes = 1 << 20

  struct Entry: Decodable, Equatable {
    /// Of the bundle's folder, in the list's.
    var path: String
    var format: String
    /// The first version of each system that runs the bundle; others do not.
    var minimumOS: [String: String]

    enum CodingKeys: String, CodingKey {
      case path, format
      case minimumOS = "minimum_os"
    }
  }

  var schemaVersion: Int
  var bundles: [Entry]

  enum CodingKeys: String, CodingKey {
    case schemaVersion = "schema_version"
    case bundles
  }

  /// `name` is that of the file, for messages. Throws `unsupportedVersion` or `malformedFile`.
  init(data: Data, name: String) throws(EdgeKitError) {
    struct Schema: Decodable {
      var schema_version: Int
    }
    do {
      // First, alone: the other parts are of this version's shape only when the version is this one.
      let version = try JSONDecoder().decode(Schema.self, from: data).schema_version
      guard version == Self.schemaVersion else {
        throw EdgeKitError.unsupportedVersion(
          "\(name): schema version \(version), this package reads \(Self.schemaVersion); update it or export the "
            + "bundles again")
      }
      self = try JSONDecoder().decode(BundleList.self, from: data)
    } catch let error as EdgeKitError {
      throw error
    } catch {
      throw .malformedFile("\(name): is not a list of bundles that this package reads; copy or export the folder again")
    }
    for entry in bundles {
      guard Manifest.isInside(entry.path) else {
        throw .malformedFile("\(name): '\(entry.path.prefix(80))' is not a plain relative path beside the list")
      }
      for version in entry.minimumOS.values where Version(version) == nil {
        throw .malformedFile("\(name): '\(version.prefix(40))' is no version; copy or export the folder again")
      }
    }
  }

  /// The bundle for the newest system among those that `platform` can run; of equal ones the first.
  func entry(on platform: Platform) -> Entry? {
    var best: (entry: Entry, minimum: Version)?
    for entry in bundles where platform.formats.contains(entry.format) {
      guard let minimum = entry.minimumOS[platform.system].flatMap(Version.init), minimum <= platform.version else {
        continue
      }
      if let best, best.minimum >= minimum { continue }
      best = (entry, minimum)
    }
    return best?.entry
  }

  /// What the bundles need, for a message.
  var requirements: String {
    let each = bundles.map { entry in
      let systems = entry.minimumOS.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" }
      return "\(entry.path) (\(([entry.format] + systems).joined(separator: ", ")))"
    }
    return each.isEmpty ? "none" : each.joined(separator: ", ")
  }
}

/// What decides which bundles can run.
struct Platform: Equatable {
  /// As manifests name systems: "ios", "macos".
  var system: String
  var version: Version
  /// Formats that the build executes.
  var formats: Set<String>

  static var current: Platform {
    #if os(iOS)
      let system = "ios"
    #elseif os(macOS)
      let system = "macos"
    #else
      let system = "linux"
    #endif
    let found = ProcessInfo.processInfo.operatingSystemVersion
    return Platform(
      system: system, version: Version(parts: [found.majorVersion, found.minorVersion, found.patchVersion]),
      formats: SegmentExecutor.formats)
  }
}

/// Numbers with dots between them; those that are left out are 0.
struct Version: Comparable, CustomStringConvertible {
  var parts: [Int]

  init(parts: [Int]) { self.parts = parts }

  /// nil where a part is no number.
  init?(_ text: String) {
    let found = text.split(separator: ".", omittingEmptySubsequences: false).map { part in
      part.allSatisfy { $0.isASCII && $0.isNumber } ? Int(part) : nil
    }
    let parts = found.compactMap { $0 }
    guard parts.count == found.count else { return nil }
    self.parts = parts
  }

  var description: String { parts.map(String.init).joined(separator: ".") }

  private func part(_ index: Int) -> Int { index < parts.count ? parts[index] : 0 }

  static func < (left: Version, right: Version) -> Bool {
    for index in 0..<max(left.parts.count, right.parts.count) where left.part(index) != right.part(index) {
      return left.part(index) < right.part(index)
    }
    return false
  }

  static func == (left: Version, right: Version) -> Bool { !(left < right) && !(right < left) }
}
