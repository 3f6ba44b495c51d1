package android.app;

import android.content.Context;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Application extends Context {
  public void onTrimMemory(int level) {}
}
