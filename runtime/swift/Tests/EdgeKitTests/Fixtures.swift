import Foundation
import XCTest

@testable import EdgeKit

/// What tests/apple/swift_fixtures.py writes from real bundles; tests/apple/test_swift.py names the folder in
/// EDGEKIT_SWIFT_FIXTURES. Tests that need it are skipped without.
struct Fixtures {
  let folder: URL

  init() throws {
    guard let path = ProcessInfo.processInfo.environment["EDGEKIT_SWIFT_FIXTURES"] else {
      throw XCTSkip("no fixtures: run tests/apple/test_swift.py")
    }
    folder = URL(fileURLWithPath: path)
  }

  func decode<Value: Decodable>(_ name: String, as type: Value.Type = Value.self) throws -> Value {
    try JSONDecoder().decode(type, from: Data(contentsOf: folder.appendingPathComponent(name)))
  }
}

/// A generation through the C ABI, as Python's ctypes had it.
struct RecordedGeneration: Decodable {
  var bundle: String
  var prompt: [Int]
  var seed: UInt64
  var maxNewTokens: Int
  var steps: Int
  var options: [String: JSONValue]
  var events: [RecordedEvent]
  var statistics: [String: JSONValue]

  enum CodingKeys: String, CodingKey {
    case bundle, prompt, seed
    case maxNewTokens = "max_new_tokens"
    case steps, options, events, statistics
  }

  var settings: GenerationSettings {
    GenerationSettings(
      seed: seed, maxNewTokens: maxNewTokens == 0 ? nil : maxNewTokens, steps: steps == 0 ? nil : steps,
      options: options)
  }
}

struct RecordedEvent: Codable, Equatable {
  var kind: String
  var canvas: Int
  var step: Int
  var start: Int
  var ids: [Int]
  var accepted: [Int]

  init(from decoder: any Decoder) throws {
    let container = try decoder.container(keyedBy: CodingKeys.self)
    kind = try container.decode(String.self, forKey: .kind)
    canvas = try container.decode(Int.self, forKey: .canvas)
    step = try container.decode(Int.self, forKey: .step)
    start = try container.decode(Int.self, forKey: .start)
    ids = try container.decode([Int].self, forKey: .ids)
    accepted = try container.decode([Int].self, forKey: .accepted)
  }

  /// nil for text, which the C ABI has no events of.
  init?(_ event: Event) {
    (kind, canvas, step, start, ids, accepted) = ("done", 0, 0, 0, [], [])
    switch event {
    case .draft(let draft):
      kind = "draft"
      (canvas, step, start, ids) = (draft.canvasIndex, draft.step, draft.start, draft.tokens)
      accepted = draft.accepted.map { $0 ? 1 : 0 }
    case .committed(let part):
      kind = "committed"
      (canvas, start, ids) = (part.canvasIndex, part.start, part.tokens)
    case .text: return nil
    case .done: break
    }
  }
}

/// Random events of answers, and what is to be drawn after each of them.
struct RecordedCanvases: Decodable {
  struct Drawn: Decodable {
    var event: RecordedEvent
    var tokens: [Int]
    var states: [Int]
    var partTexts: [String]
    var partStates: [Int]

    enum CodingKeys: String, CodingKey {
      case event, tokens, states
      case partTexts = "part_texts"
      case partStates = "part_states"
    }
  }

  /// Whose tokenizer it is.
  var bundle: String
  /// A text, and its tokens where it goes on behind another one.
  var text: String
  var behind: [Int]
  /// Tokens that have a text.
  var count: Int
  var answers: [[Drawn]]
}

extension RecordedEvent {
  var event: Event {
    switch kind {
    case "draft":
      .draft(Draft(canvasIndex: canvas, step: step, start: start, tokens: ids, accepted: accepted.map { $0 != 0 }))
    case "committed": .committed(Committed(canvasIndex: canvas, start: start, tokens: ids))
    default: .done(GenerationStatistics())
    }
  }
}

extension GenerationStatistics {
  /// What equal generations have in common, by the names of the C ABI.
  var plain: [String: JSONValue] {
    func integer(_ value: Int) -> JSONValue { .integer(Int64(value)) }
    return [
      "finish_reason": .string(finishReason?.rawValue ?? "none"), "denoising_steps": integer(denoisingSteps),
      "forwards": integer(forwards), "projections": integer(projections), "prefills": integer(prefills),
      "committed_tokens": integer(committedTokens), "canvases": integer(canvases),
    ]
  }
}
