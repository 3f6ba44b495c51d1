// Measures a bundle as `edgekit bench` does, and prints the report, which `edgekit bench --merge` tabulates with others.
//
//     edgekit-bench BUNDLE [--memory BYTES] [--resident BYTES] [--threads N] [--positions N] [--canvas N] [--seed N]
//       [--new-tokens N] [--steps N] [--option NAME=JSON] [--repetitions N] [--warmups N] [--forwards N] [--spans N]
//       [--no-probe] (--prompt-tokens N | ID ID …) > report.json
import EdgeKit
import ExampleArguments
import Foundation

do {
  var words = Words(CommandLine.arguments.dropFirst())
  var given = try Given(&words, needs: "token ids or --prompt-tokens")
  var recording = BenchmarkOptions()
  var (repetitions, warmups, forwards) = (5, 1, 0)
  var probe = true
  while let word = words.next() {
    switch word {
    case "--resident": given.session.residentBytes = try words.number(word) as UInt64
    case "--threads": given.session.threads = try words.number(word)
    case "--positions": given.session.positions = try words.number(word)
    case "--canvas": given.session.canvas = try words.number(word)
    case "--repetitions": repetitions = try words.number(word)
    case "--warmups": warmups = try words.number(word)
    case "--forwards": forwards = try words.number(word)
    case "--spans": recording.spans = try words.number(word)
    case "--no-probe": probe = false
    case "--prompt-tokens":
      let count: Int = try words.number(word)
      guard (1...1 << 22).contains(count) else { throw EdgeKitError.invalidArgument("\(word) takes 1 or more") }
      given.prompt = (0..<count).map { 5 + $0 * 7 % 251 }
    default: try given.take(word, from: &words)
    }
  }
  let report = try await Benchmark.run(
    bundle: given.bundle, prompt: given.prompt, session: given.session, settings: given.settings,
    repetitions: repetitions, warmups: warmups, forwards: forwards, recording: recording, probe: probe)
  FileHandle.standardOutput.write(report + Data("\n".utf8))
} catch {
  FileHandle.standardError.write(Data("edgekit-bench: error: \(error)\n".utf8))
  exit(2)
}
