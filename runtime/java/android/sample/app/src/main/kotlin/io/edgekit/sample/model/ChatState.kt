package io.edgekit.sample.model

import io.edgekit.CanvasText
import io.edgekit.Message

/** What the screen shows. */
data class ChatState(
  val work: Work = Work.NONE,
  /** Whether the folder has a bundle. */
  val hasBundle: Boolean = false,
  /** Of the bundle that arrives; the total is 0 while it is not known. */
  val hereBytes: Long = 0,
  val totalBytes: Long = 0,
  /** Questions and answers that are over. */
  val turns: List<Message> = emptyList(),
  /** The question that is being answered, and how far its answer has resolved. */
  val question: String? = null,
  val canvas: List<CanvasText.Part> = emptyList(),
  val step: Long = 0,
  /** Of the last answer, encoding of its prompt included. */
  val tokensPerSecond: Double? = null,
  /** Whether bundles for an NPU run here, else why not: one line. Unknown until the first piece of work has looked. */
  val hasNpu: Boolean? = null,
  val whyNoNpu: String? = null,
  /** Whether a report waits to be exported. */
  val hasReport: Boolean = false,
  /** How the last work ended where it did not end well: one line. */
  val message: String? = null,
  /** What the user can do about it, where that is known. */
  val problem: Problem? = null,
) {
  enum class Problem {
    /** Another address. */
    ADDRESS,
    /** A shorter question, or a new chat. */
    TOO_LONG,
    /** The NPU does not run the bundle: to fetch once more brings the one for the processor. */
    NPU,
  }

  /** One at a time. */
  enum class Work { NONE, FETCHING, ANSWERING, MEASURING }
}
