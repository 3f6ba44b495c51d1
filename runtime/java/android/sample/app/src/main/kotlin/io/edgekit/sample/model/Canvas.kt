package io.edgekit.sample.model

import io.edgekit.Event

/**
 * An answer while it resolves: its final tokens, and behind them the canvas as the last step left it. What a screen draws;
 * it is given events in their order.
 */
class Canvas private constructor(val cells: List<Cell>, val step: Long) {
  enum class State { DRAFT, ACCEPTED, COMMITTED }

  /** A token at its place in the answer. */
  data class Cell(val place: Long, val token: Int, val state: State)

  /** Text of neighbours in the same state. */
  data class Part(val text: String, val state: State)

  constructor() : this(emptyList(), 0)

  private val final: List<Cell> get() = cells.filter { it.state == State.COMMITTED }

  /** How many tokens are final. */
  val committed: Int get() = cells.count { it.state == State.COMMITTED }

  /** The canvas after [event]. */
  fun with(event: Event): Canvas = when (event) {
    is Event.Draft -> drafted(event)
    is Event.Committed -> {
      val tokens = event.tokens()
      val places = event.start() until event.start() + tokens.size
      val added = tokens.mapIndexed { offset, token -> Cell(event.start() + offset, token, State.COMMITTED) }
      Canvas(final.filter { it.place !in places } + added, 0)
    }
    is Event.Done -> Canvas(final, step)
    else -> this
  }

  private fun drafted(draft: Event.Draft): Canvas {
    val earlier = cells.associateBy { it.place }
    val added = draft.tokens().toList().mapIndexedNotNull { offset, token ->
      val place = draft.start() + offset
      val before = earlier[place]
      when {
        before?.state == State.COMMITTED -> null
        draft.accepted()[offset] -> Cell(place, token, State.ACCEPTED)
        // Masked families keep what they accepted: the step that did so said it once.
        draft.step() > 1 && before?.state == State.ACCEPTED && before.token == token -> before
        else -> Cell(place, token, State.DRAFT)
      }
    }
    return Canvas(final + added, draft.step())
  }

  /** The answer in pieces that are drawn alike; `decode` makes text of tokens, without special ones. */
  fun parts(decode: (IntArray) -> String): List<Part> {
    val found = mutableListOf(Part(decode(final.map { it.token }.toIntArray()), State.COMMITTED))
    for (cell in cells) {
      if (cell.state == State.COMMITTED) continue
      // One by one: a place that is open, or behind the end, is a special token and has no text.
      val text = decode(intArrayOf(cell.token)).ifEmpty { OPEN }
      val last = found.last()
      if (last.state == cell.state) found[found.lastIndex] = Part(last.text + text, last.state) else found += Part(text, cell.state)
    }
    return found.filter { it.text.isNotEmpty() }
  }

  private companion object {
    const val OPEN = "·"
  }
}
