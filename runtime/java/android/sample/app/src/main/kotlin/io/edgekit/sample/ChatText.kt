package io.edgekit.sample

import android.graphics.Typeface
import android.text.SpannableStringBuilder
import android.text.Spanned
import android.text.style.ForegroundColorSpan
import android.text.style.StyleSpan
import io.edgekit.CanvasText
import io.edgekit.sample.model.ChatState

/** The conversation as a text view takes it: questions in bold, accepted tokens lighter than final ones, guesses faint. */
class ChatText(private val acceptedColor: Int, private val draftColor: Int) {
  fun of(state: ChatState): CharSequence {
    val text = SpannableStringBuilder()
    for (turn in state.turns) {
      if (turn.role() == "user") question(text, turn.content()) else text.append(turn.content())
      text.append("\n\n")
    }
    state.question?.let { question(text, it) }
    if (state.question != null) text.append("\n\n")
    for (part in state.canvas) {
      when (part.state()) {
        CanvasText.State.COMMITTED -> text.append(part.text())
        CanvasText.State.KEPT, CanvasText.State.ACCEPTED -> styled(text, part.text(), ForegroundColorSpan(acceptedColor))
        CanvasText.State.OPEN, CanvasText.State.DRAFT -> styled(text, part.text(), ForegroundColorSpan(draftColor))
      }
    }
    return text
  }

  private fun question(text: SpannableStringBuilder, said: String) = styled(text, said, StyleSpan(Typeface.BOLD))

  private fun styled(text: SpannableStringBuilder, said: String, style: Any) {
    text.append(said, style, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
  }
}
