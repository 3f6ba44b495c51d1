package android.widget;

import android.view.View;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class ProgressBar extends View {
  public synchronized void setProgress(int progress) {}

  public synchronized int getProgress() {
    return 0;
  }

  public synchronized int getMax() {
    return 0;
  }

  public synchronized void setIndeterminate(boolean indeterminate) {}

  public synchronized boolean isIndeterminate() {
    return false;
  }
}
