import Foundation
import Synchronization
import XCTest

@testable import EdgeKit

/// An engine that a test lets step by step.
final class FakeEngine: Engine {
  /// What the test sees and does, from its own tasks.
  final class Remote: Sendable {
    private struct State {
      var generations = 0
      var eventsGiven = 0
      var idles = 0
      var wake: (@Sendable () -> Void)?
      var isReleased = false
      var ranOnMainThread = false
    }

    private let state = Mutex(State())
    private let steps = DispatchSemaphore(value: 0)

    var generations: Int { state.withLock { $0.generations } }
    var eventsGiven: Int { state.withLock { $0.eventsGiven } }
    var idles: Int { state.withLock { $0.idles } }
    var isReleased: Bool { state.withLock { $0.isReleased } }
    var ranOnMainThread: Bool { state.withLock { $0.ranOnMainThread } }

    /// What a source of memory pressure does.
    func relieve() { state.withLock { $0.wake }?() }

    /// Lets the engine compute so many steps.
    func allow(_ count: Int) { for _ in 0..<count { steps.signal() } }

    fileprivate func began() {
      state.withLock {
        $0.generations += 1
        $0.ranOnMainThread = $0.ranOnMainThread || Thread.isMainThread
      }
    }
    fileprivate func waitForStep() { steps.wait() }
    fileprivate func gave() { state.withLock { $0.eventsGiven += 1 } }
    fileprivate func idle() { state.withLock { $0.idles += 1 } }
    fileprivate func listen(_ wake: @escaping @Sendable () -> Void) { state.withLock { $0.wake = wake } }
    fileprivate func released() { state.withLock { $0.isReleased = true } }
  }

  private let remote: Remote
  private let stepCount: Int

  init(_ remote: Remote, steps: Int) {
    self.remote = remote
    stepCount = steps
  }

  deinit { remote.released() }

  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError) {
    remote.began()
    if prompt.isEmpty { throw .invalidArgument("no prompt") }
    for step in 1...stepCount {
      remote.waitForStep()
      remote.gave()
      let draft = Draft(canvasIndex: 0, step: step, start: 0, tokens: prompt, accepted: prompt.map { _ in false })
      if !onEvent(.draft(draft)) { return }
    }
    if !onEvent(.committed(Committed(canvasIndex: 0, start: 0, tokens: prompt))) { return }
    _ = onEvent(.done(GenerationStatistics()))
  }

  func info() throws(EdgeKitError) -> SessionInfo {
    SessionInfo(
      threads: 1, vocabulary: 10, hiddenSize: 4, prefixLength: 0, canvasLength: nil, maxPositions: nil,
      causalPrefix: false, roleHead: false)
  }

  func statistics() throws(EdgeKitError) -> SessionStatistics {
    SessionStatistics(
      ioMode: "", pinnedBytes: 0, ringBytes: 0, streamedBytesPerStep: 0, bytesRead: 0, ioSeconds: 0, ioWaitSeconds: 0,
      passSeconds: 0)
  }

  func idle() throws(EdgeKitError) { remote.idle() }
  func whenRelieved(_ wake: @escaping @Sendable () -> Void) { remote.listen(wake) }
}

/// A session over a fake engine.
func fakeSession(_ remote: FakeEngine.Remote, steps: Int = 5) async throws -> Session {
  let manifest = try Manifest(data: Data(minimalManifest.utf8), name: "edgekit.json")
  return try await Session(
    bundle: EdgeKit.Bundle(path: "fake", manifest: manifest), engine: { FakeEngine(remote, steps: steps) })
}

/// Whether the condition holds within a few seconds.
func eventually(
  isolation: isolated (any Actor)? = #isolation, _ condition: () async -> Bool
) async -> Bool {
  for _ in 0..<1000 {
    if await condition() { return true }
    try? await Task.sleep(for: .milliseconds(10))
  }
  return false
}

/// Sealed, with entries for files of zeros.
let minimalManifest = """
  {
    "sha256": "33e264b70d4c4e23d6ed569c3217a99b50e7dbe04a0e696e866c16dcacb7bd6d",
    "schema_version": 2, "model": {"family": "llada", "hidden_size": 4, "vocab_size": 10, "embedding_scale": 1.0,
     "softcap": 0.0, "shift_logits": false, "causal_prefix": false, "self_conditioning": false, "canvas_length": null,
     "ropes": {"full": [1.0, 0.5]}, "tables": {"embedding": {"runs": ["embedding.0"], "starts": [0], "rows": 10, "bits": 8}},
     "config": {}}, "programs": {"format": "native", "layout": "native-1", "entries": {}},
     "layers": [{"program": "full", "run": "layers.0", "experts": [], "kv_heads": 1, "head_dim": 4, "rope": "full",
     "window": null}], "sampler": {"name": "llada", "config": {}}, "quantization": {},
     "weights": {"file": "weights.safetensors", "size": 10, "sha256": "01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca",
     "header_size": 8, "header_xxh3": "c77b3abb6f87acd9"},
     "files": {"tokenizer/tokenizer.json": {"size": 3, "sha256": "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c",
     "xxh3": "eb5d658bb22f286b"}}, "provenance": {}}
  """
