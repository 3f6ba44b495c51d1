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

  // The flows of edgekit's Kotlin, which the AAR has only where it was made with --kotlinc.
  sourceSets["main"].kotlin.srcDir("../../../kotlin")
}

dependencies {
  implementation(files("libs/edgekit.aar"))
  implementation(libs.coroutines.android)
}
