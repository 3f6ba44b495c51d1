package io.edgekit;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.junit.Test;

/** A process that opens and closes sessions a thousand times; Linux alone. */
public final class GrowthTest {
  private static final int CYCLES = 1000, SETTLED = 200;
  /** What the heaps of Java and of C may still move; a session of the bundle takes a megabyte, its tokenizer another. */
  private static final long SLACK = 8 << 20;

  private static int count(String folder) {
    return new File(folder).list().length;
  }

  private static long resident() throws Exception {
    System.gc();
    for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
      if (line.startsWith("VmRSS:")) return Long.parseLong(line.replaceAll("\\D", "")) << 10;
    }
    throw new AssertionError("no VmRSS");
  }

  @Test
  public void nothingStaysOfAClosedSession() throws Exception {
    long memory = 0;
    int files = 0;
    int threads = 0;
    for (int cycle = 0; cycle < CYCLES; ++cycle) {
      if (cycle == SETTLED) {
        memory = resident();
        files = count("/proc/self/fd");
        threads = count("/proc/self/task");
      }
      try (Session session = Session.open(Bundles.LLADA)) {
        Cancellation cancellation = new Cancellation();
        session.generate(
            session.tokenizer().prompt(Message.user("Copy this: red 7")),
            new GenerationSettings(),
            cancellation,
            event -> cancellation.cancel());
      }
    }
    long grown = resident() - memory;
    assertTrue(grown + " bytes grown", grown < SLACK);
    assertEquals(files, count("/proc/self/fd"));
    assertTrue(count("/proc/self/task") <= threads + 2);  // of the garbage collector
  }
}
