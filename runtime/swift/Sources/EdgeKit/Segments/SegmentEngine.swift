/// Whole generations over a denoiser, such as that of `Segments`: the native core's samplers, driven from here.
final class SegmentEngine: Engine {
  private let manifest: Manifest
  private let driver: SamplerDriver
  /// Section "sampler" of the manifest, as JSON.
  private let sampler: String
  private let residency: () -> WeightResidency

  convenience init(_ manifest: Manifest, _ segments: Segments) throws(EdgeKitError) {
    try self.init(manifest, segments.denoiser) { segments.residency }
  }

  init(
    _ manifest: Manifest, _ denoiser: any Denoiser, residency: @escaping () -> WeightResidency = { WeightResidency() }
  ) throws(EdgeKitError) {
    try NativeLibrary.check()
    guard let sampler = NativeLibrary.json(manifest.sampler) else {
      throw .malformedFile("the manifest's sampler has a number that is not finite; export the bundle again")
    }
    self.manifest = manifest
    self.sampler = sampler
    self.residency = residency
    driver = SamplerDriver(denoiser)
  }

  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError) {
    let (facts, denoiser) = (manifest.model, driver.denoiser)
    defer { denoiser.idle() }
    let model = SamplerModel(
      section: sampler, vocabulary: denoiser.vocabulary, hiddenSize: facts.selfConditioning ? denoiser.hiddenSize : 0,
      canvasLength: facts.canvasLength, maxPositions: facts.maxPositions, encoded: denoiser.encoded,
      uncached: denoiser.uncached)
    try driver.run(try Sampler(model, prompt: prompt, settings: settings), onEvent: onEvent)
  }

  func info() throws(EdgeKitError) -> SessionInfo {
    let (facts, denoiser) = (manifest.model, driver.denoiser)
    return SessionInfo(
      threads: 1, vocabulary: denoiser.vocabulary, hiddenSize: denoiser.hiddenSize,
      prefixLength: denoiser.prefixLength, canvasLength: facts.canvasLength, maxPositions: facts.maxPositions,
      causalPrefix: facts.causalPrefix)
  }

  /// Reads are the executor's own and are not counted.
  func statistics() throws(EdgeKitError) -> SessionStatistics {
    let weights = residency()
    return SessionStatistics(
      ioMode: manifest.programs.format, pinnedBytes: weights.pinned, ringBytes: weights.ahead,
      streamedBytesPerStep: weights.streamed, bytesRead: 0, ioSeconds: 0, ioWaitSeconds: 0,
      passSeconds: driver.seconds)
  }

  /// Segments observe memory pressure themselves, also in the middle of a pass.
  func relieve(_ pressure: MemoryPressure) {}
}
