package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
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
  public void isOfNoUseOnceItIsClosed() {
    Bundle bundle = Bundle.open(Bundles.LLADA);
    bundle.close();
    bundle.close();
    assertThrows(IllegalStateException.class, bundle::manifest);
  }
}
