import Foundation
import XCTest

@testable import EdgeKit

/// Gives the files of a folder; `breaks`: of the first part of the weights only the beginning at first.
private struct FolderTransport: FetchTransport {
  var requestBytes: UInt64? = 65536
  let folder: URL
  var breaks = false

  func send(_ request: FetchRequest, to address: String, of fetch: BundleFetch) async throws {
    let data = try Data(contentsOf: folder.appendingPathComponent(request.name))
    let end = request.bytes == 0 ? data.count : Int(request.offset + request.bytes)
    let part = data[Int(request.offset)..<end]
    if breaks && request.offset == 0 && request.bytes > 1000 {
      guard try await fetch.write(request, part.prefix(1000)) else { return }
      throw FetchTrouble("it broke")
    }
    _ = try await fetch.write(request, part)
  }
}

/// Bundles that arrive. The core's own tests are tests/runtime/test_fetch.py.
final class FetchTests: XCTestCase {
  private var scratch = URL(fileURLWithPath: "")

  override func setUpWithError() throws {
    scratch = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
    try FileManager.default.createDirectory(at: scratch, withIntermediateDirectories: true)
  }

  override func tearDownWithError() throws { try FileManager.default.removeItem(at: scratch) }

  private func bundle() throws -> URL {
    let recorded: [RecordedGeneration] = try Fixtures().decode("generations.json")
    return URL(fileURLWithPath: try XCTUnwrap(recorded.first).bundle)
  }

  private func fetch(_ target: String, for transport: FolderTransport) throws -> BundleFetch {
    try BundleFetch(folder: target, options: FetchOptions(sources: ["a folder"]), for: transport)
  }

  func testABundleArrivesWhole() async throws {
    let served = try bundle()
    let target = scratch.appendingPathComponent("bundle").path
    for breaks in [true, false] {
      let transport = FolderTransport(folder: served, breaks: breaks)
      let fetch = try self.fetch(target, for: transport)
      try await fetch.run(over: transport)
      try await fetch.finish()
      try EdgeKit.Bundle(path: target).checkFiles()
      if breaks { try FileManager.default.removeItem(atPath: target) }
    }
    let again = try self.fetch(target, for: FolderTransport(folder: served))
    try await again.run(over: FolderTransport(folder: served))
    let progress = try await again.progress()
    XCTAssertTrue(progress.isCurrent)
  }

  func testTheFolderIsOneFetchs() async throws {
    let target = scratch.appendingPathComponent("bundle").path
    let transport = FolderTransport(folder: try bundle())
    let fetch = try self.fetch(target, for: transport)
    XCTAssertThrowsError(try self.fetch(target, for: transport)) { error in
      guard case EdgeKitError.invalidState = error else { return XCTFail("\(error)") }
    }
    try await fetch.discard()
  }

  func testACancelledFetchIsGoneOnWith() async throws {
    let served = try bundle()
    let target = scratch.appendingPathComponent("bundle").path
    do {
      let fetch = try self.fetch(target, for: FolderTransport(folder: served))
      let task = Task { try await fetch.run(over: FolderTransport(folder: served), connections: 1) }
      task.cancel()
      do {
        try await task.value
      } catch {
        XCTAssertTrue(error is CancellationError, "\(error)")
      }
    }
    let fetch = try self.fetch(target, for: FolderTransport(folder: served))
    try await fetch.run(over: FolderTransport(folder: served))
    try await fetch.finish()
    try EdgeKit.Bundle(path: target).checkFiles()
  }

  func testAPausedFetchRunsAgain() async throws {
    let target = scratch.appendingPathComponent("bundle").path
    let transport = FolderTransport(folder: try bundle())
    let fetch = try self.fetch(target, for: transport)
    await fetch.pause()  // nothing runs
    // From its own progress, which is told between two requests.
    let here = try await fetch.run(over: transport, connections: 1) { _ in Task { await fetch.pause() } }
    let open = try await fetch.progress()
    if !here { XCTAssertLessThan(open.wholeBytes, open.totalBytes + 1) }
    let all = try await fetch.run(over: transport)
    XCTAssertTrue(all)
    try await fetch.finish()
    try EdgeKit.Bundle(path: target).checkFiles()
  }

  func testARequestMayBeGivenBack() async throws {
    let target = scratch.appendingPathComponent("bundle").path
    let fetch = try self.fetch(target, for: FolderTransport(folder: try bundle()))
    for _ in 0..<20 {
      guard case .ask(let request) = try await fetch.next() else { return XCTFail("nothing is asked for") }
      XCTAssertEqual([request.waitMilliseconds, request.patienceMilliseconds], [0, 30_000])
      try await fetch.giveBack(request)
    }
  }

  func testRequestsAreEncoded() throws {
    let part = try URLRequest(below: "https://host/a/", name: "b c/naïve #1%.txt", offset: 5, bytes: 10)
    XCTAssertEqual(part.url?.absoluteString, "https://host/a/b%20c/na%C3%AFve%20%231%25.txt")
    XCTAssertEqual(part.value(forHTTPHeaderField: "Range"), "bytes=5-14")
    XCTAssertEqual(part.value(forHTTPHeaderField: "Accept-Encoding"), "identity")
    XCTAssertNil(try URLRequest(below: "https://host/a", name: "b", offset: 0, bytes: 0).value(forHTTPHeaderField: "Range"))
    for odd in ["", "llada", "ftp://a/b", "file:///etc"] {
      XCTAssertThrowsError(try URLRequest(below: odd, name: "b", offset: 0, bytes: 0))
    }
  }

  func testFilesOfFinishedTasksAreFoundAgain() throws {
    let folder = scratch.appendingPathComponent("kept")
    let file = scratch.appendingPathComponent("came")
    let first = try BackgroundDownloads(folder: folder)
    try Data("abc".utf8).write(to: file)
    try first.keep(file, name: "a folder/naïve #1%.txt", offset: 7, bytes: 3)
    let found = try XCTUnwrap(try BackgroundDownloads(folder: folder).found().first)
    XCTAssertEqual(found.name, "a folder/naïve #1%.txt")
    XCTAssertEqual([found.offset, found.bytes, found.end], [7, 3, 10])
    first.remove(found.file)
    XCTAssertTrue(first.found().isEmpty)
    let part = BackgroundPart(address: "https://host", name: "a \"b\"", offset: 1, bytes: 2)
    XCTAssertEqual(BackgroundPart(text: part.text), part)
    XCTAssertNil(BackgroundPart(text: "of something else"))
    XCTAssertNil(BackgroundPart(text: nil))
  }
}
