package android.content

/** Stands for Android's. */
open class Context
