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
    model.ask(System.getProperty("npu.question"), 0)
    val last = model.whenOver()
    assertEquals(true, last.hasNpu)
    // An answer has more positions than its packages: that it is refused tells which bundle was opened, and takes no pass.
    assertTrue("$last", last.message!!.contains(Regex("/qnn: .* positions are more")))
  }
}
