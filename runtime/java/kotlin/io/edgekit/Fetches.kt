@file:JvmName("Fetches")

package io.edgekit

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.channels.trySendBlocking
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.launch

/**
 * Runs the fetch, see [BundleFetch.run], on threads for blocking work, and tells how far it is.
 *
 * It ends when all is here, for [BundleFetch.finish]. A slow collector sees the newest. Cancelling the collector pauses the fetch:
 * collecting the flow again goes on. It is collected once at a time. The flow fails with what [BundleFetch.run] throws, and with
 * [IllegalStateException] where the fetch was paused ([BundleFetch.pause]) or closed meanwhile.
 */
fun BundleFetch.running(): Flow<FetchProgress> = callbackFlow {
  val cancellation = Cancellation()
  launch(Dispatchers.IO) {
    try {
      val here = run(cancellation) { progress -> trySendBlocking(progress) }
      check(here || cancellation.isCancelled) { "the fetch was paused or closed before all was here" }
      close()
    } catch (error: Throwable) {
      close(error)
    }
  }
  awaitClose { cancellation.cancel() }
}.conflate()
