import Foundation

/// A bundle on disk: a folder with `edgekit.json`, weights, programs and a tokenizer. Where Foundation is imported too,
/// write `EdgeKit.Bundle`.
public struct Bundle: Sendable {
  public static let manifestName = "edgekit.json"

  /// The folder.
  public let path: String
  public let manifest: Manifest
  /// nil in tests alone.
  let files: BundleFiles?

  init(path: String, manifest: Manifest) {
    self.path = path
    self.manifest = manifest
    files = nil
  }

  private init(folder: String) throws(EdgeKitError) {
    let files = try BundleFiles(path: folder)
    let name = URL(fileURLWithPath: folder).appendingPathComponent(Self.manifestName).path
    path = folder
    manifest = try Manifest(data: try files.manifest(), name: name)
    self.files = files
  }

  /// Reads the manifest alone, and compares it with its digest. Where the folder holds bundles for several systems
  /// (`bundles.json`), the bundle is the one for the newest system that this one is, among those whose format this build
  /// executes.
  ///
  /// Throws `openFailed`, `readFailed`, `checksumMismatch`, `malformedFile`, `unsupportedVersion`, or `unsupportedBundle`
  /// when none of several can run.
  public init(path: String) throws(EdgeKitError) { try self.init(path: path, on: .current) }

  init(path: String, on platform: Platform) throws(EdgeKitError) {
    let folder = URL(fileURLWithPath: path)
    let single = FileManager.default.fileExists(atPath: folder.appendingPathComponent(Self.manifestName).path)
    guard !single, let data = try BundleFiles.unlisted(BundleList.fileName, in: path, limit: BundleList.mostBytes)
    else {
      try self.init(folder: path)
      return
    }
    let list = try BundleList(data: data, name: folder.appendingPathComponent(BundleList.fileName).path)
    guard let entry = list.entry(on: platform) else {
      throw .unsupportedBundle(
        "\(path): holds \(list.requirements); \(platform.system) \(platform.version) with \(SegmentExecutor.listed(platform.formats)) "
          + "runs none of them; export one for it")
    }
    let chosen = folder.appendingPathComponent(entry.path)
    let manifest = chosen.appendingPathComponent(Self.manifestName)
    guard FileManager.default.fileExists(atPath: manifest.path) else {
      throw .openFailed(
        "\(manifest.path): cannot be read, though \(BundleList.fileName) names it; copy the folder again")
    }
    try self.init(folder: chosen.path)
  }

  /// The bytes of a file by its name in the manifest, such as "tokenizer/tokenizer.json", compared with the manifest.
  /// Throws `invalidArgument` for a file that is not listed, `checksumMismatch`, and the other errors of reading.
  public func contents(of name: String) throws(EdgeKitError) -> Data { try opened().read(name) }

  /// Throws where a test made up the bundle.
  func opened() throws(EdgeKitError) -> BundleFiles {
    guard let files else { throw .invalidState("\(path): is no bundle on disk") }
    return files
  }

  /// The folder of the tokenizer's files: one of their own, or the bundle itself. What reads them by their path should
  /// do so after `checkFiles()`; `contents(of:)` compares what it gives.
  public var tokenizerPath: String {
    manifest.files["tokenizer.json"] != nil ? path : url("tokenizer").path
  }

  /// A file of the bundle by its name in the manifest.
  public func url(_ name: String) -> URL { URL(fileURLWithPath: path).appendingPathComponent(name) }

  /// Compares every file with the manifest, which reads all of them but the flash file's runs: the core compares these
  /// when it reads them. `edgekit verify` compares more. Throws for the first that differs.
  public func checkFiles() throws(EdgeKitError) {
    for name in [manifest.weights.file] + manifest.files.keys.sorted() { try opened().check(name) }
  }
}
