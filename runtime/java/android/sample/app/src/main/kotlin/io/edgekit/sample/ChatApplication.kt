package io.edgekit.sample

import android.app.Application
import android.system.Os
import io.edgekit.Npu
import io.edgekit.sample.model.ChatModel
import java.io.File

/** Holds the model, which outlives the screen, and hands on what the system says of memory. */
class ChatApplication : Application() {
  val model by lazy { ChatModel(File(filesDir, "bundle"), File(filesDir, "edgekit-bench.json"), npu()) }

  /** The NPU's own part of Qualcomm's libraries is looked for in this folder, as files. */
  private fun npu(): Npu {
    Os.setenv("ADSP_LIBRARY_PATH", applicationInfo.nativeLibraryDir, true)  // Kotlin checks no exception, and none comes here
    return Npu()
  }

  override fun onTrimMemory(level: Int) {
    super.onTrimMemory(level)
    model.onTrimMemory(level)
  }
}
