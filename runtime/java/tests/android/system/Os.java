package android.system;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public final class Os {
  private Os() {}

  public static void setenv(String name, String value, boolean overwrite) throws ErrnoException {}
}
