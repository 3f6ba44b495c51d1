package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.junit.Test;

public final class BundleTest {
  private static final Path FOLDER = Paths.get(Bundles.LLADA);

  @Test
  public void givesTheManifestAndFilesAsTheyWereWritten() throws Exception {
    try (Bundle bundle = Bundle.open(Bundles.LLADA)) {
      byte[] manifest = Files.readAllBytes(FOLDER.resolve("edgekit.json"));
      assertEquals(new String(manifest, StandardCharsets.UTF_8), bundle.manifest());
      String name = "tokenizer/tokenizer.json";
      assertArrayEquals(Files.readAllBytes(FOLDER.resolve(name)), bundle.read(name));
      bundle.check(name);
    }
  }

  @Test
  public void givesNothingThatTheManifestDoesNotList() {
    try (Bundle bundle = Bundle.open(Bundles.LLADA)) {
      for (String name : new String[] {"../edgekit.json", "grüße", ""}) {
        EdgeKitException error = assertThrows(EdgeKitException.class, () -> bundle.read(name));
        assertEquals(EdgeKitException.Status.INVALID_ARGUMENT, error.status());
      }
      assertThrows(IllegalArgumentException.class, () -> bundle.check("tokenizer/\0"));
      assertThrows(NullPointerException.class, () -> bundle.read(null));
    }
  }

  @Test
  public void namesWhatIsMissing() {
    EdgeKitException error = assertThrows(EdgeKitException.class, () -> Bundle.open("no/such/ordner-ü-🦊"));
    assertEquals(EdgeKitException.Status.OPEN_FAILED, error.status());
    assertTrue(error.getMessage(), error.getMessage().contains("ordner-ü-🦊"));
  }

  @Test
  public void ofSeveralTheFirstThatSessionsRunIsOpened() throws Exception {
    String manifest = new String(Files.readAllBytes(FOLDER.resolve("edgekit.json")), StandardCharsets.UTF_8);
    try (Bundle bundle = Bundle.open(Bundles.SEVERAL)) {
      assertEquals(manifest, bundle.manifest());
    }
    String[] texts = new String[2];
    for (int index = 0; index < 2; ++index) {
      StringBuilder text = new StringBuilder();
      try (Session session = Session.open(index == 0 ? Bundles.LLADA : Bundles.SEVERAL)) {
        session.answer("Copy this: red 7", new GenerationSettings().seed(1), null, text::append);
      }
      texts[index] = text.toString();
    }
    assertEquals(texts[0], texts[1]);
    try (Tokenizer tokenizer = Tokenizer.open(Bundles.SEVERAL)) {
      assertTrue(tokenizer.encode("red", false).length > 0);
    }
  }

  @Test
  public void saysWhatKeepsEachOfSeveralFromRunning() throws Exception {
    Path folder = Files.createTempDirectory("several");
    Path list = folder.resolve("bundles.json");
    String text = new String(Files.readAllBytes(Paths.get(Bundles.SEVERAL, "bundles.json")), StandardCharsets.UTF_8);
    Files.write(list, text.replace("\"native\"", "\"mlx\"").getBytes(StandardCharsets.UTF_8));
    try {
      EdgeKitException error = assertThrows(EdgeKitException.class, () -> Session.open(folder.toString()));
      assertEquals(EdgeKitException.Status.UNSUPPORTED_BUNDLE, error.status());
      String said = "has bundles for 'qnn' and 'mlx', not for native; export one for that";
      assertTrue(error.getMessage(), error.getMessage().endsWith(said));
    } finally {
      Files.delete(list);
      Files.delete(folder);
    }
  }

  @Test
  public void isLookedForByName() {
    assertTrue(Bundle.exists(Bundles.LLADA) && Bundle.exists(Bundles.SEVERAL));
    for (String path : new String[] {"no/such/ordner-ü-🦊", FOLDER.resolve("tokenizer").toString()}) {
      assertFalse(path, Bundle.exists(path));
    }
    assertThrows(NullPointerException.class, () -> Bundle.exists(null));
    assertThrows(IllegalArgumentException.class, () -> Bundle.exists(""));
  }

  @Test
  public void isOfNoUseOnceItIsClosed() {
    Bundle bundle = Bundle.open(Bundles.LLADA);
    bundle.close();
    bundle.close();
    assertThrows(IllegalStateException.class, bundle::manifest);
  }
}
