package io.edgekit.sample

import android.app.Application
import io.edgekit.sample.model.ChatModel
import java.io.File

/** Holds the model, which outlives the screen, and hands on what the system says of memory. */
class ChatApplication : Application() {
  val model by lazy { ChatModel(File(filesDir, "bundle"), File(filesDir, "edgekit-bench.json")) }

  override fun onTrimMemory(level: Int) {
    super.onTrimMemory(level)
    model.onTrimMemory(level)
  }
}
