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

  /// Reads the manifest alone, and compares it with its digest. Where the folder holds several bundles of a model
  /// (`bundles.json`), the bundle is the first there that runs on this system, among those whose format this build executes.
  ///
  /// Throws `openFailed`, `readFailed`, `checksumMismatch`, `malformedFile`, `unsupportedVersion`, or `unsupportedBundle`
  /// when none of several can run.
  public init(path: String) throws(EdgeKitError) { try self.init(path: path, on: .current) }

  init(path: String, on platform: Platform) throws(EdgeKitError) {
    try self.init(folder: BundleChoice.folder(in: path, on: platform))
  }

  /// Whether a folder holds a bundle, or several of a model, by the names of its files alone. What arrives is no bundle
  /// before `BundleFetch.finish`.
  public static func exists(at path: String) -> Bool { (try? BundleChoice.holdsBundle(path)) ?? false }

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
