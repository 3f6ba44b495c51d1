package io.edgekit

import android.content.Context
import androidx.work.BackoffPolicy
import androidx.work.Data
import androidx.work.ForegroundInfo
import androidx.work.ListenableWorker.Result
import androidx.work.NetworkType
import androidx.work.WorkerParameters
import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The flow of a fetch, and the worker over stand-ins for WorkManager's classes. Properties as FetchTest has them. */
class FetchFlowTest {
  @get:Rule val scratch = TemporaryFolder()

  private val url = System.getProperty("fetch.url")
  private val slow = System.getProperty("fetch.slow")
  private val target by lazy { File(scratch.root, "bundle") }

  private fun checkWhole() {
    val served = File(System.getProperty("fetch.folder"))
    val files = served.walk().filter(File::isFile).toList()
    assertTrue(files.size > 3)
    for (file in files) assertTrue(file.path, file.readBytes().contentEquals(File(target, file.relativeTo(served).path).readBytes()))
  }

  /** Leaves the flow of a fetch when some of it has arrived. */
  private suspend fun collectAndLeave(fetch: BundleFetch) = coroutineScope {
    var here = 0L
    val job = launch(Dispatchers.Default) { fetch.running().collect { here = it.wholeBytes() + it.arrivedBytes() } }
    while (here < 1_000_000) delay(1)
    withTimeout(5000) { job.cancelAndJoin() }
  }

  @Test
  fun aFlowTellsHowFarItIs() {
    BundleFetch.open(target, FetchOptions(url)).use { fetch ->
      val told = runBlocking { fetch.running().toList() }
      assertEquals(told.last().totalBytes(), told.last().wholeBytes())
      fetch.finish()
    }
    checkWhole()
  }

  @Test
  fun leavingEndsTheFetchAndAnotherGoesOn() {
    BundleFetch.open(target, FetchOptions(slow).requestBytes(65536)).use { fetch ->
      runBlocking { collectAndLeave(fetch) }
      assertThrows(EdgeKitException::class.java) { fetch.finish() }
    }
    BundleFetch.open(target, FetchOptions(url)).use { fetch ->
      val told = runBlocking { fetch.running().toList() }
      assertTrue(told.last().foundBytes() > 0)
    }
  }

  @Test
  fun theSameFetchGoesOnWhereItIsCollectedAgain() {
    BundleFetch.open(target, FetchOptions(slow).requestBytes(65536)).use { fetch ->
      runBlocking {
        collectAndLeave(fetch)
        assertEquals(0, fetch.progress().requests())
        val error = assertThrows(IllegalStateException::class.java) { runBlocking { fetch.running().collect { fetch.pause() } } }
        assertTrue(error.message!!.contains("paused"))
        val told = fetch.running().toList()
        assertEquals(told.last().totalBytes(), told.last().wholeBytes())
        assertEquals(0, told.last().foundBytes())
      }
      fetch.finish()
    }
    checkWhole()
  }

  @Test
  fun failuresComeOutOfTheFlow() {
    BundleFetch.open(target, FetchOptions("$url/none")).use { fetch ->
      val error = assertThrows(EdgeKitException::class.java) { runBlocking { fetch.running().toList() } }
      assertEquals(EdgeKitException.Status.FETCH_FAILED, error.status())
    }
    val closed = BundleFetch.open(target, FetchOptions(slow))
    assertThrows(IllegalStateException::class.java) { runBlocking { closed.running().collect { closed.close() } } }
  }

  private class Shown(parameters: WorkerParameters) : BundleFetchWorker(Context(), parameters) {
    val steps = mutableListOf<String>()

    override fun foreground(progress: FetchProgress?): ForegroundInfo = ForegroundInfo(if (progress == null) 0 else 1)

    override suspend fun finish(fetch: BundleFetch) {
      steps.add("sessions are closed")
      super.finish(fetch)
      steps.add("in place")
    }
  }

  private fun parameters(source: String, attempt: Int = 0) =
    WorkerParameters(BundleFetchWorker.request(target, listOf(source)).build().input, attempt)

  private fun message(result: Result): String? = (result as Result.Failure).outputData.getString(BundleFetchWorker.MESSAGE)

  @Test
  fun workBringsTheBundle() {
    val worker = Shown(parameters(url))
    assertEquals(Result.success(), runBlocking { worker.doWork() })
    checkWhole()
    assertEquals(listOf("sessions are closed", "in place"), worker.steps)
    val last = worker.progresses.last()
    assertTrue(last.getLong(BundleFetchWorker.TOTAL_BYTES, -1) > 3_000_000)
    assertEquals(last.getLong(BundleFetchWorker.TOTAL_BYTES, -1), last.getLong(BundleFetchWorker.HERE_BYTES, -2))
    assertEquals(0, worker.foregrounds.first().notificationId)
    assertEquals(1, worker.foregrounds.last().notificationId)
    val plain = BundleFetchWorker(Context(), parameters(url))
    assertEquals(Result.success(), runBlocking { plain.doWork() })
    assertTrue(plain.foregrounds.isEmpty())
  }

  @Test
  fun workThatIsStoppedGoesOn() {
    runBlocking {
      val worker = BundleFetchWorker(Context(), parameters(slow))
      val job = launch(Dispatchers.Default) { worker.doWork() }
      val far = { worker.progresses.lastOrNull()?.getLong(BundleFetchWorker.HERE_BYTES, 0) ?: 0 }
      while (far() == 0L) delay(1)
      withTimeout(5000) { job.cancelAndJoin() }
    }
    assertFalse(target.exists())
    assertEquals(Result.success(), runBlocking { BundleFetchWorker(Context(), parameters(url)).doWork() })
    checkWhole()
  }

  @Test
  fun workIsTriedAgainWhereThatMayHelp() {
    fun outcome(source: String, attempt: Int = 0) =
      runBlocking { BundleFetchWorker(Context(), parameters(source, attempt)).doWork() }
    assertEquals(Result.retry(), outcome("$url/none"))
    assertEquals(Result.retry(), outcome("$url/none", 9))
    assertTrue(message(outcome("$url/none", 10))!!.contains("edgekit.json"))
    assertTrue(message(outcome("none"))!!.contains("no address"))
    BundleFetch.open(target, FetchOptions(url)).use { assertEquals(Result.retry(), outcome(url)) }
    File(scratch.root, "bundle/mine.txt").apply { parentFile.mkdirs() }.writeText("of somebody else")
    assertTrue(message(outcome(url))!!.contains("mine.txt"))
    val bare = BundleFetchWorker(Context(), WorkerParameters(Data.Builder().build(), 0))
    assertTrue(message(runBlocking { bare.doWork() })!!.contains("request()"))
  }

  @Test
  fun aRequestHasItsConstraints() {
    val request = BundleFetchWorker.request(target, listOf(url), "0".repeat(64), worker = BundleFetchWorker::class.java).build()
    assertEquals(NetworkType.UNMETERED, request.constraints.requiredNetworkType)
    assertTrue(request.constraints.requiresStorageNotLow())
    assertEquals(BackoffPolicy.EXPONENTIAL, request.backoff)
    assertEquals(30_000, request.backoffMillis)
    assertEquals(BundleFetchWorker::class.java, request.worker)
    val worker = BundleFetchWorker(Context(), WorkerParameters(request.input, 0))
    assertTrue(message(runBlocking { worker.doWork() })!!.contains("expected 0000"))
    val other = BundleFetchWorker.request(target, listOf(url), network = NetworkType.CONNECTED).build()
    assertEquals(NetworkType.CONNECTED, other.constraints.requiredNetworkType)
    assertNull(other.input.getString("io.edgekit.sha256"))
  }
}
