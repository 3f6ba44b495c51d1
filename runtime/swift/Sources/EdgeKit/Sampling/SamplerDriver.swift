/// Runs samplers over a model: does what they ask, and passes on what they tell.
final class SamplerDriver {
  let denoiser: any Denoiser
  /// In passes.
  private(set) var seconds = 0.0

  init(_ denoiser: any Denoiser) { self.denoiser = denoiser }

  /// Until the sampler is done, or `onEvent` returns false: the denoiser then holds what was encoded and committed until
  /// there. Throws what the sampler throws, and what the denoiser threw.
  func run(_ sampler: Sampler, onEvent: (Event) -> Bool) throws(EdgeKitError) {
    while true {
      switch try sampler.next() {
      case .forget:
        denoiser.reset()
      case .encode(let ids):
        try pass { try encode(ids) }
      case .denoise(let ids, let request, let soft):
        try sampler.answer(try pass { try denoiser.denoise(ids, request, soft: soft) })
      case .project(let request):
        try sampler.answer(try pass { try denoiser.project(request) })
      case .tell(let event, let kept):
        // Before anybody hears of it: whoever stops here has it in the conversation.
        if let kept { denoiser.uncached = kept }
        if !onEvent(event) { return }
        if case .done = event { return }
      }
    }
  }

  /// Encodes tokens, among them what was uncached. A prefix that is lost with a failure takes that with it.
  private func encode(_ ids: [Int]) throws {
    do {
      try denoiser.prefill(ids)
    } catch {
      if denoiser.prefixLength == 0 { denoiser.uncached = [] }
      throw error
    }
    denoiser.uncached = []
  }

  private func pass<Value>(_ body: () throws -> Value) throws(EdgeKitError) -> Value {
    let start = ContinuousClock.now
    defer { seconds += (ContinuousClock.now - start) / .seconds(1) }
    do {
      return try body()
    } catch {
      throw EdgeKitError(error)
    }
  }
}
