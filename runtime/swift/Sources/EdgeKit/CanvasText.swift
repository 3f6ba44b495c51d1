/// An answer while it resolves: committed tokens, and behind them the canvas as the last step left it. What a screen
/// draws; fold events into it in their order.
public struct CanvasText: Sendable, Equatable {
  public enum State: Int, Sendable, Comparable {
    /// Guessed by the last step.
    case draft
    /// Accepted by a step of this canvas; it may still change.
    case accepted
    /// Final.
    case committed

    public static func < (left: State, right: State) -> Bool { left.rawValue < right.rawValue }
  }

  public struct Cell: Sendable, Equatable, Identifiable {
    /// Place in the answer.
    public var id: Int
    public var token: Int
    public var state: State
  }

  /// Text of neighbours in the same state.
  public struct Part: Sendable, Equatable {
    public var text: String
    public var state: State
  }

  /// Stands for a place that is open, as in the terminal (`edgekit run --watch`).
  public static let open = "·"

  /// Stands for a token that has no text: the end, and what fills the canvas behind it.
  public static let special = "◦"

  public private(set) var cells: [Cell] = []
  /// Steps of the current canvas or block.
  public private(set) var step = 0
  /// Counters until tokens were last committed, the rate of tokens among them; of the whole generation once it is done.
  public private(set) var statistics: GenerationStatistics?

  public init() {}

  /// The committed tokens.
  public var answer: [Int] { cells.filter { $0.state == .committed }.map(\.token) }

  public mutating func fold(_ event: Event) {
    switch event {
    case .draft(let draft):
      step = draft.step
      let earlier = Dictionary(uniqueKeysWithValues: cells.map { ($0.id, $0) })
      cells.removeAll { $0.state != .committed }
      let final = cells.count
      for (offset, token) in draft.tokens.enumerated() where draft.start + offset >= final {
        let place = draft.start + offset
        // Masked families keep what they accepted: the step that did so said it once.
        let kept = draft.step > 1 && earlier[place].map { $0.state == .accepted && $0.token == token } ?? false
        cells.append(Cell(id: place, token: token, state: draft.accepted[offset] || kept ? .accepted : .draft))
      }
    case .committed(let part):
      step = 0
      statistics = part.statistics
      // A block of a longer answer: what follows it stays on the screen until the next step.
      let later = cells.filter { $0.id >= part.start + part.tokens.count }
      cells.removeAll { $0.state != .committed }
      for (offset, token) in part.tokens.enumerated() {
        cells.append(Cell(id: part.start + offset, token: token, state: .committed))
      }
      cells += later
    case .text: break
    case .done(let statistics):
      cells.removeAll { $0.state != .committed }
      self.statistics = statistics
    }
  }

  /// The answer in pieces that are drawn alike; a place without a text is `open` or `special`.
  public func parts(_ tokenizer: Tokenizer) throws(EdgeKitError) -> [Part] {
    try parts(mask: tokenizer.mask) { (tokens: [Int]) throws(EdgeKitError) -> String in try tokenizer.decode(tokens) }
  }

  /// The answer as one text, see `parts`.
  public func text(_ tokenizer: Tokenizer) throws(EdgeKitError) -> String {
    try parts(tokenizer).map(\.text).joined()
  }

  /// By `decode`, which makes text of tokens, without special ones; `mask` is the token of open places.
  func parts(mask: Int?, decode: ([Int]) throws(EdgeKitError) -> String) throws(EdgeKitError) -> [Part] {
    var made: [Part] = []
    func add(_ text: String, _ state: State) {
      if made.last?.state == state {
        made[made.count - 1].text += text
      } else {
        made.append(Part(text: text, state: state))
      }
    }
    let answer = self.answer
    if !answer.isEmpty {
      let said = try decode(answer)  // none where all of them are special
      if !said.isEmpty { add(said, .committed) }
    }
    // One by one: a place that is open, or behind the end, is a special token and has no text.
    let behind = Array(cells[answer.count...])
    var texts: [String] = []
    for cell in behind { texts.append(cell.token == mask ? Self.open : try decode([cell.token])) }
    var at = 0
    while at < behind.count {
      var (text, state, next) = (texts[at], behind[at].state, at + 1)
      if Self.isPartial(text) {  // of a character that several tokens make: they are drawn together
        while next < behind.count && Self.isPartial(texts[next]) {
          state = min(state, behind[next].state)
          next += 1
        }
        text = try decode(behind[at..<next].map(\.token))
      }
      add(text.isEmpty ? Self.special : text, state)
      at = next
    }
    return made
  }

  private static func isPartial(_ text: String) -> Bool { text.unicodeScalars.contains { $0 == "\u{FFFD}" } }
}
