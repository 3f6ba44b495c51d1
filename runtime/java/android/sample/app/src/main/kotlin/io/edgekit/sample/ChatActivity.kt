package io.edgekit.sample

import android.app.Activity
import android.content.Intent
import android.os.Bundle
import android.view.View
import android.widget.ArrayAdapter
import android.widget.Button
import android.widget.EditText
import android.widget.ProgressBar
import android.widget.ScrollView
import android.widget.Spinner
import android.widget.TextView
import io.edgekit.sample.model.ChatState
import io.edgekit.sample.model.ChatState.Problem
import io.edgekit.sample.model.ChatState.Work
import java.io.IOException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.launch

/** The one screen: shows the model's state, and tells it what was pressed. */
class ChatActivity : Activity() {
  private val model get() = (application as ChatApplication).model
  private val address by lazy { findViewById<EditText>(R.id.address) }
  private val fetch by lazy { findViewById<Button>(R.id.fetch) }
  private val arrived by lazy { findViewById<ProgressBar>(R.id.arrived) }
  private val budget by lazy { findViewById<Spinner>(R.id.budget) }
  private val scroll by lazy { findViewById<ScrollView>(R.id.scroll) }
  private val chat by lazy { findViewById<TextView>(R.id.chat) }
  private val message by lazy { findViewById<TextView>(R.id.message) }
  private val memory by lazy { findViewById<TextView>(R.id.memory) }
  private val processor by lazy { findViewById<TextView>(R.id.processor) }
  private val speed by lazy { findViewById<TextView>(R.id.speed) }
  private val prompt by lazy { findViewById<EditText>(R.id.prompt) }
  private val ask by lazy { findViewById<Button>(R.id.ask) }
  private val measure by lazy { findViewById<Button>(R.id.measure) }
  private val export by lazy { findViewById<Button>(R.id.export) }
  private val forget by lazy { findViewById<Button>(R.id.forget) }
  private val drawn by lazy { ChatText(getColor(R.color.accepted), getColor(R.color.draft)) }
  private var shown: CoroutineScope? = null

  override fun onCreate(savedInstanceState: Bundle?) {
    super.onCreate(savedInstanceState)
    setContentView(R.layout.chat)
    budget.adapter = ArrayAdapter(this, android.R.layout.simple_spinner_dropdown_item, Budget.entries.map { getString(it.title) })
    fetch.setOnClickListener { if (isAt(Work.FETCHING)) model.stop() else model.fetch("${address.text}") }
    ask.setOnClickListener { if (isAt(Work.ANSWERING)) model.stop() else ask() }
    measure.setOnClickListener { if (isAt(Work.MEASURING)) model.stop() else model.measure(chosen()) }
    forget.setOnClickListener { model.forget() }
    export.setOnClickListener {
      val intent = Intent(Intent.ACTION_CREATE_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE)
      startActivityForResult(intent.setType("application/json").putExtra(Intent.EXTRA_TITLE, "edgekit-bench.json"), EXPORT)
    }
  }

  override fun onStart() {
    super.onStart()
    model.onReturn()
    val scope = MainScope()
    scope.launch { model.state.collect { show(it) } }
    scope.launch { model.memoryBytes.collect { memory.text = getString(R.string.memory, it / MEGABYTE) } }
    shown = scope
  }

  override fun onStop() {
    shown?.cancel()
    super.onStop()
  }

  override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
    super.onActivityResult(requestCode, resultCode, data)
    val to = data?.data
    if (requestCode != EXPORT || resultCode != RESULT_OK || to == null) return
    try {
      contentResolver.openOutputStream(to)?.let { model.export(it) }
    } catch (error: IOException) {
      message.text = error.message
    }
  }

  private fun isAt(work: Work) = model.state.value.work == work

  private fun chosen() = Budget.entries[budget.selectedItemPosition].bytes

  private fun ask() {
    val question = "${prompt.text}".trim()
    if (question.isEmpty()) return
    prompt.setText("")
    model.ask(question, chosen())
  }

  private fun show(state: ChatState) {
    val isIdle = state.work == Work.NONE
    button(fetch, state, Work.FETCHING, R.string.fetch, R.string.pause, true)
    button(ask, state, Work.ANSWERING, R.string.ask, R.string.stop, state.hasBundle)
    button(measure, state, Work.MEASURING, R.string.measure, R.string.stop, state.hasBundle)
    export.isEnabled = isIdle && state.hasReport
    forget.isEnabled = isIdle && state.turns.isNotEmpty()
    address.isEnabled = isIdle
    budget.isEnabled = isIdle
    arrived.visibility = if (state.work == Work.FETCHING) View.VISIBLE else View.GONE
    arrived.isIndeterminate = state.totalBytes == 0L
    arrived.progress = if (state.totalBytes == 0L) 0 else (state.hereBytes * arrived.max / state.totalBytes).toInt()
    // The fetch is the application's own: it pauses where the system ends the process.
    arrived.keepScreenOn = state.work == Work.FETCHING
    speed.text = state.tokensPerSecond?.let { getString(R.string.speed, it) } ?: ""
    processor.text = when (state.hasNpu) {
      null -> ""
      true -> getString(R.string.npu)
      false -> getString(R.string.no_npu, state.whyNoNpu)
    }
    message.text = listOfNotNull(state.problem?.let { cure(it) }, state.message ?: told(state)).joinToString("\n")
    chat.text = drawn.of(state)
    if (state.work == Work.ANSWERING) scroll.post { scroll.fullScroll(View.FOCUS_DOWN) }
  }

  private fun told(state: ChatState): String = when (state.work) {
    Work.NONE -> getString(if (state.hasBundle) R.string.ready else R.string.no_bundle)
    Work.FETCHING -> getString(R.string.fetching, state.hereBytes / MEGABYTE, state.totalBytes / MEGABYTE)
    Work.ANSWERING -> if (state.step > 0) getString(R.string.step, state.step) else getString(R.string.reading)
    Work.MEASURING -> getString(R.string.measuring)
  }

  private fun cure(problem: Problem): String = when (problem) {
    Problem.ADDRESS -> getString(R.string.other_address)
    Problem.TOO_LONG -> getString(R.string.too_long)
    Problem.NPU -> getString(R.string.fetch_again)
  }

  /** A button that begins a piece of work, and ends it while it runs. */
  private fun button(button: Button, state: ChatState, work: Work, begins: Int, ends: Int, isOfUse: Boolean) {
    button.setText(if (state.work == work) ends else begins)
    button.isEnabled = state.work == work || state.work == Work.NONE && isOfUse
  }

  private companion object {
    const val EXPORT = 1
    const val MEGABYTE = 1_000_000L
  }
}
