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

  public private(set) var cells: [Cell] = []
  /// Steps of the current canvas or block.
  public private(set) var step = 0
  /// Of the whole generation, once it is done.
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
      cells.removeAll { $0.id >= part.start && $0.id < part.start + part.tokens.count || $0.state != .committed }
      for (offset, token) in part.tokens.enumerated() {
        cells.append(Cell(id: part.start + offset, token: token, state: .committed))
      }
    case .done(let statistics):
      cells.removeAll { $0.state != .committed }
      self.statistics = statistics
    }
  }
}
