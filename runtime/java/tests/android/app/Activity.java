package android.app;

import android.content.Context;
import android.content.Intent;
import android.os.Bundle;
import android.view.View;

/** Stands for Android's, with what applications here use of it, by the names and types of its documentation. */
public class Activity extends Context {
  public static final int RESULT_OK = -1;

  protected void onCreate(Bundle savedInstanceState) {}

  protected void onStart() {}

  protected void onStop() {}

  protected void onActivityResult(int requestCode, int resultCode, Intent data) {}

  public void startActivityForResult(Intent intent, int requestCode) {}

  public final Application getApplication() {
    return null;
  }

  public void setContentView(int layout) {}

  public <T extends View> T findViewById(int id) {
    return null;
  }
}
