package android.system;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public final class ErrnoException extends Exception {
  private static final long serialVersionUID = 1;
}
