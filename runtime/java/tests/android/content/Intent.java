package android.content;

import android.net.Uri;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Intent {
  public static final String ACTION_CREATE_DOCUMENT = "android.intent.action.CREATE_DOCUMENT";
  public static final String CATEGORY_OPENABLE = "android.intent.category.OPENABLE";
  public static final String EXTRA_TITLE = "android.intent.extra.TITLE";

  public Intent(String action) {}

  public Intent addCategory(String category) {
    return this;
  }

  public Intent setType(String type) {
    return this;
  }

  public Intent putExtra(String name, String value) {
    return this;
  }

  public Uri getData() {
    return null;
  }
}
