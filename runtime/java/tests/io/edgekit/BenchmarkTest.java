package io.edgekit;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;

import org.junit.Test;

public final class BenchmarkTest {
  private static final int[] PROMPT = {5, 6};

  private static Benchmark quick() {
    return new Benchmark(Bundles.LLADA).probe(false).runs(0, 1).forwards(1);
  }

  @Test
  public void anInterruptEndsIt() {
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, () -> quick().run(PROMPT, new GenerationSettings()));
    assertFalse("it is set, as the exception says", Thread.interrupted());
  }

  @Test
  public void aMeterThatFailsIsNotKnown() throws Exception {
    String report =
        quick()
            .joules(
                () -> {
                  throw new IllegalStateException("no meter");
                })
            .run(PROMPT, new GenerationSettings());
    assertFalse(report, report.contains("\"meter\":\"own\",\"joules\":0"));
  }

  @Test
  public void mistakesAreTold() throws Exception {
    assertThrows(IllegalArgumentException.class, () -> quick().runs(0, 0));
    assertThrows(IllegalArgumentException.class, () -> quick().forwards(-1));
    Benchmark odd = quick().state(() -> "battery");
    EdgeKitException error =
        assertThrows(EdgeKitException.class, () -> odd.run(PROMPT, new GenerationSettings()));
    assertEquals(EdgeKitException.Status.INVALID_ARGUMENT, error.status());
    assertThrows(EdgeKitException.class, () -> quick().run(new int[] {-1}, new GenerationSettings()));
    assertThrows(NullPointerException.class, () -> quick().run(null, new GenerationSettings()));
    assertThrows(NullPointerException.class, () -> quick().state(() -> null).run(PROMPT, new GenerationSettings()));
  }
}
