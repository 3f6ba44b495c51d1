package android.widget;

import android.view.View;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class ScrollView extends View {
  public boolean fullScroll(int direction) {
    return true;
  }
}
