import CEdgeKit
import Foundation

/// Whole generations over a denoiser, such as that of `Segments`: the native core's loops through `ek_model_generate`.
final class SegmentEngine: Engine {
  private let manifest: Manifest
  private let model: CallbackModel
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
    model = CallbackModel(denoiser)
  }

  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError) {
    let facts = manifest.model
    model.failure = nil
    // A copy: the call replaces it while it reads this one.
    let uncached = model.uncached
    defer { model.denoiser.idle() }
    do throws(EdgeKitError) {
      try NativeLibrary.generate(prompt: prompt, settings: settings, onEvent: onEvent) {
        prompt, count, options, callback, user in
        sampler.withCString { sampler in
          uncached.withUnsafeBufferPointer { uncached in
            defer { withExtendedLifetime(model) {} }
            var described = ek_model()
            described.struct_size = UInt32(MemoryLayout<ek_model>.size)
            described.vocabulary = Int64(model.denoiser.vocabulary)
            described.hidden_size = facts.selfConditioning ? Int64(model.denoiser.hiddenSize) : 0
            described.canvas_length = Int64(facts.canvasLength ?? 0)
            described.max_positions = Int64(facts.maxPositions ?? 0)
            described.prefix_length = Int64(model.denoiser.prefixLength)
            described.sampler = sampler
            described.user_data = Unmanaged.passUnretained(model).toOpaque()
            described.reset = resetModel
            if facts.causalPrefix { described.prefill = prefillModel }
            described.denoise = denoiseModel
            described.project = projectModel
            described.uncached = uncached.baseAddress
            described.uncached_count = Int64(uncached.count)
            described.keep = keepModel
            return ek_model_generate(&described, prompt, count, options, callback, user, nil)
          }
        }
      }
    } catch {
      // The core passes on the text alone.
      throw model.failure ?? error
    }
  }

  func info() throws(EdgeKitError) -> SessionInfo {
    let facts = manifest.model
    return SessionInfo(
      threads: 1, vocabulary: model.denoiser.vocabulary, hiddenSize: model.denoiser.hiddenSize,
      prefixLength: model.denoiser.prefixLength, canvasLength: facts.canvasLength, maxPositions: facts.maxPositions,
      causalPrefix: facts.causalPrefix)
  }

  /// Reads are the executor's own and are not counted.
  func statistics() throws(EdgeKitError) -> SessionStatistics {
    let weights = residency()
    return SessionStatistics(
      ioMode: manifest.programs.format, pinnedBytes: weights.pinned, ringBytes: weights.ahead,
      streamedBytesPerStep: weights.streamed, bytesRead: 0, ioSeconds: 0, ioWaitSeconds: 0,
      passSeconds: model.seconds)
  }

  /// Segments observe memory pressure themselves, also in the middle of a pass.
  func relieve(_ pressure: MemoryPressure) {}
}

/// What the callbacks of an `ek_model` get as their user data.
private final class CallbackModel {
  let denoiser: any Denoiser
  /// The end of the last answer, which the next prompt that continues it has the core encode.
  var uncached: [Int64] = []
  /// What the denoiser threw last.
  var failure: EdgeKitError?
  /// In passes.
  private(set) var seconds = 0.0

  init(_ denoiser: any Denoiser) { self.denoiser = denoiser }

  /// Runs `body` on the model behind `user`; the status for the callback to return.
  static func call(_ user: UnsafeMutableRawPointer?, _ body: (CallbackModel) throws -> Void) -> Int32 {
    guard let user else { return ek_callback_failed("a callback was called without its model") }
    let model = Unmanaged<CallbackModel>.fromOpaque(user).takeUnretainedValue()
    let start = ContinuousClock.now
    defer { model.seconds += (ContinuousClock.now - start) / .seconds(1) }
    do {
      try body(model)
      return EK_OK
    } catch {
      let failure = EdgeKitError(error)
      model.failure = failure
      return ek_callback_failed(failure.message)
    }
  }
}

private func resetModel(_ user: UnsafeMutableRawPointer?) -> Int32 {
  CallbackModel.call(user) { $0.denoiser.reset() }
}

private func keepModel(_ ids: UnsafePointer<Int64>?, _ count: Int64, _ user: UnsafeMutableRawPointer?) -> Int32 {
  CallbackModel.call(user) { $0.uncached = Array(UnsafeBufferPointer(start: ids, count: Int(count))) }
}

private func prefillModel(_ ids: UnsafePointer<Int64>?, _ count: Int64, _ user: UnsafeMutableRawPointer?) -> Int32 {
  CallbackModel.call(user) { try $0.denoiser.prefill(tokens(ids, count)) }
}

private func denoiseModel(
  _ ids: UnsafePointer<Int64>?, _ count: Int64, _ soft: UnsafePointer<Float>?,
  _ request: UnsafePointer<ek_head_request>?, _ output: UnsafePointer<ek_head_output>?,
  _ user: UnsafeMutableRawPointer?
) -> Int32 {
  CallbackModel.call(user) { model in
    let denoiser = model.denoiser
    let shape = [Int(count), denoiser.hiddenSize]
    let earlier = soft.map { Tensor(shape, Array(UnsafeBufferPointer(start: $0, count: shape[0] * shape[1]))) }
    try answer(request, output, denoiser) { try denoiser.denoise(tokens(ids, count), $0, soft: earlier) }
  }
}

private func projectModel(
  _ request: UnsafePointer<ek_head_request>?, _ output: UnsafePointer<ek_head_output>?,
  _ user: UnsafeMutableRawPointer?
) -> Int32 {
  CallbackModel.call(user) { try answer(request, output, $0.denoiser, $0.denoiser.project) }
}

private func tokens(_ ids: UnsafePointer<Int64>?, _ count: Int64) -> [Int] {
  UnsafeBufferPointer(start: ids, count: Int(count)).map { Int($0) }
}

/// Has `pass` answer a request of the loops.
private func answer(
  _ request: UnsafePointer<ek_head_request>?, _ output: UnsafePointer<ek_head_output>?, _ denoiser: any Denoiser,
  _ pass: (HeadRequest) throws -> HeadOutput
) throws {
  guard let request = request?.pointee, let output = output?.pointee else {
    throw EdgeKitError.internalError("a pass was asked for without a request")
  }
  let found = try pass(HeadRequest(request, logits: output.logits != nil))
  let rows = Int(request.row_count)
  let topK = min(Int(request.top_k), denoiser.vocabulary)
  try fill(output.argmax, found.argmax.map(Int64.init), rows, "argmax")
  try fill(output.others, found.others, rows, "others")
  try fill(output.entropy, found.entropy, rows, "entropy")
  try fill(output.log_z, found.logZ, rows, "logZ")
  try fill(output.sample, found.sample?.map(Int64.init), rows, "sample")
  try fill(output.sample_prob, found.sampleProbability, rows, "sampleProbability")
  try fill(output.soft, found.soft?.floats, rows * denoiser.hiddenSize, "soft")
  try fill(output.top_ids, found.topIds?.flatMap { $0.map(Int64.init) }, rows * topK, "topIds")
  try fill(output.top_z, found.topZ?.flatMap { $0 }, rows * topK, "topZ")
  try fill(output.logits, found.logits?.floats, rows * denoiser.vocabulary, "logits")
}

/// Copies what was asked for. Another number of values would leave the array unfilled, or be written beyond it.
private func fill<Value>(
  _ array: UnsafeMutablePointer<Value>?, _ values: [Value]?, _ count: Int, _ name: String
) throws {
  guard let array else { return }
  guard let values, values.count == count else {
    throw EdgeKitError.engineFailed(
      "a denoiser gave \(values?.count ?? 0) values as \(name), where \(count) were asked for")
  }
  array.update(from: values, count: count)
}

extension HeadRequest {
  /// Noise is the native core's own, drawn for the tiles that the head asks for.
  fileprivate init(_ request: ek_head_request, logits: Bool) {
    let count = Int(request.row_count)
    rows = request.rows.map { tokens($0, request.row_count) }
    temperature = request.temperature
    gumbelScale = request.gumbel_scale
    soft = request.soft != 0
    topK = Int(request.top_k)
    self.logits = logits
    guard request.gumbel != 0 else { return }
    let (seed, draw) = (request.seed, request.draw)
    gumbel = { start, stop in
      let width = stop - start
      var drawn = [Float](repeating: 0, count: count * width)
      try EdgeKitError.check(
        ek_gumbel_noise(seed, draw, Int64(start), Int64(width), Int64(count), &drawn))
      // From [token, row] to [row, token].
      var noise = drawn
      for row in 0..<count {
        for token in 0..<width { noise[row * width + token] = drawn[token * count + row] }
      }
      return noise
    }
  }
}
