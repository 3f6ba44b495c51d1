import Foundation

/// A bundle on disk: a folder with `edgekit.json`, weights, programs and a tokenizer. Where Foundation is imported too,
/// write `EdgeKit.Bundle`.
public struct Bundle: Sendable {
  public static let manifestName = "edgekit.json"

  /// The folder.
  public let path: String
  public let manifest: Manifest

  init(path: String, manifest: Manifest) {
    self.path = path
    self.manifest = manifest
  }

  /// Reads the manifest alone. Where the folder holds bundles for several systems (`bundles.json`), the bundle is the
  /// one for the newest system that this one is, among those whose format this build executes.
  ///
  /// Throws `openFailed`, `malformedFile`, `unsupportedVersion`, or `unsupportedBundle` when none of several can run.
  public init(path: String) throws(EdgeKitError) { try self.init(path: path, on: .current) }

  init(path: String, on platform: Platform) throws(EdgeKitError) {
    let folder = URL(fileURLWithPath: path)
    let file = folder.appendingPathComponent(Self.manifestName)
    if let data = FileManager.default.contents(atPath: file.path) {
      self.init(path: path, manifest: try Manifest(data: data, name: file.path))
      return
    }
    let several = folder.appendingPathComponent(BundleList.fileName)
    guard let data = FileManager.default.contents(atPath: several.path) else {
      throw .openFailed("\(file.path): cannot be read; give the folder of an exported bundle")
    }
    let list = try BundleList(data: data, name: several.path)
    guard let entry = list.entry(on: platform) else {
      throw .unsupportedBundle(
        "\(path): holds \(list.requirements); \(platform.system) \(platform.version) with \(SegmentExecutor.listed(platform.formats)) "
          + "runs none of them; export one for it")
    }
    let chosen = folder.appendingPathComponent(entry.path)
    let manifest = chosen.appendingPathComponent(Self.manifestName)
    guard let data = FileManager.default.contents(atPath: manifest.path) else {
      throw .openFailed(
        "\(manifest.path): cannot be read, though \(BundleList.fileName) names it; copy the folder again")
    }
    self.init(path: chosen.path, manifest: try Manifest(data: data, name: manifest.path))
  }

  /// The folder of the tokenizer's files: one of their own, or the bundle itself.
  public var tokenizerPath: String {
    manifest.files["tokenizer.json"] != nil ? path : url("tokenizer").path
  }

  /// A file of the bundle by its name in the manifest.
  public func url(_ name: String) -> URL { URL(fileURLWithPath: path).appendingPathComponent(name) }

  /// Whether every file is there at its size: enough to notice a download that was cut short. Checksums are the work of
  /// `edgekit verify`, and of the native engine, which checks every run that it reads.
  public func checkFiles() throws(EdgeKitError) {
    let weights = manifest.weights
    let entries = manifest.files.map { ($0.key, $0.value.size) } + [(weights.file, weights.size)]
    for (name, size) in entries.sorted(by: { $0.0 < $1.0 }) {
      let file = url(name).path
      let attributes = try? FileManager.default.attributesOfItem(atPath: file)
      guard let found = (attributes?[.size] as? NSNumber)?.int64Value else {
        throw .openFailed("\(file): is missing from the bundle; copy or export it again")
      }
      if found < size { throw .truncatedFile("\(file): has \(found) of \(size) bytes; copy it again") }
      if found > size {
        throw .malformedFile("\(file): has \(found) bytes, the manifest says \(size); copy it again")
      }
    }
  }
}
