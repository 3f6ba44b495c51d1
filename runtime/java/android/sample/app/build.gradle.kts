plugins {
  alias(libs.plugins.android.application)
  alias(libs.plugins.kotlin.android)
}

android {
  namespace = "io.edgekit.sample"
  compileSdk = libs.versions.compile.sdk.get().toInt()

  defaultConfig {
    applicationId = "io.edgekit.sample"
    minSdk = libs.versions.min.sdk.get().toInt()
    targetSdk = libs.versions.compile.sdk.get().toInt()
    versionCode = 1
    versionName = "1"
    ndk { abiFilters += "arm64-v8a" }  // what edgekit.aar has
  }

  compileOptions {
    sourceCompatibility = JavaVersion.VERSION_17
    targetCompatibility = JavaVersion.VERSION_17
  }

  kotlinOptions { jvmTarget = "17" }

  // Files in the folder of the application's libraries: the NPU's own part of Qualcomm's is looked for there.
  packaging { jniLibs { useLegacyPackaging = true } }

  // The flows of edgekit's Kotlin, which the AAR has only where it was made with --kotlinc.
  sourceSets["main"].kotlin.srcDir("../../../kotlin")
}

dependencies {
  implementation(files("libs/edgekit.aar"))
  implementation(libs.coroutines.android)
  // What bundles for Qualcomm's NPU run over, the second under Qualcomm's terms.
  implementation(libs.onnxruntime.android)
  implementation(libs.onnxruntime.qnn)
}
