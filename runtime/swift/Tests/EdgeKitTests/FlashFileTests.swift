import Foundation
import XCTest

@testable import EdgeKit

/// Damage of a flash file is an error that names the file and the run, as Python names them.
final class FlashFileTests: XCTestCase {
  private struct Damaged: Decodable {
    var bundle: String
    var file: String
    var run: String
    var message: String
  }

  private func damaged() throws -> [Damaged] { try Fixtures().decode("damaged.json") }

  func testDamagedRunsAreNotGivenOut() throws {
    let all = try damaged()
    XCTAssertGreaterThan(all.count, 2)
    for each in all {
      let file = try FlashFile(path: each.file)
      for _ in 0..<2 {
        do throws(EdgeKitError) {
          _ = try file.load(each.run)
          XCTFail("no error for \(each.file)")
        } catch {
          XCTAssertEqual(error, .checksumMismatch(each.message))
        }
      }
      XCTAssertGreaterThan(try file.run(each.run).bytes, 0)
    }
  }

  /// Of a session whose weights stay, that is when it is opened; of one that reads them in every step, in a pass.
  func testDamagedRunsEndPasses() async throws {
    let segments = try Fixtures().decode("segment_generations.json", as: [String: RecordedGeneration].self)
    var seen = 0
    for (name, expected) in segments {
      let whole = try EdgeKit.Bundle(path: expected.bundle)
      guard case .mlx = whole.manifest.programs else { continue }
      let damaged = try XCTUnwrap(try damaged().first { $0.bundle == "\(expected.bundle)-damaged" })
      let bundle = try EdgeKit.Bundle(path: damaged.bundle)
      for limits in [WeightLimits(), WeightLimits(residentBytes: 0)] {
        let replay = Replay(try Recording(name))
        do {
          let session = try await Session(bundle: bundle) {
            try Segments(bundle, .functions(replay), nil) { _ in limits }
          }
          XCTAssertNotNil(limits.residentBytes, "it was opened with damaged weights")
          _ = try await collect(session.generate(expected.prompt, settings: expected.settings))
          XCTFail("no error")
        } catch let error as EdgeKitError {
          XCTAssertEqual(error, .checksumMismatch(damaged.message))
          seen += 1
        }
      }
    }
    XCTAssertEqual(seen % 2, 0)
  }

  func testRunsThatAreNotThereAndOtherFilesAreErrors() throws {
    let each = try XCTUnwrap(try damaged().first)
    let file = try FlashFile(path: each.file)
    XCTAssertThrowsError(try file.load("layers.99")) { error in
      guard case EdgeKitError.malformedFile(let text) = error else { return XCTFail("\(error)") }
      XCTAssertTrue(text.contains("layers.99") && text.contains(each.file), text)
    }
    XCTAssertThrowsError(try file.tableRows("layers.99", [0], hidden: 4))
    XCTAssertThrowsError(try FlashFile(path: each.bundle + "/nothing")) { error in
      guard case EdgeKitError.openFailed = error else { return XCTFail("\(error)") }
    }
    XCTAssertThrowsError(try FlashFile(path: each.bundle + "/edgekit.json")) { error in
      guard case EdgeKitError.malformedFile = error else { return XCTFail("\(error)") }
    }
  }

  func testRowsOutsideOfATableAndTablesOfAnotherWidthAreErrors() throws {
    let bundles: [String: String] = try Fixtures().decode("bundles.json")
    for path in bundles.values {
      let bundle = try EdgeKit.Bundle(path: path)
      let file = try FlashFile(bundle)
      let (table, hidden) = (bundle.manifest.model.tables.embedding, bundle.manifest.model.hiddenSize)
      let rows = table.tiles[0].count
      XCTAssertEqual(try file.tableRows(table.runs[0], [rows - 1, 0], hidden: hidden).count, 2 * hidden)
      XCTAssertEqual(try file.tableRows(table.runs[0], [], hidden: hidden), [])
      for (wanted, width) in [([rows], hidden), ([-1], hidden), ([0], hidden + 1)] {
        XCTAssertThrowsError(try file.tableRows(table.runs[0], wanted, hidden: width)) { error in
          guard case EdgeKitError.malformedFile(let text) = error else { return XCTFail("\(error)") }
          XCTAssertTrue(text.contains(table.runs[0]), text)
        }
      }
    }
  }
}
