package io.edgekit

import io.edgekit.sample.model.ChatModel
import io.edgekit.sample.model.ChatState
import io.edgekit.sample.model.ChatState.Work
import java.io.File
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The sample application over an NPU that loads and then fails, as Qualcomm's emulation does without the number of a chip. */
class ChatBesideNpuTest {
  @get:Rule val scratch = TemporaryFolder()

  private fun ChatModel.whenOver(): ChatState = runBlocking { withTimeout(60_000) { state.first { it.work == Work.NONE } } }

  @Test
  fun theBundleForTheProcessorIsFetchedWhereTheNpuFails() {
    val url = System.getProperty("npu.url")
    assumeTrue(url != null)
    val npu = Npu().onnxRuntime(System.getProperty("npu.onnxruntime")).provider(System.getProperty("npu.provider"))
    val model = ChatModel(File(scratch.root, "bundle"), File(scratch.root, "report.json"), npu.backend(System.getProperty("npu.backend")))
    model.fetch(url)
    assertNull(model.whenOver().message)
    model.ask("Copy this: red 7", 0)
    val failed = model.whenOver()
    assertEquals("$failed", ChatState.Problem.NPU, failed.problem)
    assertEquals(false, failed.hasNpu)
    assertTrue("$failed", failed.turns.isEmpty())
    model.fetch(url)
    assertNull(model.whenOver().message)
    model.ask("Copy this: red 7", 0)
    assertEquals("red 7", model.whenOver().turns.last().content())
  }
}
