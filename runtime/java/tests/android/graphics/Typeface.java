package android.graphics;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Typeface {
  public static final int BOLD = 1;
}
