package android.text;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class SpannableStringBuilder implements Spanned {
  public SpannableStringBuilder append(CharSequence text) {
    return this;
  }

  public SpannableStringBuilder append(CharSequence text, Object what, int flags) {
    return this;
  }

  @Override
  public int length() {
    return 0;
  }

  @Override
  public char charAt(int index) {
    return 0;
  }

  @Override
  public CharSequence subSequence(int start, int end) {
    return this;
  }
}
