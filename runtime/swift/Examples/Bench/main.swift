// Measures a bundle as `edgekit bench` does, and prints the report, which `edgekit bench --merge` tabulates with others.
//
//     edgekit-bench BUNDLE [--memory BYTES] [--resident BYTES] [--threads N] [--positions N] [--canvas N] [--seed N]
//       [--new-tokens N] [--steps N] [--option NAME=JSON] [--repetitions N] [--warmups N] [--forwards N] [--spans N]
//       [--no-probe] (--prompt-tokens N | ID ID …) > report.json
import EdgeKit
import Foundation

struct Arguments {
  var bundle = ""
  var prompt: [Int] = []
  var session = SessionOptions()
  var settings = GenerationSettings()
  var recording = BenchmarkOptions()
  var (repetitions, warmups, forwards) = (5, 1, 0)
  var probe = true

  init(_ words: [String]) throws {
    var words = words[...]
    func number<Number: LosslessStringConvertible>(_ name: String) throws -> Number {
      guard let word = words.popFirst(), let value = Number(word) else {
        throw EdgeKitError.invalidArgument("\(name) takes a number")
      }
      return value
    }
    guard let path = words.popFirst() else {
      throw EdgeKitError.invalidArgument("give the folder of a bundle, then token ids or --prompt-tokens")
    }
    bundle = path
    while let word = words.popFirst() {
      switch word {
      case "--memory": session.memoryBytes = try number(word) as UInt64
      case "--resident": session.residentBytes = try number(word) as UInt64
      case "--threads": session.threads = try number(word)
      case "--positions": session.positions = try number(word)
      case "--canvas": session.canvas = try number(word)
      case "--seed": settings.seed = try number(word)
      case "--new-tokens": settings.maxNewTokens = try number(word) as Int
      case "--steps": settings.steps = try number(word) as Int
      case "--option":
        let parts = (words.popFirst() ?? "").split(separator: "=", maxSplits: 1).map(String.init)
        guard parts.count == 2, let value = try? JSONDecoder().decode(JSONValue.self, from: Data(parts[1].utf8)) else {
          throw EdgeKitError.invalidArgument("--option takes NAME=JSON, such as temperature=0.7")
        }
        settings.options[parts[0]] = value
      case "--repetitions": repetitions = try number(word)
      case "--warmups": warmups = try number(word)
      case "--forwards": forwards = try number(word)
      case "--spans": recording.spans = try number(word)
      case "--no-probe": probe = false
      case "--prompt-tokens":
        let count: Int = try number(word)
        guard (1...1 << 22).contains(count) else { throw EdgeKitError.invalidArgument("\(word) takes 1 or more") }
        prompt = (0..<count).map { 5 + $0 * 7 % 251 }
      default:
        guard let id = Int(word) else { throw EdgeKitError.invalidArgument("'\(word)' is not a token id") }
        prompt.append(id)
      }
    }
  }
}

do {
  let given = try Arguments(Array(CommandLine.arguments.dropFirst()))
  let report = try await Benchmark.run(
    bundle: given.bundle, prompt: given.prompt, session: given.session, settings: given.settings,
    repetitions: given.repetitions, warmups: given.warmups, forwards: given.forwards, recording: given.recording,
    probe: given.probe)
  FileHandle.standardOutput.write(report + Data("\n".utf8))
} catch {
  FileHandle.standardError.write(Data("edgekit-bench: error: \(error)\n".utf8))
  exit(2)
}
