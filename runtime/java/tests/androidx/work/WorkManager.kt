// The part of androidx.work 2.9 that BundleFetchWorker uses, with the names and types that its documentation has, for tests
// of the worker without Android. What is put into a request comes out of it again, and nothing is scheduled.
package androidx.work

import android.content.Context
import java.util.concurrent.TimeUnit

enum class NetworkType { NOT_REQUIRED, CONNECTED, UNMETERED, NOT_ROAMING, METERED }

enum class BackoffPolicy { EXPONENTIAL, LINEAR }

class Data internal constructor(private val values: Map<String, Any?>) {
  fun getString(key: String): String? = values[key] as? String

  @Suppress("UNCHECKED_CAST")
  fun getStringArray(key: String): Array<String>? = values[key] as? Array<String>

  fun getLong(key: String, defaultValue: Long): Long = values[key] as? Long ?: defaultValue

  class Builder {
    private val values = mutableMapOf<String, Any?>()

    fun putString(key: String, value: String?): Builder = also { values[key] = value }

    fun putStringArray(key: String, value: Array<String>): Builder = also { values[key] = value }

    fun putLong(key: String, value: Long): Builder = also { values[key] = value }

    fun build(): Data = Data(values.toMap())
  }
}

class Constraints internal constructor(val requiredNetworkType: NetworkType, private val storageNotLow: Boolean) {
  fun requiresStorageNotLow(): Boolean = storageNotLow

  class Builder {
    private var network = NetworkType.NOT_REQUIRED
    private var storageNotLow = false

    fun setRequiredNetworkType(networkType: NetworkType): Builder = also { network = networkType }

    fun setRequiresStorageNotLow(requiresStorageNotLow: Boolean): Builder = also { storageNotLow = requiresStorageNotLow }

    fun build(): Constraints = Constraints(network, storageNotLow)
  }
}

class OneTimeWorkRequest internal constructor(
  val worker: Class<out ListenableWorker>, val constraints: Constraints, val input: Data, val backoff: BackoffPolicy,
  val backoffMillis: Long,
) {
  class Builder(private val worker: Class<out ListenableWorker>) {
    private var constraints = Constraints.Builder().build()
    private var input = Data.Builder().build()
    private var backoff = BackoffPolicy.EXPONENTIAL
    private var backoffMillis = 30_000L

    fun setConstraints(constraints: Constraints): Builder = also { it.constraints = constraints }

    fun setInputData(inputData: Data): Builder = also { input = inputData }

    fun setBackoffCriteria(backoffPolicy: BackoffPolicy, backoffDelay: Long, timeUnit: TimeUnit): Builder = also {
      backoff = backoffPolicy
      backoffMillis = timeUnit.toMillis(backoffDelay)
    }

    fun build(): OneTimeWorkRequest = OneTimeWorkRequest(worker, constraints, input, backoff, backoffMillis)
  }
}

/** Of the notification that an application makes. */
class ForegroundInfo(val notificationId: Int)

/** What WorkManager gives a worker; in tests, a test does. */
class WorkerParameters(val inputData: Data, val runAttemptCount: Int)

abstract class ListenableWorker(val applicationContext: Context, private val parameters: WorkerParameters) {
  val inputData: Data get() = parameters.inputData
  val runAttemptCount: Int get() = parameters.runAttemptCount

  sealed class Result {
    data class Success(val outputData: Data?) : Result()

    data class Failure(val outputData: Data) : Result()

    object Retry : Result()

    companion object {
      @JvmStatic fun success(): Result = Success(null)

      @JvmStatic fun failure(outputData: Data): Result = Failure(outputData)

      @JvmStatic fun retry(): Result = Retry
    }
  }
}

abstract class CoroutineWorker(appContext: Context, params: WorkerParameters) : ListenableWorker(appContext, params) {
  /** In order, for tests. */
  val progresses = mutableListOf<Data>()
  val foregrounds = mutableListOf<ForegroundInfo>()

  abstract suspend fun doWork(): Result

  suspend fun setProgress(data: Data) {
    progresses.add(data)
  }

  suspend fun setForeground(foregroundInfo: ForegroundInfo) {
    foregrounds.add(foregroundInfo)
  }
}
