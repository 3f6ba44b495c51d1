// Runs a bundle on token ids and prints its events, a JSON object a line. The bundle is of any format that this build
// executes: native everywhere, coreml and coreai on Apple's systems, mlx with the module Cmlx.
//
//     edgekit-generate BUNDLE [--seed N] [--new-tokens N] [--steps N] [--memory BYTES] [--option NAME=JSON] ID ID …
import EdgeKit
import Foundation

struct Arguments {
  var bundle = ""
  var prompt: [Int] = []
  var settings = GenerationSettings()
  var memoryBytes: UInt64?

  init(_ words: [String]) throws {
    var words = words[...]
    func number<Number: LosslessStringConvertible>(_ name: String) throws -> Number {
      guard let word = words.popFirst(), let value = Number(word) else {
        throw EdgeKitError.invalidArgument("\(name) takes a number")
      }
      return value
    }
    guard let path = words.popFirst() else {
      throw EdgeKitError.invalidArgument("give the folder of a bundle, then token ids")
    }
    bundle = path
    while let word = words.popFirst() {
      switch word {
      case "--seed": settings.seed = try number(word)
      case "--new-tokens": settings.maxNewTokens = try number(word) as Int
      case "--steps": settings.steps = try number(word) as Int
      case "--memory": memoryBytes = try number(word) as UInt64
      case "--option":
        let parts = (words.popFirst() ?? "").split(separator: "=", maxSplits: 1).map(String.init)
        guard parts.count == 2, let value = try? JSONDecoder().decode(JSONValue.self, from: Data(parts[1].utf8)) else {
          throw EdgeKitError.invalidArgument("--option takes NAME=JSON, such as temperature=0.7")
        }
        settings.options[parts[0]] = value
      default:
        guard let id = Int(word) else { throw EdgeKitError.invalidArgument("'\(word)' is not a token id") }
        prompt.append(id)
      }
    }
  }
}

func line(_ event: Event) -> [String: Any] {
  switch event {
  case .draft(let draft):
    return [
      "event": "draft", "canvas": draft.canvasIndex, "step": draft.step, "start": draft.start,
      "ids": draft.tokens, "accepted": draft.accepted.map { $0 ? 1 : 0 },
    ]
  case .committed(let part):
    return ["event": "committed", "canvas": part.canvasIndex, "start": part.start, "ids": part.tokens]
  case .done(let found):
    return [
      "event": "done", "finish_reason": found.finishReason?.rawValue ?? "none",
      "denoising_steps": found.denoisingSteps, "forwards": found.forwards, "projections": found.projections,
      "prefills": found.prefills, "committed_tokens": found.committedTokens, "canvases": found.canvases,
    ]
  }
}

do {
  let arguments = try Arguments(Array(CommandLine.arguments.dropFirst()))
  let session = try await Session(
    path: arguments.bundle, options: SessionOptions(memoryBytes: arguments.memoryBytes))
  for try await event in session.generate(arguments.prompt, settings: arguments.settings) {
    let data = try JSONSerialization.data(withJSONObject: line(event), options: [.sortedKeys])
    print(String(decoding: data, as: UTF8.self))
  }
} catch {
  FileHandle.standardError.write(Data("edgekit-generate: error: \(error)\n".utf8))
  exit(2)
}
