package android.view;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class View {
  public static final int VISIBLE = 0, GONE = 8, FOCUS_DOWN = 130;

  public interface OnClickListener {
    void onClick(View view);
  }

  public void setOnClickListener(OnClickListener listener) {}

  public void setVisibility(int visibility) {}

  public int getVisibility() {
    return VISIBLE;
  }

  public void setEnabled(boolean enabled) {}

  public boolean isEnabled() {
    return true;
  }

  public void setKeepScreenOn(boolean keepScreenOn) {}

  public boolean getKeepScreenOn() {
    return false;
  }

  public boolean post(Runnable action) {
    return true;
  }
}
