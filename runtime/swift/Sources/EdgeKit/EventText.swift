/// Adds text to the events of one generation. Confined to the thread that generates.
final class EventText {
  private let stream: TextStream?
  /// Why the generation is to end.
  private(set) var failure: EdgeKitError?

  /// Without a tokenizer there is no text.
  init(_ tokenizer: Tokenizer?) throws(EdgeKitError) {
    if let tokenizer { stream = try TextStream(tokenizer) } else { stream = nil }
  }

  /// Hands an event on, and the text that becomes certain with it: behind committed tokens, and before the end.
  func pass(_ event: Event, to yield: (Event) -> Void) {
    do throws(EdgeKitError) {
      if case .done = event { tell(try stream?.finish(), to: yield) }
      yield(event)
      if case .committed(let part) = event { tell(try stream?.push(part.tokens), to: yield) }
    } catch {
      failure = error
    }
  }

  private func tell(_ text: String?, to yield: (Event) -> Void) {
    if let text, !text.isEmpty { yield(.text(text)) }
  }
}
