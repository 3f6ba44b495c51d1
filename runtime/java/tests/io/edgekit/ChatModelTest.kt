package io.edgekit

import io.edgekit.sample.model.ChatModel
import io.edgekit.sample.model.ChatState
import io.edgekit.sample.model.ChatState.Work
import java.io.ByteArrayOutputStream
import java.io.File
import java.util.concurrent.CopyOnWriteArrayList
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** What Android's sample application does, without its screen. Properties as FlowTest and FetchTest have them. */
class ChatModelTest {
  @get:Rule val scratch = TemporaryFolder()

  private val question = "Write as JSON: name: Ada; age: 31; city: Rome"
  private val answer = """{"name": "Ada", "age": 31, "city": "Rome"}"""
  private val report by lazy { File(scratch.root, "report.json") }

  private fun model(folder: String) = ChatModel(File(folder), report)

  private fun ChatModel.whenIs(wanted: (ChatState) -> Boolean): ChatState =
    runBlocking { withTimeout(60_000) { state.first(wanted) } }

  private fun ChatModel.whenOver() = whenIs { it.work == Work.NONE }

  @Test
  fun aDownloadPausesAndGoesOn() {
    val target = File(scratch.root, "bundle")
    val model = model(target.path)
    assertFalse(model.state.value.hasBundle)
    model.fetch(System.getProperty("fetch.slow"))
    val far = model.whenIs { it.hereBytes > 500_000 }
    assertEquals(Work.FETCHING, far.work)
    assertTrue("$far", far.totalBytes > far.hereBytes)
    model.stop()
    val paused = model.whenOver()
    assertNull(paused.message)
    assertFalse(paused.hasBundle || target.exists())
    model.fetch(" ${System.getProperty("fetch.url")} ")
    val here = model.whenOver()
    assertNull(here.message)
    assertTrue(here.hasBundle && File(target, "edgekit.json").isFile)
    assertEquals(here.totalBytes, here.hereBytes)
  }

  @Test
  fun anAnswerResolvesOnItsCanvas() {
    val model = model(Bundles.GEMMA)
    assertTrue(model.state.value.hasBundle)
    val seen = CopyOnWriteArrayList<ChatState>()
    runBlocking {
      val started = CompletableDeferred<Unit>()
      val watch = launch(Dispatchers.Default) {
        model.state.collect {
          seen += it
          started.complete(Unit)
        }
      }
      started.await()
      model.ask(question, 0)
      model.whenOver()
      watch.cancel()
    }
    assertTrue(seen.any { state -> state.step > 0 && state.canvas.any { it.state() != CanvasText.State.COMMITTED } })
    val last = model.state.value
    assertEquals(listOf(Message.user(question), Message.assistant(answer)), last.turns)
    assertNull(last.question)
    assertTrue("$last", last.canvas.isEmpty() && last.tokensPerSecond!! > 0)
    model.forget()
    assertTrue(model.state.value.turns.isEmpty())
    assertTrue(runBlocking { model.memoryBytes.first() } > 10_000_000)
  }

  @Test
  fun theSameAnswerComesWhereMemoryRunsLow() {
    val model = model(Bundles.GEMMA)
    for (before in listOf({}, { model.onTrimMemory(40) }, { model.onReturn() })) {
      before()
      model.forget()
      model.ask(question, 1_000_000_000)
      assertEquals(answer, model.whenOver().turns.last().content())
    }
  }

  @Test
  fun stoppingBeforeTheFirstTokenLeavesNoTurn() {
    val model = model(Bundles.GEMMA)
    model.ask(question, 0)
    model.measure(0)  // one at a time
    assertEquals(Work.ANSWERING, model.state.value.work)
    model.stop()
    val stopped = model.whenOver()
    assertTrue("$stopped", stopped.turns.isEmpty() && stopped.question == null && stopped.message == null)
    runBlocking { withTimeout(10_000) { while (model.state.value.turns.isEmpty()) { model.ask(question, 0); model.whenOver() } } }
    assertEquals(answer, model.state.value.turns.last().content())
  }

  @Test
  fun whatGoesWrongIsOneLine() {
    val model = model(File(scratch.root, "bundle").path)
    model.fetch("none")
    val refusedAddress = model.whenOver()
    assertEquals(ChatState.Problem.ADDRESS, refusedAddress.problem)
    assertTrue("$refusedAddress", refusedAddress.message!!.contains("no address"))
    model.fetch("${System.getProperty("fetch.url")}/none")
    val notThere = model.whenOver()
    assertNull(notThere.problem)
    assertTrue("$notThere", notThere.message!!.contains("edgekit.json"))
    model.ask(question, 0)
    assertTrue(model.whenOver().message!!.contains("bundle"))
    val small = model(Bundles.GEMMA)
    small.ask(question, 1)
    val refused = small.whenOver()
    assertTrue("$refused", refused.message!!.contains("memory"))
    assertTrue(refused.turns.isEmpty() && refused.question == null)
  }

  @Test
  fun theReportIsAFile() {
    val model = model(Bundles.GEMMA)
    assertFalse(model.state.value.hasReport)
    model.measure(0)
    val measured = model.whenOver()
    assertNull(measured.message)
    assertTrue(measured.hasReport && model(Bundles.GEMMA).state.value.hasReport)
    val written = ByteArrayOutputStream()
    val done = CompletableDeferred<Unit>()
    model.export(object : java.io.OutputStream() {
      override fun write(byte: Int) = written.write(byte)

      override fun close() {
        done.complete(Unit)
      }
    })
    runBlocking { withTimeout(10_000) { done.await() } }
    assertTrue(written.toString(), written.toString().contains(Regex("\"edgekit_bench\": ?1")))
    assertEquals(report.readText(), written.toString())
  }
}
