import CEdgeKit

/// An answer while it resolves: committed tokens, and behind them the canvas as the last step left it. What a screen
/// draws; fold events into it in their order.
public struct CanvasText: Sendable {
  /// How certain a token is, from the least: the numbers from `EK_CELL_OPEN` to `EK_CELL_COMMITTED`.
  public enum State: Int, Sendable, Comparable {
    /// A masked family leaves the place open.
    case open
    /// Guessed by the last step.
    case draft
    /// Of masked families: accepted before the last step; it may still change.
    case kept
    /// Accepted by the last step; it may still change.
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

  private let tokenizer: Tokenizer

  /// Nothing yet; `tokenizer` is that of the session.
  public init(_ tokenizer: Tokenizer) { self.tokenizer = tokenizer }

  /// The committed tokens.
  public var answer: [Int] { cells.filter { $0.state == .committed }.map(\.token) }

  /// Takes the next event. Throws `invalidArgument` for a draft whose `accepted` is not as long as its tokens.
  public mutating func fold(_ event: Event) throws(EdgeKitError) {
    switch event {
    case .draft(let draft):
      guard draft.accepted.count == draft.tokens.count else {
        let (tokens, flags) = (draft.tokens.count, draft.accepted.count)
        throw .invalidArgument("a draft of \(tokens) tokens says of \(flags) whether they were accepted")
      }
      try fold(EK_EVENT_DRAFT, start: draft.start, tokens: draft.tokens, accepted: draft.accepted)
      step = draft.step
    case .committed(let part):
      try fold(EK_EVENT_COMMITTED, start: part.start, tokens: part.tokens)
      step = 0
      statistics = part.statistics
    case .text: break
    case .done(let statistics):
      try fold(EK_EVENT_DONE)
      self.statistics = statistics
    }
  }

  private mutating func fold(
    _ kind: Int32, start: Int = 0, tokens: [Int] = [], accepted: [Bool] = []
  ) throws(EdgeKitError) {
    let before = nativeCells
    let ids = tokens.map { Int64($0) }
    let flags: [UInt8] = accepted.map { $0 ? 1 : 0 }
    let mask = Int64(tokenizer.mask ?? -1)
    let capacity = before.count + ids.count
    var made = [ek_canvas_cell](repeating: ek_canvas_cell(), count: capacity)
    var count: Int64 = 0
    let status = ids.withUnsafeBufferPointer { ids -> ek_status in
      flags.withUnsafeBufferPointer { flags -> ek_status in
        var event = ek_event()
        event.struct_size = UInt32(MemoryLayout<ek_event>.size)
        event.kind = kind
        event.start = Int64(start)
        event.ids = ids.baseAddress
        event.count = Int64(ids.count)
        event.accepted = flags.baseAddress
        return ek_canvas_fold(before, Int64(before.count), &event, mask, &made, Int64(capacity), &count)
      }
    }
    try EdgeKitError.check(status)
    cells = made.prefix(Int(count)).map { cell in
      Cell(id: Int(cell.place), token: Int(cell.token), state: Self.state(cell.state))
    }
  }

  /// The answer in pieces that are drawn alike. Tokens read as they do inside of a sentence, with the space in front of
  /// them; those that make a character together are drawn together. A place without a text is `open` or `special`, with a
  /// space between the latter and what is beside it.
  public func parts() throws(EdgeKitError) -> [Part] {
    let drawn = try tokenizer.draw(nativeCells)
    var parts: [Part] = []
    var begin = 0
    for part in drawn.parts {
      let end = begin + Int(part.bytes)
      let text = String(decoding: drawn.text[begin..<end], as: UTF8.self)
      parts.append(Part(text: text, state: Self.state(part.state)))
      begin = end
    }
    return parts
  }

  /// The answer as one text, see `parts`.
  public func text() throws(EdgeKitError) -> String {
    try parts().map(\.text).joined()
  }

  private var nativeCells: [ek_canvas_cell] {
    cells.map { cell in
      ek_canvas_cell(
        place: Int64(cell.id), token: Int64(cell.token), state: Int32(cell.state.rawValue), reserved: 0)
    }
  }

  /// The library has no other states than these.
  private static func state(_ number: Int32) -> State { State(rawValue: Int(number))! }
}

extension CanvasText: Equatable {
  public static func == (left: CanvasText, right: CanvasText) -> Bool {
    left.cells == right.cells && left.step == right.step && left.statistics == right.statistics
      && left.tokenizer === right.tokenizer
  }
}
