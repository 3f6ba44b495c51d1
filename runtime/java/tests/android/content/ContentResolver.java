package android.content;

import android.net.Uri;
import java.io.FileNotFoundException;
import java.io.OutputStream;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public abstract class ContentResolver {
  public final OutputStream openOutputStream(Uri uri) throws FileNotFoundException {
    throw new FileNotFoundException();
  }
}
