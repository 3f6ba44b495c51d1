package io.edgekit

import android.content.Context
import androidx.work.BackoffPolicy
import androidx.work.Constraints
import androidx.work.CoroutineWorker
import androidx.work.Data
import androidx.work.ForegroundInfo
import androidx.work.NetworkType
import androidx.work.OneTimeWorkRequest
import androidx.work.WorkerParameters
import java.io.File
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.withContext

/**
 * Brings a bundle to its folder as work of WorkManager's, which runs it where there is a network, and again after it was
 * stopped or no server could be reached: it goes on with what has arrived.
 *
 *     val request = BundleFetchWorker.request(File(filesDir, "llada"), listOf("https://host/llada"), sha256 = DIGITS)
 *     WorkManager.getInstance(this).enqueueUniqueWork("llada", ExistingWorkPolicy.KEEP, request.build())
 *
 * Android stops plain work after ten minutes, and WorkManager runs it again later. A subclass that gives a notification
 * ([foreground]) goes on for as long as it takes; one of an application that has sessions of the bundle open closes them
 * before it is replaced ([finish]).
 */
open class BundleFetchWorker(context: Context, parameters: WorkerParameters) : CoroutineWorker(context, parameters) {
  /** Where the bundle comes from: what [request] was given. */
  protected open fun options(): FetchOptions {
    val sources = requireNotNull(inputData.getStringArray(SOURCES)) { "the work has no sources; make it with request()" }
    return FetchOptions(*sources).sha256(inputData.getString(SHA256))
  }

  /** The notification that lets the system run it for long; null, as here: none. [progress] is null at first. */
  protected open fun foreground(progress: FetchProgress?): ForegroundInfo? = null

  /** Puts the bundle in its place. No session of the one that is there may be open. */
  protected open suspend fun finish(fetch: BundleFetch) = fetch.finish()

  /** Whether WorkManager is to run it again, later and later: where no source gave what was asked for, ten times. */
  protected open fun isWorthAnotherTry(error: EdgeKitException): Boolean {
    // Another one at the same folder is one that was stopped, and is about to end.
    val passes = error.status() == EdgeKitException.Status.FETCH_FAILED || error.status() == EdgeKitException.Status.INVALID_STATE
    return passes && runAttemptCount < MOST_ATTEMPTS
  }

  final override suspend fun doWork(): Result {
    // Work that is stopped while it opens gets no result of withContext, and has to close it all the same.
    var opened: BundleFetch? = null
    return try {
      foreground(null)?.let { setForeground(it) }
      val fetch = withContext(Dispatchers.IO) { BundleFetch.open(folder(), options()).also { opened = it } }
      fetch.running().collect { progress ->
        setProgress(told(progress))
        foreground(progress)?.let { setForeground(it) }
        delay(LOOK_MILLISECONDS)
      }
      withContext(Dispatchers.IO) { finish(fetch) }
      Result.success()
    } catch (error: EdgeKitException) {
      if (isWorthAnotherTry(error)) Result.retry() else failed(error)
    } catch (error: IllegalArgumentException) {
      failed(error)
    } finally {
      opened?.close()
    }
  }

  private fun folder(): String =
    requireNotNull(inputData.getString(FOLDER)) { "the work has no folder; make it with request()" }

  private fun failed(error: RuntimeException): Result =
    Result.failure(Data.Builder().putString(MESSAGE, error.message).build())

  private fun told(progress: FetchProgress): Data =
    Data.Builder()
      .putLong(HERE_BYTES, progress.wholeBytes() + progress.arrivedBytes())
      .putLong(TOTAL_BYTES, progress.totalBytes())
      .build()

  companion object {
    /** Of the progress: bytes of the bundle that are here, and all of them (0 while that is not known). */
    const val HERE_BYTES = "io.edgekit.here_bytes"
    const val TOTAL_BYTES = "io.edgekit.total_bytes"

    /** Of the output of work that failed: one line for the user. */
    const val MESSAGE = "io.edgekit.message"

    /**
     * Work that fetches into [folder] from [sources], see [FetchOptions], where there is a [network] that costs nothing or
     * another kind, and room on the disk.
     */
    fun request(
      folder: File, sources: List<String>, sha256: String? = null, network: NetworkType = NetworkType.UNMETERED,
      worker: Class<out BundleFetchWorker> = BundleFetchWorker::class.java,
    ): OneTimeWorkRequest.Builder =
      OneTimeWorkRequest.Builder(worker)
        .setConstraints(Constraints.Builder().setRequiredNetworkType(network).setRequiresStorageNotLow(true).build())
        .setBackoffCriteria(BackoffPolicy.EXPONENTIAL, BACKOFF_SECONDS, TimeUnit.SECONDS)
        .setInputData(
          Data.Builder()
            .putString(FOLDER, folder.path)
            .putStringArray(SOURCES, sources.toTypedArray())
            .putString(SHA256, sha256)
            .build())

    private const val FOLDER = "io.edgekit.folder"
    private const val SOURCES = "io.edgekit.sources"
    private const val SHA256 = "io.edgekit.sha256"
    private const val MOST_ATTEMPTS = 10
    private const val LOOK_MILLISECONDS = 500L
    private const val BACKOFF_SECONDS = 30L
  }
}
