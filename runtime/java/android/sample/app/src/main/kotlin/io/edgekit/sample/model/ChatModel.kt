package io.edgekit.sample.model

import io.edgekit.Benchmark
import io.edgekit.Bundle
import io.edgekit.BundleFetch
import io.edgekit.CanvasText
import io.edgekit.EdgeKitException
import io.edgekit.EdgeKitException.Status
import io.edgekit.Event
import io.edgekit.FetchOptions
import io.edgekit.GenerationSettings
import io.edgekit.Library
import io.edgekit.Message
import io.edgekit.Npu
import io.edgekit.Session
import io.edgekit.SessionOptions
import io.edgekit.Tokenizer
import io.edgekit.events
import io.edgekit.running
import io.edgekit.sample.model.ChatState.Problem
import io.edgekit.sample.model.ChatState.Work
import java.io.File
import java.io.IOException
import java.io.OutputStream
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.runInterruptible

/**
 * What the application does: brings a bundle to [folder], answers with it, measures it. It knows nothing of Android, and its
 * calls, of one thread, return at once; [state] says what becomes of them.
 *
 * One piece of work runs at a time, and while it does others are not begun. [stop] ends any of them. The first of them looks for
 * [npu]: where there is none, bundles for the processor are fetched and run.
 */
class ChatModel(private val folder: File, private val report: File, private val npu: Npu? = null) {
  private val scope = CoroutineScope(SupervisorJob() + Dispatchers.IO)
  private val shown = MutableStateFlow(ChatState(hasBundle = hasBundle(), hasReport = report.isFile))
  private var job: Job? = null

  /** Written by the work alone; read by whoever tells of memory. */
  @Volatile private var session: Session? = null
  private var openedWith = 0L
  private var openedBytes = 0L

  /** The system had memory given back while the application could not be seen, and it is seen again. */
  @Volatile private var hasReturned = false

  /** It failed with a bundle that it should run. */
  private var npuFails = false

  val state: StateFlow<ChatState> = shown.asStateFlow()

  /** Physical memory of the process, twice a second; 0 where the system does not tell. */
  val memoryBytes: Flow<Long> = flow {
    while (true) {
      emit(Library.processBytes())
      delay(LOOK_MILLISECONDS)
    }
  }

  /** Brings the bundle at [address], and goes on with what an earlier fetch of it has left. [stop] pauses it. */
  fun fetch(address: String) = begin(Work.FETCHING) {
    val options = FetchOptions(address.trim())
    if (npuFails) options.formats(NATIVE)
    try {
      BundleFetch.open(folder, options).use { fetch ->
        fetch.running().collect { progress ->
          shown.update { it.copy(hereBytes = progress.wholeBytes() + progress.arrivedBytes(), totalBytes = progress.totalBytes()) }
        }
        close()  // a session reads the bundle that is replaced now
        fetch.finish()
      }
    } catch (error: IllegalArgumentException) {  // of what the user has typed
      tell(error, Problem.ADDRESS)
      return@begin
    }
    shown.update { it.copy(hasBundle = true, turns = emptyList()) }
  }

  /** Answers [question], behind what was said before, in [budget] bytes of memory (0: no limit). */
  fun ask(question: String, budget: Long) = begin(Work.ANSWERING) {
    shown.update { it.copy(question = question, canvas = emptyList(), step = 0, tokensPerSecond = null) }
    val text = StringBuilder()
    try {
      val own = opened(budget)
      val conversation = shown.value.turns + Message.user(question)
      fitting(GenerationSettings(), MOST_TOKENS) { settings ->
        val canvas = CanvasText(own.tokenizer())
        own.events(conversation, settings).collect { event ->
          if (event is Event.Text) text.append(event.text())
          canvas.fold(event)
          val parts = canvas.parts()
          shown.update { it.copy(canvas = parts, step = canvas.step(), tokensPerSecond = canvas.statistics()?.tokensPerSecond()) }
        }
      }
    } finally {
      // What an answer that was stopped has is kept; one that has nothing is no turn.
      val turns = if (text.isEmpty()) emptyList() else listOf(Message.user(question), Message.assistant("$text"))
      shown.update { it.copy(turns = it.turns + turns, question = null, canvas = emptyList()) }
    }
  }

  /** Measures the bundle as `edgekit bench` does, in [budget] bytes of memory, and keeps the report for [export]. */
  fun measure(budget: Long) = begin(Work.MEASURING) {
    close()  // the measured session has the budget for itself
    val prompt = Tokenizer.open(folder.path).use { it.prompt(Message.user(MEASURED_QUESTION)) }
    val benchmark = Benchmark(folder.path).session(options(budget)).runs(1, MEASURED_RUNS)
    val line = fitting(GenerationSettings().maxNewTokens(MEASURED_TOKENS), MEASURED_TOKENS / 2) { settings ->
      runInterruptible { benchmark.run(prompt, settings) }
    }
    report.writeText(line + "\n")
    shown.update { it.copy(hasReport = true) }
  }

  /** Ends what is under way: a fetch goes on later, an answer keeps what it has. */
  fun stop() {
    job?.cancel()
  }

  /** Forgets the conversation. */
  fun forget() {
    if (shown.value.work == Work.NONE) shown.update { it.copy(turns = emptyList(), tokensPerSecond = null, message = null) }
  }

  /** Writes the report to [output] and closes it. */
  fun export(output: OutputStream) {
    scope.launch {
      try {
        output.use { to -> report.inputStream().use { it.copyTo(to) } }
      } catch (error: IOException) {
        tell(error)
      }
    }
  }

  /** Gives memory back; `level` as `ComponentCallbacks2` has it. */
  fun onTrimMemory(level: Int) {
    session?.onTrimMemory(level)
  }

  /** The application is seen again: a session that gave memory back meanwhile is opened anew for the next question. */
  fun onReturn() {
    hasReturned = true
  }

  private fun begin(work: Work, body: suspend () -> Unit) {
    if (shown.value.work != Work.NONE) return
    shown.update { it.copy(work = work, message = null, problem = null) }
    val own = scope.launch {
      try {
        lookForNpu()
        body()
      } catch (error: EdgeKitException) {
        tell(error, problemOf(error))
      } catch (error: IOException) {
        tell(error)
      }
    }
    job = own
    own.invokeOnCompletion { shown.update { it.copy(work = Work.NONE) } }  // also where it was stopped before it began
  }

  /** Which bundle is fetched, or opened of several, depends on it. */
  private fun lookForNpu() {
    if (npu == null || shown.value.hasNpu != null) return
    try {
      npu.load()
      shown.update { it.copy(hasNpu = true) }
    } catch (error: EdgeKitException) {
      shown.update { it.copy(hasNpu = false, whyNoNpu = error.message) }
    }
  }

  /**
   * What [work] gives with [settings], or else with [most] tokens, half as many, and so on: packages for an NPU take no more
   * positions than they were exported for, which is found before anything is computed.
   */
  private suspend fun <T> fitting(settings: GenerationSettings, most: Long, work: suspend (GenerationSettings) -> T): T {
    var asked = settings
    var tokens = most
    while (true) {
      try {
        return work(asked)
      } catch (error: EdgeKitException) {
        if (error.status() != Status.PROMPT_TOO_LONG || tokens < LEAST_TOKENS) throw error
      }
      asked = GenerationSettings().maxNewTokens(tokens)
      tokens /= 2
    }
  }

  /** What the user can do about it. An NPU that fails is not asked again: the next fetch brings a bundle for the processor. */
  private fun problemOf(error: EdgeKitException): Problem? = when {
    error.status() == Status.PROMPT_TOO_LONG -> Problem.TOO_LONG
    error.status() in listOf(Status.ENGINE_FAILED, Status.UNSUPPORTED_BUNDLE) && isForNpu() -> {
      npuFails = true
      close()
      shown.update { it.copy(hasNpu = false, whyNoNpu = error.message) }
      Problem.NPU
    }
    else -> null
  }

  /** Of the bundle in the folder, or the one of several that sessions take. */
  private fun isForNpu(): Boolean = try {
    Bundle.open(folder.path).use { FOR_NPU.containsMatchIn(it.manifest()) }
  } catch (error: EdgeKitException) {
    false
  }

  private fun opened(budget: Long): Session {
    val open = session
    val gaveBack = open != null && open.statistics().pinnedBytes() < openedBytes
    if (open != null && openedWith == budget && !(gaveBack && hasReturned)) return open
    close()
    return Session.open(folder.path, options(budget)).also {
      hasReturned = false
      openedWith = budget
      openedBytes = it.statistics().pinnedBytes()
      session = it
    }
  }

  private fun close() {
    session?.close()
    session = null
  }

  private fun options(budget: Long) = SessionOptions().memoryBytes(budget).canvas(LONGEST_PASS)

  private fun tell(error: Exception, problem: Problem? = null) =
    shown.update { it.copy(message = error.message ?: "$error", problem = problem) }

  private fun hasBundle() = Bundle.exists(folder.path)

  private companion object {
    const val LOOK_MILLISECONDS = 500L

    /** Tokens that a memory budget has room for in a pass: of families without a causal prefix, prompt and answer. */
    const val LONGEST_PASS = 512L
    const val MEASURED_QUESTION = "Why is the sky blue?"
    const val MEASURED_RUNS = 3
    const val MEASURED_TOKENS = 64L

    /** Of answers that are asked for where the model's own length is too much, the first and the last of them. */
    const val MOST_TOKENS = 64L
    const val LEAST_TOKENS = 8L

    const val NATIVE = "native"
    val FOR_NPU = Regex("\"format\": ?\"qnn\"")
  }
}
