import XCTest

@testable import EdgeKit

final class ManifestTests: XCTestCase {
  /// Nothing of a real manifest is lost: what is decoded and encoded again holds the same values.
  func testRealManifestsSurviveARoundTrip() throws {
    let names: [String: String] = try Fixtures().decode("bundles.json")
    XCTAssertGreaterThan(names.count, 2)
    for (format, path) in names {
      let bundle = try EdgeKit.Bundle(path: path)
      XCTAssertEqual(bundle.manifest.programs.format, format)
      let data = try Data(contentsOf: bundle.url(EdgeKit.Bundle.manifestName))
      let original = try JSONDecoder().decode(JSONValue.self, from: data)
      let again = try JSONDecoder().decode(JSONValue.self, from: JSONEncoder().encode(bundle.manifest))
      XCTAssertEqual(plain(again), plain(original), format)
      try bundle.checkFiles()
      let tokenizer = URL(fileURLWithPath: bundle.tokenizerPath).appendingPathComponent("tokenizer.json").path
      XCTAssertTrue(FileManager.default.fileExists(atPath: tokenizer), tokenizer)
    }
  }

  /// Numbers in single precision, as the model has them; no members that are null.
  private func plain(_ value: JSONValue) -> JSONValue {
    switch value {
    case .integer(let number): .number(Double(Float(number)))
    case .number(let number): .number(Double(Float(number)))
    case .array(let values): .array(values.map(plain))
    case .object(let members): .object(members.filter { $0.value != .null }.mapValues(plain))
    default: value
    }
  }

  func testFilesThatAreMissingOrCutShortAreNoticed() throws {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
    try FileManager.default.createDirectory(
      at: folder.appendingPathComponent("tokenizer"), withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(at: folder) }
    try Data(minimalManifest.utf8).write(to: folder.appendingPathComponent("edgekit.json"))
    try Data(repeating: 0, count: 10).write(to: folder.appendingPathComponent("weights.safetensors"))
    let bundle = try EdgeKit.Bundle(path: folder.path)
    let tokenizer = bundle.url("tokenizer/tokenizer.json")
    XCTAssertThrowsError(try bundle.checkFiles()) {
      guard case EdgeKitError.openFailed = $0 else { return XCTFail("\($0)") }
    }
    try Data(repeating: 0, count: 2).write(to: tokenizer)
    XCTAssertThrowsError(try bundle.checkFiles()) {
      guard case EdgeKitError.truncatedFile = $0 else { return XCTFail("\($0)") }
    }
    try Data(repeating: 0, count: 4).write(to: tokenizer)
    XCTAssertThrowsError(try bundle.checkFiles()) {
      guard case EdgeKitError.malformedFile = $0 else { return XCTFail("\($0)") }
    }
    try Data(repeating: 1, count: 3).write(to: tokenizer)
    XCTAssertThrowsError(try bundle.checkFiles()) {
      guard case EdgeKitError.checksumMismatch = $0 else { return XCTFail("\($0)") }
    }
    try Data(repeating: 0, count: 3).write(to: tokenizer)
    try bundle.checkFiles()
    XCTAssertEqual(try bundle.contents(of: "tokenizer/tokenizer.json"), Data(repeating: 0, count: 3))
    XCTAssertThrowsError(try bundle.contents(of: "edgekit.json")) {
      guard case EdgeKitError.invalidArgument = $0 else { return XCTFail("\($0)") }
    }
    let edited = minimalManifest.replacingOccurrences(of: "\"hidden_size\": 4", with: "\"hidden_size\": 8")
    try Data(edited.utf8).write(to: folder.appendingPathComponent("edgekit.json"))
    XCTAssertThrowsError(try EdgeKit.Bundle(path: folder.path)) {
      guard case EdgeKitError.checksumMismatch = $0 else { return XCTFail("\($0)") }
    }
    XCTAssertEqual(bundle.tokenizerPath, bundle.url("tokenizer").path)
  }

  func testWhatIsWrongIsNamed() throws {
    let cases: [(String, String, String)] = [
      ("\"schema_version\": 2", "\"schema_version\": 3", "schema version 3"),
      ("\"hidden_size\": 4", "\"hidden_size\": \"4\"", "model.hidden_size"),
      ("\"vocab_size\": 10, ", "", "model.vocab_size is missing"),
      ("\"kv_heads\": 1, ", "", "layers.0.kv_heads is missing"),
      ("\"weights.safetensors\"", "\"../weights.safetensors\"", "'../weights.safetensors'"),
      ("\"tokenizer/tokenizer.json\"", "\"/etc/passwd\"", "'/etc/passwd'"),
      ("\"tokenizer/tokenizer.json\"", "\"a\\\\b\"", "plain relative path"),
      ("\"starts\": [0]", "\"starts\": [1]", "table embedding"),
      ("\"rope\": \"full\"", "\"rope\": \"other\"", "rope 'other'"),
      ("\"schema_version\"", "\"version\"", "schema_version is missing"),
      ("{\n  \"sha256\"", "\"sha256\"", "not valid JSON"),
    ]
    for (old, new, words) in cases {
      let text = minimalManifest.replacingOccurrences(of: old, with: new)
      XCTAssertNotEqual(text, minimalManifest)
      XCTAssertThrowsError(try Manifest(data: Data(text.utf8), name: "edgekit.json")) { error in
        let message = (error as? EdgeKitError)?.message ?? ""
        XCTAssertTrue(message.hasPrefix("edgekit.json: ") && message.contains(words), "\(words): \(error)")
      }
    }
  }
}
