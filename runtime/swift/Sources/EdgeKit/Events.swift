/// What a generation reports. The answer is the tokens of all `committed` events, one after the other, its text that of all
/// `text` events.
public enum Event: Sendable, Equatable {
  /// After a denoising step; nothing in it is final.
  case draft(Draft)
  /// Final tokens.
  case committed(Committed)
  /// Text that has become certain with committed tokens: whole characters, never taken back. A character may be spread over
  /// several tokens, so the last of it comes before `done`. There is none where the session has no tokenizer.
  case text(String)
  /// The last event of a generation that was neither stopped nor failed.
  case done(GenerationStatistics)
}

/// The canvas or block after one denoising step.
public struct Draft: Sendable, Equatable {
  /// Counts canvases or blocks.
  public var canvasIndex: Int
  /// Counts from 1 within the canvas or block.
  public var step: Int
  /// Place of `tokens[0]` in the answer.
  public var start: Int
  /// The best guess; the mask token where a masked family leaves a position open.
  public var tokens: [Int]
  /// Where this step accepted or committed a token; as long as `tokens`.
  public var accepted: [Bool]

  public init(canvasIndex: Int, step: Int, start: Int, tokens: [Int], accepted: [Bool]) {
    self.canvasIndex = canvasIndex
    self.step = step
    self.start = start
    self.tokens = tokens
    self.accepted = accepted
  }
}

/// Final tokens of a canvas or block.
public struct Committed: Sendable, Equatable {
  public var canvasIndex: Int
  /// Place of `tokens[0]` in the answer.
  public var start: Int
  public var tokens: [Int]
  /// Counters so far, these tokens with them; how it ends is not known yet.
  public var statistics: GenerationStatistics

  public init(
    canvasIndex: Int, start: Int, tokens: [Int], statistics: GenerationStatistics = GenerationStatistics()
  ) {
    self.canvasIndex = canvasIndex
    self.start = start
    self.tokens = tokens
    self.statistics = statistics
  }
}

/// How a generation came to its end.
public enum FinishReason: String, Sendable, Codable {
  /// An end token was committed.
  case endToken = "eos"
  /// As many tokens as were asked for.
  case length
  case stopped
}

/// Counters of one generation.
public struct GenerationStatistics: Sendable, Equatable {
  public var finishReason: FinishReason?
  /// Steps whose pass ran.
  public var denoisingSteps = 0
  /// Denoising passes: one a step, two with classifier-free guidance, fewer where steps are drafted.
  public var forwards = 0
  /// Further passes of the vocabulary head on the same hidden states.
  public var projections = 0
  /// Causal passes that encoded text.
  public var prefills = 0
  /// Final tokens, padding not counted.
  public var committedTokens = 0
  /// Canvases or blocks begun.
  public var canvases = 0
  /// Since the generation began: encoding of the prompt and reading of weights with it. Measured, so that equal generations
  /// differ in it.
  public var seconds = 0.0

  public init() {}

  /// Final tokens over the whole time; 0 where there are none.
  public var tokensPerSecond: Double { seconds > 0 ? Double(committedTokens) / seconds : 0 }
}
