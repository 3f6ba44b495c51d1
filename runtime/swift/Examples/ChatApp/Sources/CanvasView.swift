import EdgeKit
import SwiftUI

/// An answer while it resolves: committed text in full, accepted tokens lighter, guesses faint. It needs nothing of the rest of
/// this application.
struct CanvasView: View {
  let canvas: CanvasText

  var body: some View {
    Text(styled)
      .font(.body.monospaced())
      .frame(maxWidth: .infinity, alignment: .leading)
      .animation(.easeOut(duration: 0.15), value: canvas)
  }

  private var styled: AttributedString {
    var text = AttributedString()
    for part in (try? canvas.parts()) ?? [] {
      var piece = AttributedString(part.text)
      if part.state < .committed {
        piece.foregroundColor = part.state < .kept ? Color.gray.opacity(0.4) : Color.secondary
      }
      text += piece
    }
    return text
  }
}
