import EdgeKit
import SwiftUI

/// An answer while it resolves: committed text in full, accepted tokens lighter, guesses faint. It needs nothing of the rest of
/// this application.
struct CanvasView: View {
  let canvas: CanvasText
  let tokenizer: Tokenizer?

  /// Stands for a place that is open or behind the end: a special token, which has no text.
  private static let open = "·"

  var body: some View {
    Text(styled)
      .font(.body.monospaced())
      .frame(maxWidth: .infinity, alignment: .leading)
      .animation(.easeOut(duration: 0.15), value: canvas)
  }

  private var styled: AttributedString {
    var text = AttributedString(decoded(canvas.answer))
    for cell in canvas.cells where cell.state != .committed {
      let said = decoded([cell.token])
      var piece = AttributedString(said.isEmpty ? Self.open : said)
      piece.foregroundColor = cell.state == .accepted ? Color.secondary : Color.gray.opacity(0.4)
      text += piece
    }
    return text
  }

  private func decoded(_ tokens: [Int]) -> String { (try? tokenizer?.decode(tokens)) ?? "" }
}
