package android;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public final class R {
  private R() {}

  public static final class layout {
    public static final int simple_spinner_dropdown_item = 0x01090009;

    private layout() {}
  }
}
