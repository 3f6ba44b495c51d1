import CEdgeKit

/// What a sampler knows of the model that answers.
struct SamplerModel {
  /// Section "sampler" of the bundle's manifest, as JSON.
  var section: String
  var vocabulary: Int
  /// Width of a soft embedding; 0 for a model without self-conditioning.
  var hiddenSize: Int
  /// nil: canvases of any length.
  var canvasLength: Int?
  /// nil: unknown.
  var maxPositions: Int?
  /// The text that the model holds, for the option continue_prefix: what is encoded, in pieces, and what is final behind it.
  var encoded: [[Int]] = []
  var uncached: [Int] = []
}

/// A family's denoising procedure, which is the native core's: it asks for passes, and goes on once it has its answer.
/// Not for use by several threads at once.
final class Sampler {
  private let handle: OpaquePointer
  private let vocabulary: Int
  private let hiddenSize: Int
  /// Of the last pass that was asked for.
  private var request = ek_head_request()
  private var wantsLogits = false

  /// Throws `invalidArgument` for settings or a prompt that do not fit the model, `malformedFile` and
  /// `unsupportedBundle` for a section that does not say which procedure it needs.
  init(_ model: SamplerModel, prompt: [Int], settings: GenerationSettings) throws(EdgeKitError) {
    let ids = prompt.map(Int64.init)
    let encoded = model.encoded.joined().map(Int64.init)
    let lengths = model.encoded.map { Int64($0.count) }
    let uncached = model.uncached.map(Int64.init)
    var made: OpaquePointer?
    let status = NativeLibrary.withOptions(settings) { options in
      model.section.withCString { section in
        withPointers(to: [encoded, lengths, uncached]) { text in
          var described = ek_sampler_model()
          described.struct_size = UInt32(MemoryLayout<ek_sampler_model>.size)
          described.projects = 1
          described.vocabulary = Int64(model.vocabulary)
          described.hidden_size = Int64(model.hiddenSize)
          described.canvas_length = Int64(model.canvasLength ?? 0)
          described.max_positions = Int64(model.maxPositions ?? 0)
          described.sampler = section
          (described.encoded, described.piece_lengths, described.uncached) = (text[0], text[1], text[2])
          described.encoded_pieces = Int64(lengths.count)
          described.uncached_count = Int64(uncached.count)
          return ek_sampler_create(&described, ids, Int64(ids.count), options, &made)
        }
      }
    }
    try EdgeKitError.check(status)
    guard let made else { throw .internalError("ek_sampler_create gave no sampler") }
    handle = made
    vocabulary = model.vocabulary
    hiddenSize = model.hiddenSize
  }

  deinit { ek_sampler_close(handle) }

  /// What to do now, after what the last call asked has been done. Throws `invalidState` where a pass has no answer.
  func next() throws(EdgeKitError) -> Ask {
    var ask = ek_ask()
    ask.struct_size = UInt32(MemoryLayout<ek_ask>.size)
    try EdgeKitError.check(ek_sampler_next(handle, &ask))
    (request, wantsLogits) = (ask.request, ask.logits != 0)
    request.rows = nil  // it lives until the next call alone
    return try Ask(ask, hiddenSize: hiddenSize, statistics: statistics)
  }

  /// Gives the answer to the pass that was asked for. Throws `notFinite`, and `engineFailed` for arrays that are missing,
  /// of another size or hold what no pass gives; the pass is still asked for then.
  func answer(_ output: HeadOutput) throws(EdgeKitError) {
    let (sampled, soft, ranked) = (request.gumbel != 0, request.soft != 0, request.top_k > 0)
    let width = Int(request.top_k)
    let ids = [
      try values("argmax", output.argmax),
      try values("sample", output.sample, wanted: sampled),
      try values("topIds", output.topIds?.flatMap { $0 }, width: width, wanted: ranked),
    ].map { $0.map(Int64.init) }
    let numbers = [
      try values("others", output.others),
      try values("entropy", output.entropy),
      try values("logZ", output.logZ),
      try values("sampleProbability", output.sampleProbability, wanted: sampled),
      try values("soft", output.soft?.floats, width: hiddenSize, wanted: soft),
      try values("topZ", output.topZ?.flatMap { $0 }, width: width, wanted: ranked),
      try values("logits", output.logits?.floats, width: vocabulary, wanted: wantsLogits),
    ]
    let status = withPointers(to: ids) { ids in
      withPointers(to: numbers) { numbers in
        // The C ABI has one struct for arrays that the library fills and those that it reads, as here.
        let ids = ids.map { UnsafeMutablePointer(mutating: $0) }
        let numbers = numbers.map { UnsafeMutablePointer(mutating: $0) }
        var given = ek_head_output()
        given.struct_size = UInt32(MemoryLayout<ek_head_output>.size)
        (given.argmax, given.sample, given.top_ids) = (ids[0], ids[1], ids[2])
        (given.others, given.entropy, given.log_z) = (numbers[0], numbers[1], numbers[2])
        (given.sample_prob, given.soft, given.top_z) = (numbers[3], numbers[4], numbers[5])
        given.logits = numbers[6]
        return ek_sampler_answer(handle, &given)
      }
    }
    do throws(EdgeKitError) {
      try EdgeKitError.check(status)
    } catch .invalidArgument(let text) {
      throw .engineFailed(text)  // nothing that the caller of a generation gave
    }
  }

  /// The counters so far.
  func statistics() throws(EdgeKitError) -> GenerationStatistics {
    var found = ek_generation_statistics()
    found.struct_size = UInt32(MemoryLayout<ek_generation_statistics>.size)
    try EdgeKitError.check(ek_sampler_get_statistics(handle, &found))
    return GenerationStatistics(found)
  }

  /// An array of the answer; the library reads as many values as it asked for.
  private func values<Value>(
    _ name: String, _ found: [Value]?, width: Int = 1, wanted: Bool = true
  ) throws(EdgeKitError) -> [Value] {
    guard wanted else { return [] }
    let count = Int(request.row_count) * width
    guard let found, found.count == count else {
      throw .engineFailed("a denoiser gave \(found?.count ?? 0) values as \(name), where \(count) were asked for")
    }
    return found
  }
}

/// Runs `body` on the arrays' own memory, one after the other in `found`.
private func withPointers<Value, Result>(
  to arrays: [[Value]], _ found: [UnsafePointer<Value>?] = [], _ body: ([UnsafePointer<Value>?]) -> Result
) -> Result {
  guard found.count < arrays.count else { return body(found) }
  return arrays[found.count].withUnsafeBufferPointer { withPointers(to: arrays, found + [$0.baseAddress], body) }
}
