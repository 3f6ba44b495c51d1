/// What whoever drives a sampler sees of a model: a canvas goes in, statistics of the scores come out. Full scores
/// (positions times vocabulary) are hundreds of megabytes, so samplers work on what one pass over tiles of the table can
/// produce.
///
/// Not for use by several threads at once.
public protocol Denoiser: AnyObject {
  var vocabulary: Int { get }
  var hiddenSize: Int { get }
  /// Committed positions whose keys and values are kept.
  var prefixLength: Int { get }
  /// The tokens behind the prefix, in the pieces in which they were encoded.
  var encoded: [[Int]] { get }
  /// Text behind the prefix that is final and that no `prefill` has encoded: the end of the last answer. Whoever drives a
  /// sampler leaves it here, and encodes it with the text that follows it.
  var uncached: [Int] { get set }

  /// Forgets the prefix, and what is uncached.
  func reset()

  /// Causal pass over `ids` that appends their keys and values to the prefix. A failure forgets the whole prefix.
  func prefill(_ ids: [Int]) throws

  /// Bidirectional pass of `ids` behind the prefix. `soft` [ids, hidden] is what the last step gave as
  /// `HeadOutput.soft`, or nil.
  func denoise(_ ids: [Int], _ request: HeadRequest, soft: Tensor?) throws -> HeadOutput

  /// What the last `denoise` would have given to this request.
  func project(_ request: HeadRequest) throws -> HeadOutput

  /// Told that no pass follows soon, after a generation.
  func idle()
}

extension Denoiser {
  public func idle() {}
}

/// What to compute from the scores z = logits / temperature.
public struct HeadRequest {
  /// Positions on the canvas, in the order of the results; nil: all.
  public var rows: [Int]?
  /// Above 0.
  public var temperature: Float = 1
  /// Standard Gumbel noise [rows, stop - start] for the tokens start..<stop, to sample with; a pure function.
  public var gumbel: ((_ start: Int, _ stop: Int) throws -> [Float])?
  public var gumbelScale: Float = 1
  /// The expected embedding softmax(z) @ table, for self-conditioning.
  public var soft = false
  /// The largest scores of every row.
  public var topK = 0
  /// All of z.
  public var logits = false

  public init() {}
}

/// Statistics of z for R rows. Ties go to the lower token.
public struct HeadOutput: Sendable {
  public var argmax: [Int]
  /// The sum of exp(z - max z) over all tokens but the argmax: softmax(z) there is 1 / (1 + others).
  public var others: [Float]
  /// Of softmax(z), in nats.
  public var entropy: [Float]
  /// Log of the sum of exp(z).
  public var logZ: [Float]
  /// argmax(z + gumbelScale * noise).
  public var sample: [Int]?
  public var sampleProbability: [Float]?
  /// [R, hidden]
  public var soft: Tensor?
  /// [R, k] by descending score, k = min(topK, vocabulary).
  public var topIds: [[Int]]?
  public var topZ: [[Float]]?
  /// [R, vocabulary]
  public var logits: Tensor?
}
