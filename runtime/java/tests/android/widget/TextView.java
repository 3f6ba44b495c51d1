package android.widget;

import android.view.View;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class TextView extends View {
  public CharSequence getText() {
    return null;
  }

  public final void setText(CharSequence text) {}

  public final void setText(int resource) {}
}
