package android.widget;

import android.content.Context;
import java.util.List;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class ArrayAdapter<T> implements SpinnerAdapter {
  public ArrayAdapter(Context context, int resource, List<T> objects) {}
}
