package android.widget;

import android.text.Editable;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class EditText extends TextView {
  @Override
  public Editable getText() {
    return null;
  }
}
