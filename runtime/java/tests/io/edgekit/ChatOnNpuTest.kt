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

/** The sample application over the NPU, in Qualcomm's emulation, where test_java.py finds it; else on the processor. */
class ChatOnNpuTest {
  @get:Rule val scratch = TemporaryFolder()

  private fun ChatModel.whenOver(): ChatState = runBlocking { withTimeout(60_000) { state.first { it.work == Work.NONE } } }

  private fun model(folder: String, npu: Npu?) = ChatModel(File(folder), File(scratch.root, "report.json"), npu)

  @Test
  fun theProcessorAnswersWhereThereIsNoNpu() {
    val model = model(Bundles.LLADA, Npu().onnxRuntime("libnothing.so"))
    assertNull(model.state.value.hasNpu)
    model.ask("Copy this: red 7", 0)
    val last = model.whenOver()
    assertEquals(false, last.hasNpu)
    assertTrue("$last", last.whyNoNpu!!.contains("libnothing.so"))
    assertEquals("red 7", last.turns.last().content())
    assertNull(last.message)
  }

  @Test
  fun ofASetTheBundleForTheNpuIsTaken() {
    val set = System.getProperty("npu.set")
    assumeTrue(set != null)
    val npu = Npu().onnxRuntime(System.getProperty("npu.onnxruntime")).provider(System.getProperty("npu.provider"))
    val model = model(set, npu.backend(System.getProperty("npu.backend")).emulatedChip(57))
    // More positions than its packages have: that it is refused tells which bundle was opened, and takes no pass.
    model.ask("Copy this: red 7. ".repeat(20), 0)
    val refused = model.whenOver()
    assertEquals(true, refused.hasNpu)
    assertTrue("$refused", refused.message!!.contains(Regex("/qnn: .* positions are more")))
    assertEquals(ChatState.Problem.TOO_LONG, refused.problem)
    // With the model's own length this one is too long as well: fewer tokens are asked for.
    model.ask(System.getProperty("npu.question"), 0)
    val begun = runBlocking { withTimeout(60_000) { model.state.first { it.step > 0 || it.work == Work.NONE } } }
    assertTrue("$begun", begun.step > 0 && begun.message == null)
    model.stop()
    assertNull(model.whenOver().message)
  }
}
