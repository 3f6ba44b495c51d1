package android.widget;

import android.view.View;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Spinner extends View {
  public void setAdapter(SpinnerAdapter adapter) {}

  public SpinnerAdapter getAdapter() {
    return null;
  }

  public int getSelectedItemPosition() {
    return 0;
  }
}
