import Foundation
import XCTest

@testable import EdgeKit

/// Folders with several bundles: for iOS 27 (Core AI), 18 (Core ML), and any system (native).
final class BundleChoiceTests: XCTestCase {
  private func several() throws -> URL { try Fixtures().folder.appendingPathComponent("several") }

  private func chosen(_ system: String?, _ version: String, _ formats: Set<String>) throws -> String {
    let folder = try several()
    let found = try BundleChoice.folder(
      in: folder.path, on: Platform(system: system, version: version, formats: formats))
    XCTAssertTrue(found.hasPrefix(folder.path + "/"), found)
    return String(found.dropFirst(folder.path.count + 1))
  }

  func testTheFirstThatThisSystemRunsIsTaken() throws {
    let packages: Set<String> = ["coreml", "coreai"]
    for (system, version, formats, expected) in [
      ("ios", "27", packages, "coreai"), ("macos", "28.1.0", packages, "coreai"), ("ios", "26.9", packages, "coreml"),
      ("ios", "27", ["coreml"], "coreml"), ("ios", "17", packages.union(["native"]), "native"),
      ("ios", "27", ["native"], "native"), (nil, "", ["native"], "native"),
    ] as [(String?, String, Set<String>, String)] {
      XCTAssertEqual(try chosen(system, version, formats), expected, "\(version) \(formats)")
    }
  }

  func testWhatKeepsEachFromRunningIsSaid() throws {
    XCTAssertThrowsError(try chosen("ios", "17.5", ["coreml", "mlx"])) { error in
      guard case EdgeKitError.unsupportedBundle(let text) = error else { return XCTFail("\(error)") }
      for words in ["'coreai' is for 'coreai'", "'coreml' is for ios 18 and later", "coreml, mlx on ios 17.5"] {
        XCTAssertTrue(text.contains(words), text)
      }
      XCTAssertFalse(text.contains("\n"))
    }
  }

  func testAFolderOfOneBundleIsTheBundle() throws {
    let folder = try several().appendingPathComponent("native").path
    XCTAssertTrue(EdgeKit.Bundle.exists(at: folder))
    XCTAssertEqual(try BundleChoice.folder(in: folder, on: .current), folder)
  }

  func testAFolderWithoutBundlesIsTold() throws {
    let folder = try Fixtures().folder.path
    let nowhere = folder + "/nowhere"
    XCTAssertTrue(EdgeKit.Bundle.exists(at: try several().path))
    for path in [nowhere, ""] { XCTAssertFalse(EdgeKit.Bundle.exists(at: path)) }
    XCTAssertThrowsError(try EdgeKit.Bundle(path: nowhere)) { error in
      guard case EdgeKitError.openFailed = error else { return XCTFail("\(error)") }
    }
  }

  func testThisSystemIsAHost() throws {
    let current = Platform.current
    XCTAssertTrue(current.formats.contains("native"))
    XCTAssertFalse(current.version.isEmpty)
    XCTAssertEqual(
      try BundleChoice.folder(in: try several().path, on: Platform(system: nil, version: "", formats: ["native"])),
      try several().appendingPathComponent("native").path)
  }
}
