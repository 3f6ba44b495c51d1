package android.content.pm;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class ApplicationInfo {
  public String nativeLibraryDir;
}
