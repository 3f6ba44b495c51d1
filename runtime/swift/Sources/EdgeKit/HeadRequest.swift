/// What to compute from the scores z = logits / temperature.
public struct HeadRequest: Sendable, Equatable {
  /// Standard Gumbel noise that is added to z, times `scale`: a function of the first two, row and token.
  public struct Gumbel: Sendable, Equatable {
    public var seed: UInt64
    public var draw: UInt64
    public var scale: Float

    public init(seed: UInt64, draw: UInt64, scale: Float = 1) {
      (self.seed, self.draw, self.scale) = (seed, draw, scale)
    }
  }

  /// Positions on the canvas, in the order of the results; nil: all.
  public var rows: [Int]?
  /// Above 0.
  public var temperature: Float = 1
  /// To sample with.
  public var gumbel: Gumbel?
  /// The expected embedding softmax(z) @ table, for self-conditioning.
  public var soft = false
  /// The largest scores of every row.
  public var topK = 0
  /// All of z.
  public var logits = false
  /// Scores of the logical roles of the tokens that the rows predict. Only of bundles with a role head.
  public var roles = false

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
  /// argmax(z + gumbel.scale * noise).
  public var sample: [Int]?
  public var sampleProbability: [Float]?
  /// [R, hidden]
  public var soft: Tensor?
  /// [R, k] by descending score, k = min(topK, vocabulary).
  public var topIds: [[Int]]?
  public var topZ: [[Float]]?
  /// [R, vocabulary]
  public var logits: Tensor?
  /// [R, EK_ROLES]: scores of EK_ROLE_PREMISE, ..., EK_ROLE_FILLER.
  public var roles: Tensor?
}
