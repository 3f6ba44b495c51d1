@file:JvmName("Generations")

package io.edgekit

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.ProducerScope
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.channels.trySendBlocking
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.launch

/**
 * Generates behind [prompt], token ids, whenever the flow is collected, on a thread for blocking work.
 *
 * No event is left out: where the collector is slow, the generation waits for it. A collector that draws drafts alone may
 * put `conflate()` behind a filter of them. Cancelling the collector ends the computation at the next step boundary. The
 * flow fails with what [Session.generate] throws.
 */
fun Session.events(prompt: IntArray, settings: GenerationSettings = GenerationSettings()): Flow<Event> =
    callbackFlow { generateInto(this@events, settings) { prompt } }

/** As [events], behind a conversation, see [Tokenizer.chat]. */
fun Session.events(
    conversation: List<Message>, settings: GenerationSettings = GenerationSettings(),
): Flow<Event> =
    callbackFlow { generateInto(this@events, settings) { tokenizer().prompt(conversation) } }

/** The text of an answer to [question] that will not change, as it becomes certain. */
fun Session.answer(question: String, settings: GenerationSettings = GenerationSettings()): Flow<String> =
    events(listOf(Message.user(question)), settings).filterIsInstance<Event.Text>().map { it.text() }

private suspend fun ProducerScope<Event>.generateInto(
    session: Session, settings: GenerationSettings, prompt: () -> IntArray,
) {
  val cancellation = Cancellation()
  launch(Dispatchers.IO) {
    try {
      session.generate(prompt(), settings, cancellation) { event ->
        // A collector that has left takes nothing; its cancellation ends the generation.
        if (trySendBlocking(event).isFailure) cancellation.cancel()
      }
      close()
    } catch (error: Throwable) {
      close(error)
    }
  }
  awaitClose { cancellation.cancel() }
}
