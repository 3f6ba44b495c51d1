// Runs a bundle on token ids and prints its events, a JSON object a line. The bundle is of any format that this build
// executes: native everywhere, coreml and coreai on Apple's systems, mlx with the module Cmlx.
//
//     edgekit-generate BUNDLE [--seed N] [--new-tokens N] [--steps N] [--memory BYTES] [--option NAME=JSON] ID ID …
import EdgeKit
import ExampleArguments
import Foundation

/// nil for text, which tokens stand for here.
func line(_ event: Event) -> [String: Any]? {
  switch event {
  case .draft(let draft):
    return [
      "event": "draft", "canvas": draft.canvasIndex, "step": draft.step, "start": draft.start,
      "ids": draft.tokens, "accepted": draft.accepted.map { $0 ? 1 : 0 },
    ]
  case .committed(let part):
    return ["event": "committed", "canvas": part.canvasIndex, "start": part.start, "ids": part.tokens]
  case .text: return nil
  case .done(let found):
    return [
      "event": "done", "finish_reason": found.finishReason?.rawValue ?? "none",
      "denoising_steps": found.denoisingSteps, "forwards": found.forwards, "projections": found.projections,
      "prefills": found.prefills, "committed_tokens": found.committedTokens, "canvases": found.canvases,
      "seconds": found.seconds,
    ]
  }
}

do {
  var words = Words(CommandLine.arguments.dropFirst())
  var given = try Given(&words, needs: "token ids")
  while let word = words.next() { try given.take(word, from: &words) }
  let session = try await Session(path: given.bundle, options: given.session)
  for try await event in session.generate(given.prompt, settings: given.settings) {
    guard let object = line(event) else { continue }
    let data = try JSONSerialization.data(withJSONObject: object, options: [.sortedKeys])
    print(String(decoding: data, as: UTF8.self))
  }
} catch {
  FileHandle.standardError.write(Data("edgekit-generate: error: \(error)\n".utf8))
  exit(2)
}
