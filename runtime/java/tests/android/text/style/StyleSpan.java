package android.text.style;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class StyleSpan {
  public StyleSpan(int style) {}
}
