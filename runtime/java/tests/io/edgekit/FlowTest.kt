package io.edgekit

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test

class FlowTest {
  private val question = "Write as JSON: name: Ada; age: 31; city: Rome"
  private val answer = """{"name": "Ada", "age": 31, "city": "Rome"}"""

  @Test
  fun aFlowHasAllEvents() {
    Session.open(Bundles.LLADA).use { session ->
      val prompt = session.tokenizer().prompt(Message.user(question))
      val direct = mutableListOf<String>()
      session.generate(prompt, GenerationSettings(), null) { direct.add(described(it)) }
      val flow = session.events(prompt)
      repeat(2) { assertEquals(direct, runBlocking { flow.toList() }.map(::described)) }
      assertEquals(direct, runBlocking { session.events(listOf(Message.user(question))).toList() }.map(::described))
    }
  }

  @Test
  fun aSlowCollectorLosesNothing() {
    Session.open(Bundles.GEMMA).use { session ->
      val text = StringBuilder()
      runBlocking {
        session.answer(question).collect {
          delay(20)
          text.append(it)
        }
      }
      assertEquals(answer, text.toString())
    }
  }

  @Test
  fun leavingEndsTheGeneration() {
    Session.open(Bundles.LLADA).use { session ->
      val long = GenerationSettings().maxNewTokens(64).steps(64)
      runBlocking {
        assertEquals(2, session.events(intArrayOf(5, 6), long).take(2).toList().size)
        var told = 0
        val job = launch(Dispatchers.Default) { session.events(intArrayOf(5, 6), long).collect { told += 1 } }
        while (told == 0) delay(1)
        job.cancelAndJoin()
        assertTrue("$told events", told < 64)
      }
      // The session is free, and answers as ever.
      assertEquals(answer, runBlocking { session.answer(question).toList() }.joinToString(""))
    }
  }

  @Test
  fun failuresComeOutOfTheFlow() {
    Session.open(Bundles.LLADA).use { session ->
      assertThrows(EdgeKitException::class.java) {
        runBlocking { session.events(intArrayOf(-1)).toList() }
      }
    }
    val closed = Session.open(Bundles.LLADA)
    closed.close()
    assertThrows(IllegalStateException::class.java) { runBlocking { closed.events(intArrayOf(5)).toList() } }
  }

  private fun described(event: Event): String = when (event) {
    is Event.Draft -> "draft ${event.step()} ${event.tokens().toList()} ${event.accepted().toList()}"
    is Event.Committed -> "committed ${event.start()} ${event.tokens().toList()}"
    is Event.Text -> "text ${event.text()}"
    is Event.Done -> "done ${event.statistics().finishReason()} ${event.statistics().committedTokens()}"
    else -> error("unknown event")
  }
}
