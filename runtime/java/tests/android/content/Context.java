package android.content;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Context {
  public android.content.pm.ApplicationInfo getApplicationInfo() {
    return null;
  }

  public java.io.File getFilesDir() {
    return null;
  }

  public ContentResolver getContentResolver() {
    return null;
  }

  public final String getString(int resource) {
    return null;
  }

  public final String getString(int resource, Object... arguments) {
    return null;
  }

  public final int getColor(int resource) {
    return 0;
  }
}
