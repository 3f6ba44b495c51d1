import Foundation
import XCTest

@testable import EdgeKit

/// Folders with bundles for several systems.
final class BundleListTests: XCTestCase {
  private static let three = """
    {"schema_version": 2, "bundles": [
      {"path": "coreai", "format": "coreai", "minimum_os": {"ios": "27", "macos": "27"}},
      {"path": "coreml-new", "format": "coreml", "minimum_os": {"ios": "26.4", "macos": "26.4"}},
      {"path": "coreml", "format": "coreml", "minimum_os": {"ios": "18", "macos": "15"}}], "files": {}}
    """

  private func list(_ text: String) throws -> BundleList { try BundleList(data: Data(text.utf8), name: "bundles.json") }

  private func platform(_ system: String, _ version: String, _ formats: Set<String>) throws -> Platform {
    Platform(system: system, version: try XCTUnwrap(Version(version)), formats: formats)
  }

  func testTheNewestThatThisSystemRunsIsTaken() throws {
    let list = try list(Self.three)
    let both: Set<String> = ["native", "coreml", "coreai"]
    for (system, version, formats, expected) in [
      ("ios", "27", both, "coreai"), ("ios", "27.0.1", both, "coreai"), ("ios", "28.1", both, "coreai"),
      ("ios", "26.9", both, "coreml-new"), ("ios", "26.4", both, "coreml-new"), ("ios", "26.3.9", both, "coreml"),
      ("ios", "26", both, "coreml"), ("ios", "18.0", both, "coreml"), ("ios", "17.9", both, nil),
      ("macos", "15", both, "coreml"), ("macos", "14.9", both, nil),
      // Built without an executor for it, the next.
      ("ios", "27", ["native", "coreml"], "coreml-new"), ("ios", "27", ["coreai"], "coreai"),
      ("ios", "26", ["coreai"], nil), ("ios", "27", ["native"], nil), ("linux", "27", both, nil),
    ] as [(String, String, Set<String>, String?)] {
      let found = list.entry(on: try platform(system, version, formats))
      XCTAssertEqual(found?.path, expected, "\(system) \(version) \(formats)")
    }
  }

  func testTheOrderOfTheListDoesNotMatter() throws {
    var list = try list(Self.three)
    list.bundles.reverse()
    XCTAssertEqual(list.entry(on: try platform("ios", "30", ["coreml", "coreai"]))?.path, "coreai")
  }

  func testAFolderIsTheBundleThatIsTaken() throws {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
    defer { try? FileManager.default.removeItem(at: folder) }
    try FileManager.default.createDirectory(
      at: folder.appendingPathComponent("coreml"), withIntermediateDirectories: true)
    try Data(Self.three.utf8).write(to: folder.appendingPathComponent("bundles.json"))
    let manifest = Data(minimalManifest.utf8)
    try manifest.write(to: folder.appendingPathComponent("coreml/edgekit.json"))
    let old = try platform("ios", "18.5", ["coreml", "coreai"])
    let bundle = try EdgeKit.Bundle(path: folder.path, on: old)
    XCTAssertEqual(bundle.path, folder.appendingPathComponent("coreml").path)
    // The folder of the one for this system is not there.
    XCTAssertThrowsError(try EdgeKit.Bundle(path: folder.path, on: try platform("ios", "27", ["coreai"]))) { error in
      guard case EdgeKitError.openFailed(let text) = error else { return XCTFail("\(error)") }
      XCTAssertTrue(text.contains("coreai/edgekit.json") && text.contains("bundles.json"), text)
    }
    XCTAssertThrowsError(try EdgeKit.Bundle(path: folder.path, on: try platform("macos", "14.2", ["coreml"]))) {
      error in
      guard case EdgeKitError.unsupportedBundle(let text) = error else { return XCTFail("\(error)") }
      for words in ["coreai (coreai, ios 27, macos 27)", "coreml (coreml, ios 18, macos 15)", "macos 14.2 with coreml"]
      {
        XCTAssertTrue(text.contains(words), text)
      }
      XCTAssertFalse(text.contains("\n"))
    }
    // A manifest beside the list: the folder is one bundle.
    try manifest.write(to: folder.appendingPathComponent("edgekit.json"))
    XCTAssertEqual(try EdgeKit.Bundle(path: folder.path, on: old).path, folder.path)
  }

  func testThisSystemIsAHost() throws {
    let current = Platform.current
    XCTAssertTrue(current.formats.contains("native"))
    XCTAssertGreaterThan(current.version, Version(parts: [0]))
    XCTAssertFalse(current.system.isEmpty)
  }

  func testWhatIsWrongIsNamed() throws {
    for (old, new, words) in [
      ("\"schema_version\": 2", "\"schema_version\": 3", "schema version 3"),
      ("\"path\": \"coreai\"", "\"path\": \"../coreai\"", "'../coreai'"),
      ("\"ios\": \"18\"", "\"ios\": \"18b\"", "'18b' is no version"),
      ("\"ios\": \"18\"", "\"ios\": \"\"", "'' is no version"),
      ("\"ios\": \"18\"", "\"ios\": \"99999999999999999999\"", "is no version"),
      ("\"ios\": \"18\"", "\"ios\": 18", "not a list of bundles"),
      ("\"bundles\"", "\"bundle\"", "not a list of bundles"), ("{\"schema", "{schema", "not a list of bundles"),
    ] {
      let text = Self.three.replacingOccurrences(of: old, with: new)
      XCTAssertNotEqual(text, Self.three)
      XCTAssertThrowsError(try list(text)) { error in
        let message = (error as? EdgeKitError)?.message ?? ""
        XCTAssertTrue(message.hasPrefix("bundles.json: ") && message.contains(words), "\(words): \(error)")
      }
    }
  }

  func testVersionsAreComparedByNumber() throws {
    for (less, more) in [("9", "10"), ("26.4", "26.10"), ("26", "26.0.1"), ("18.5", "26")] {
      let (left, right) = (try XCTUnwrap(Version(less)), try XCTUnwrap(Version(more)))
      XCTAssertLessThan(left, right)
      XCTAssertFalse(right < left)
    }
    XCTAssertEqual(Version("26"), Version("26.0"))
    for text in ["", "a", "1..2", "1.", "-1", "１"] { XCTAssertNil(Version(text), text) }
  }
}
