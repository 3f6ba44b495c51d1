package io.edgekit;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import io.edgekit.EdgeKitException.Status;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.Test;

/** In Qualcomm's emulation, where test_java.py finds it: all in one test, as the libraries are loaded once. */
public final class NpuTest {
  private static String property(String name) {
    return System.getProperty("npu." + name);
  }

  private static EdgeKitException refused(Npu npu) {
    return assertThrows(EdgeKitException.class, npu::load);
  }

  /** The format of the bundle that is taken of a set. */
  private static String opened() {
    try (Bundle bundle = Bundle.open(property("set"))) {
      Matcher format = Pattern.compile("\"format\": ?\"(native|qnn)\"").matcher(bundle.manifest());
      assertTrue(format.find());
      return format.group(1);
    }
  }

  @Test
  public void answersAreThoseOfTheSameBundleInPython() {
    assumeTrue(property("bundle") != null);
    String bundle = property("bundle");
    EdgeKitException before = assertThrows(EdgeKitException.class, () -> Session.open(bundle));
    assertEquals(Status.UNSUPPORTED_BUNDLE, before.status());
    assertTrue(before.getMessage(), before.getMessage().contains("new Npu().load()"));

    assertEquals("native", opened());
    assertEquals(Status.OPEN_FAILED, refused(new Npu().onnxRuntime("libnothing.so")).status());
    assertThrows(IllegalArgumentException.class, () -> new Npu().chip("a\0"));
    Npu npu = new Npu().onnxRuntime(property("onnxruntime")).backend(property("backend")).emulatedChip(57);
    EdgeKitException wrong = refused(npu.provider(property("onnxruntime")));
    assertEquals(Status.OPEN_FAILED, wrong.status());
    assertTrue(wrong.getMessage(), wrong.getMessage().contains("cannot load the provider"));
    npu.provider(property("provider")).load();
    new Npu().onnxRuntime("libnothing.so").load();  // without effect

    StringBuilder text = new StringBuilder();
    try (Session session = Session.open(bundle)) {
      EdgeKitException longer =
          assertThrows(EdgeKitException.class, () -> session.answer(property("question"), text::append));
      assertEquals(Status.PROMPT_TOO_LONG, longer.status());
      assertTrue(longer.getMessage(), longer.getMessage().contains("at most 64 positions: ask for fewer new tokens"));
      session.answer(property("question"), new GenerationSettings().maxNewTokens(8).steps(2), null, text::append);
    }
    assertEquals(property("answer"), text.toString());
    assertEquals("qnn", opened());  // it comes first in the set
  }
}
