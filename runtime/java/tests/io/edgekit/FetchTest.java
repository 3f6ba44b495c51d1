package io.edgekit;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.edgekit.EdgeKitException.Status;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What Java adds to the core's fetches. Whole fetches with servers that fail are driven by tests/native/test_java.py. */
public final class FetchTest {
  /** The same folder: where it lies, and served: fast, with pauses, and with ones that are longer than any test. */
  private static final Path SERVED = Paths.get(System.getProperty("fetch.folder"));
  private static final String URL = System.getProperty("fetch.url"), SLOW = System.getProperty("fetch.slow"),
      STUCK = System.getProperty("fetch.stuck"), PROMISES = System.getProperty("fetch.promises");
  private static final Consumer<FetchProgress> NOBODY = progress -> {};

  @Rule public final TemporaryFolder scratch = new TemporaryFolder();

  private String target() {
    return new File(scratch.getRoot(), "a bundle ü").getPath();
  }

  private BundleFetch open(String url) {
    return BundleFetch.open(target(), new FetchOptions(url).requestBytes(65536));
  }

  private static List<String> names(Path folder) throws IOException {
    try (Stream<Path> all = Files.walk(folder)) {
      return all.filter(Files::isRegularFile).map(path -> folder.relativize(path).toString()).sorted()
          .collect(Collectors.toList());
    }
  }

  private void checkWhole() throws IOException {
    Path found = Paths.get(target());
    assertTrue(names(SERVED).size() > 3);
    assertEquals(names(SERVED), names(found));
    for (String name : names(SERVED)) {
      assertArrayEquals(name, Files.readAllBytes(SERVED.resolve(name)), Files.readAllBytes(found.resolve(name)));
    }
    assertFalse(new File(target() + ".arriving").exists());
  }

  @Test
  public void theWholeBundleComesInOneCall() throws Exception {
    List<FetchProgress> told = new ArrayList<>();
    assertTrue(BundleFetch.fetch(target(), new FetchOptions(URL), null, told::add));
    checkWhole();
    FetchProgress last = told.get(told.size() - 1);
    assertTrue(last.totalBytes() > 3_000_000);
    assertEquals(last.totalBytes(), last.wholeBytes());
    assertEquals(last.wholeBytes() + " of " + last.totalBytes() + " bytes", last.toString());
    assertFalse(last.current());
    assertTrue(BundleFetch.fetch(target(), new FetchOptions(URL), null, told::add));
    assertTrue(told.get(told.size() - 1).current());
    try (Bundle bundle = Bundle.open(target())) {
      assertEquals("{\"a\": 1}", new String(bundle.read("tokenizer/tokenizer.json"), "UTF-8"));
    }
  }

  @Test
  public void addressesAreWrittenAsServersTakeThem() {
    String[][] written = {
      {"https://bücher.example/Bücher%20/", "https://xn--bcher-kva.example/B%C3%BCcher%20"},
      {"HTTP://Host:8080//", "http://Host:8080"},
      {"http://[::1]:80/[a]", "http://[::1]:80/%5Ba%5D"},
      {"http://my_host/a", "http://my_host/a"},
    };
    for (String[] each : written) assertEquals(each[1], new HttpSource(each[0]).address());
    assertThrows(IllegalArgumentException.class, () -> new HttpSource("http://a..b\u00fc/c"));
  }

  @Test
  public void nothingIsInPlaceBeforeItIsFinished() throws Exception {
    try (BundleFetch fetch = open(URL)) {
      assertEquals(Status.INVALID_STATE, assertThrows(EdgeKitException.class, fetch::finish).status());
      assertTrue(fetch.run(null, NOBODY));
      assertFalse(new File(target()).exists());
      assertEquals(new File(target() + ".arriving").getCanonicalPath(), fetch.arriving());
      fetch.finish();
      checkWhole();
      assertEquals(Status.INVALID_STATE, assertThrows(EdgeKitException.class, fetch::finish).status());
    }
  }

  @Test
  public void anotherFetchOfTheFolderWaitsForItsEnd() {
    try (BundleFetch fetch = open(URL)) {
      EdgeKitException error = assertThrows(EdgeKitException.class, () -> open(URL));
      assertEquals(Status.INVALID_STATE, error.status());
      assertEquals(0, fetch.progress().totalBytes());
    }
    open(URL).close();
  }

  @Test
  public void anInterruptEndsItAndStays() throws Exception {
    try (BundleFetch fetch = open(SLOW)) {
      Thread own = Thread.currentThread();
      assertFalse(
          fetch.run(
              null,
              progress -> {
                if (isFar(progress)) own.interrupt();
              }));
      assertTrue("the interrupt was lost", Thread.interrupted());
    }
    checkGoesOn();
  }

  @Test
  public void pausingAndRunningAgainGoesOn() throws Exception {
    try (BundleFetch fetch = open(SLOW)) {
      fetch.pause();  // nothing runs
      long[] far = {0};
      for (int round = 0; round < 3; ++round) {
        long more = far[0] + 500_000;
        assertFalse(
            fetch.run(
                null,
                progress -> {
                  far[0] = progress.wholeBytes() + progress.arrivedBytes();
                  if (far[0] > more) fetch.pause();
                }));
        assertEquals(0, fetch.progress().requests());
      }
      assertThrows(EdgeKitException.class, fetch::finish);
      assertTrue(
          fetch.run(
              null,
              progress -> assertThrows(IllegalStateException.class, () -> fetch.run(null, NOBODY))));
      FetchProgress end = fetch.progress();
      assertEquals(0, end.foundBytes());
      assertTrue(end.fetchedBytes() + " were fetched", end.fetchedBytes() < end.totalBytes() + 1_000_000);
      assertTrue(fetch.run(null, NOBODY));  // all is here
      fetch.finish();
    }
    checkWhole();
  }

  @Test
  public void whatIsPausedWithASilentServerIsGivenBack() {
    Cancellation cancellation = new Cancellation();
    try (BundleFetch fetch = open(STUCK)) {
      assertFalse(
          fetch.run(
              cancellation,
              progress -> {
                if (progress.requests() == 4) cancellation.cancel();
              }));
      assertEquals(0, fetch.progress().requests());
      FetchRequest request = fetch.next().request();
      assertEquals(0, request.waitMilliseconds());  // the source has done nothing wrong
      fetch.giveBack(request);
      fetch.giveBack(request);
      assertFalse(fetch.write(request, new byte[1], 0, 1));
      assertEquals(0, fetch.progress().requests());
    }
  }

  @Test
  public void whatTheListenerThrowsEndsIt() throws Exception {
    RuntimeException thrown = new RuntimeException("enough");
    try (BundleFetch fetch = open(SLOW)) {
      Consumer<FetchProgress> listener = progress -> {
        if (isFar(progress)) throw thrown;
      };
      assertSame(thrown, assertThrows(RuntimeException.class, () -> fetch.run(null, listener)));
    }
    checkGoesOn();
  }

  @Test
  public void whatThreadsOfAFetchThrowNamesItsCaller() {
    FetchOptions nowhere = new FetchOptions(URL + "/nowhere");
    EdgeKitException error =
        assertThrows(EdgeKitException.class, () -> BundleFetch.fetch(target(), nowhere, null, NOBODY));
    assertEquals(Status.FETCH_FAILED, error.status());
    assertTrue("no frame is the caller's", isOfThisTest(error));
    EdgeKitException cause = (EdgeKitException) error.getCause();
    assertEquals(Status.FETCH_FAILED, cause.status());
    assertEquals(error.getMessage(), cause.getMessage());
    assertFalse(isOfThisTest(cause));

    RuntimeException thrown = new UnsupportedOperationException("of the listener");
    thrown.setStackTrace(new StackTraceElement[0]);
    nowhere.trouble(
        said -> {
          throw thrown;
        });
    assertSame(
        thrown, assertThrows(RuntimeException.class, () -> BundleFetch.fetch(target(), nowhere, null, NOBODY)));
    assertTrue("no frame is the caller's", isOfThisTest(thrown));
  }

  private static boolean isOfThisTest(Throwable error) {
    return Stream.of(error.getStackTrace()).anyMatch(each -> each.getClassName().equals(FetchTest.class.getName()));
  }

  @Test
  public void closingEndsItFromAnyThread() throws Exception {
    BundleFetch fetch = open(SLOW);
    CountDownLatch begun = new CountDownLatch(1);
    Thread other = new Thread(
        () -> {
          try {
            begun.await();
          } catch (InterruptedException error) {
            throw new AssertionError(error);
          }
          fetch.close();
        });
    other.start();
    assertFalse(
        fetch.run(
            null,
            progress -> {
              if (isFar(progress)) begun.countDown();
            }));
    other.join();
    fetch.close();
    for (Runnable each : new Runnable[] {fetch::next, fetch::progress, fetch::finish, () -> fetch.run(null, NOBODY)}) {
      assertEquals("the fetch is closed", assertThrows(IllegalStateException.class, each::run).getMessage());
    }
    BundleFetch own = open(SLOW);  // and from its listener
    assertFalse(own.run(null, progress -> own.close()));
    checkGoesOn();
  }

  @Test
  public void aServerThatSaysNothingKeepsNobody() {
    for (int round = 0; round < 3; ++round) {
      Cancellation cancellation = new Cancellation();
      long[] begun = {0};
      try (BundleFetch fetch = open(STUCK)) {
        assertFalse(
            fetch.run(
                cancellation,
                progress -> {
                  if (progress.requests() < 4) return;
                  if (begun[0] == 0) begun[0] = System.nanoTime();
                  cancellation.cancel();
                }));
      }
      long took = (System.nanoTime() - begun[0]) / 1_000_000;
      assertTrue(took + " ms", took < 5000);
    }
  }

  /** One that says to go on for ever, and begins no answer. */
  @Test
  public void noThreadStaysWithAServerThatPromises() throws Exception {
    Cancellation cancellation = new Cancellation();
    try (BundleFetch fetch = open(PROMISES)) {
      assertFalse(
          fetch.run(
              cancellation,
              progress -> {
                if (progress.requests() > 0) cancellation.cancel();
              }));
    }
    Callable<Boolean> stays =
        () -> Thread.getAllStackTraces().keySet().stream().anyMatch(each -> each.getName().startsWith("edgekit-fetch"));
    for (int look = 0; stays.call(); ++look) {
      assertTrue("a thread stays", look < 100);
      Thread.sleep(50);
    }
  }

  /** Much more than the blocks in front of holes, which come again. */
  private static boolean isFar(FetchProgress progress) {
    return progress.wholeBytes() + progress.arrivedBytes() > 1_000_000;
  }

  /** What came before an end is not asked for again. */
  private void checkGoesOn() throws IOException {
    try (BundleFetch fetch = open(URL)) {
      assertTrue(fetch.run(null, NOBODY));
      FetchProgress end = fetch.progress();
      assertTrue(end.foundBytes() + " were found", end.foundBytes() > 0);
      assertTrue(end.fetchedBytes() + " were fetched", end.fetchedBytes() < end.totalBytes() - 300_000);
      fetch.finish();
    }
    checkWhole();
  }

  @Test
  public void discardingLeavesNothing() throws Exception {
    BundleFetch fetch = open(URL);
    assertTrue(fetch.run(null, NOBODY));
    assertTrue(new File(target() + ".arriving").exists());
    fetch.discard();
    fetch.discard();
    fetch.close();
    assertEquals(0, scratch.getRoot().list().length);
  }

  @Test
  public void anApplicationMayHaveATransportOfItsOwn() throws Exception {
    try (BundleFetch fetch = BundleFetch.open(new File(target()), new FetchOptions("a disk").requestBytes(65536))) {
      Thread[] threads = new Thread[4];
      AtomicReference<Throwable> failure = new AtomicReference<>();
      for (int at = 0; at < threads.length; ++at) {
        threads[at] = new Thread(
            () -> {
              try {
                while (copies(fetch, new Random(1))) {}
              } catch (Throwable error) {
                failure.set(error);
              }
            });
        threads[at].start();
      }
      for (Thread thread : threads) thread.join();
      assertNull(failure.get());
      fetch.finish();
    }
    checkWhole();
  }

  /** Does one step, in parts of any size; false once all is here. */
  private static boolean copies(BundleFetch fetch, Random random) {
    FetchStep step = fetch.next();
    if (step.kind() != FetchStep.Kind.ASK) {
      assertNull(step.request());
      return step.kind() != FetchStep.Kind.READY;
    }
    FetchRequest request = step.request();
    assertEquals(0, request.source());
    assertEquals(0, request.waitMilliseconds());
    try (RandomAccessFile file = new RandomAccessFile(SERVED.resolve(request.name()).toFile(), "r")) {
      long end = request.bytes() == 0 ? file.length() : request.offset() + request.bytes();
      assertTrue(request.size() == 0 || request.size() == file.length());
      assertEquals(request.bytes() == 0 ? null : "bytes=" + request.offset() + "-" + (end - 1), request.range());
      file.seek(request.offset());
      byte[] part = new byte[200_000];
      for (long left = end - request.offset(); left > 0; ) {
        int offset = random.nextInt(1000);
        int count = (int) Math.min(left, random.nextInt(part.length - offset) + 1);
        file.readFully(part, offset, count);
        left -= count;
        if (!fetch.write(request, part, offset, count)) return true;
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    fetch.end(request, null);
    return true;
  }

  @Test
  public void requestsAreTheirFetchs() throws Exception {
    try (BundleFetch one = open("a"); BundleFetch other = BundleFetch.open(target() + "2", new FetchOptions("b"))) {
      FetchRequest request = one.next().request();
      assertEquals("edgekit.json", request.name());
      assertEquals(30_000, request.patienceMilliseconds());
      assertEquals(1000, request.leastBytesPerSecond());
      assertEquals(0, request.bytes());
      assertNull(request.range());
      assertThrows(IllegalArgumentException.class, () -> other.write(request, new byte[1], 0, 1));
      assertThrows(IllegalArgumentException.class, () -> other.end(request, null));
      assertThrows(IllegalArgumentException.class, () -> other.giveBack(request));
      int[][] outside = {{-1, 1}, {0, -1}, {1, 10}, {11, 0}, {Integer.MAX_VALUE, 1}, {1, Integer.MAX_VALUE}};
      for (int[] each : outside) {
        assertThrows(IndexOutOfBoundsException.class, () -> one.write(request, new byte[10], each[0], each[1]));
      }
      assertEquals(FetchStep.Kind.WAIT, one.next().kind());
      EdgeKitException error = assertThrows(EdgeKitException.class, () -> one.answer(request, 503, null));
      assertEquals(Status.FETCH_FAILED, error.status());
      assertFalse(one.write(request, new byte[10], 0, 10));
      one.end(request, "half \ud800 a pair, and a \0");
      FetchRequest again = one.next().request();
      assertTrue(again.waitMilliseconds() > 0);
      one.answer(again, 200, "\0\ud800");
      one.end(again, "\0");
      assertThrows(NullPointerException.class, () -> one.write(again, null, 0, 0));
    }
  }

  @Test
  public void whatIsNoAddressIsRefused() {
    String[] odd = {"", "llada", "/llada", "ftp://a/b", "http://", "http:///b", "https://a b/c", "https://a/b?c", "https://a/b#c",
      "https://a:99999/b", "http://a:-1/b", "http://a:0/b", "https://me:secret@host/b", "file:///etc"};
    for (String each : odd) {
      try (BundleFetch fetch = open(each)) {
        IllegalArgumentException error =
            assertThrows(each, IllegalArgumentException.class, () -> fetch.run(null, NOBODY));
        assertFalse(error.getMessage(), error.getMessage().contains("secret"));
      }
    }
    FetchOptions options = new FetchOptions(URL);
    assertThrows(IllegalArgumentException.class, () -> options.connections(0));
    assertThrows(IllegalArgumentException.class, () -> options.connections(65));
    assertThrows(IllegalArgumentException.class, () -> options.requestBytes(-1));
    assertThrows(NullPointerException.class, () -> options.system("ios", null));
    assertThrows(NullPointerException.class, () -> BundleFetch.open((String) null, options));
    assertThrows(NullPointerException.class, () -> BundleFetch.open("a", null));
    assertThrows(NullPointerException.class, () -> open(URL).run(null, null));
    for (FetchOptions wrong : new FetchOptions[] {
      new FetchOptions(), new FetchOptions(URL).sha256("abc"), new FetchOptions(URL).requestBytes(1)
    }) {
      EdgeKitException error =
          assertThrows(EdgeKitException.class, () -> BundleFetch.open(target() + "3", wrong));
      assertEquals(Status.INVALID_ARGUMENT, error.status());
    }
  }

  /** Threads that use requests of each other, progress, and an end at any moment: exceptions, and nothing worse. */
  @Test
  public void closingWhileThreadsUseIt() throws Exception {
    Random random = new Random(7);
    for (int round = 0; round < 60; ++round) {
      BundleFetch fetch = BundleFetch.open(target(), new FetchOptions("a", "b").requestBytes(65536));
      AtomicReference<Throwable> failure = new AtomicReference<>();
      AtomicReference<FetchRequest> shared = new AtomicReference<>();
      Thread[] threads = new Thread[6];
      for (int at = 0; at < threads.length; ++at) {
        Random own = new Random(random.nextLong());
        boolean meddles = at >= 4;
        threads[at] = new Thread(
            () -> {
              try {
                while (meddles ? meddles(fetch, shared, own) : serves(fetch, shared, own)) {}
              } catch (IllegalStateException | EdgeKitException ended) {
                // Closed, or spoilt by those that meddle.
              } catch (Throwable error) {
                failure.set(error);
              }
            });
        threads[at].start();
      }
      Thread.sleep(random.nextInt(15));
      if (random.nextInt(8) == 0) fetch.discard();
      else fetch.close();
      for (Thread thread : threads) thread.join();
      if (failure.get() != null) throw new AssertionError(failure.get());
    }
    assertTrue(BundleFetch.fetch(target(), new FetchOptions(URL), null, NOBODY));
    checkWhole();
  }

  private static boolean serves(BundleFetch fetch, AtomicReference<FetchRequest> shared, Random random) throws IOException {
    FetchRequest request = fetch.next().request();
    if (request == null) return true;
    shared.set(request);
    try (RandomAccessFile file = new RandomAccessFile(SERVED.resolve(request.name()).toFile(), "r")) {
      byte[] part = new byte[(int) (request.bytes() == 0 ? file.length() : request.bytes())];
      file.seek(request.offset());
      file.readFully(part);
      if (random.nextInt(10) == 0) part[random.nextInt(part.length)] ^= 1;
      fetch.write(request, part, 0, part.length);
    }
    fetch.end(request, random.nextInt(20) == 0 ? "so it is" : null);
    return true;
  }

  private static boolean meddles(BundleFetch fetch, AtomicReference<FetchRequest> shared, Random random) {
    FetchRequest request = shared.get();
    if (request == null) return fetch.progress() != null;
    switch (random.nextInt(5)) {
      case 0:
        fetch.end(request, "meddled");
        break;
      case 3:
        fetch.giveBack(request);
        break;
      case 1:
        fetch.write(request, new byte[100], 0, 100);
        break;
      case 2:
        try {
          fetch.answer(request, 206, "bytes 0-9/10");
        } catch (EdgeKitException over) {
          // Mostly.
        }
        break;
      default:
        fetch.progress();
    }
    return true;
  }

  @Test
  public void nothingStaysOfAClosedFetch() throws Exception {
    int threads = 0;
    int files = 0;
    for (int cycle = 0; cycle < 200; ++cycle) {
      if (cycle == 20) {
        threads = settled("/proc/self/task");
        files = settled("/proc/self/fd");
      }
      Cancellation cancellation = new Cancellation();
      int most = cycle % 4;  // of what is told; the last of four is brought to its end
      try (BundleFetch fetch = open(most == 3 ? URL : SLOW)) {
        int[] told = {0};
        boolean here = fetch.run(
            cancellation,
            progress -> {
              if (most != 3 && told[0]++ >= most % 2) cancellation.cancel();
            });
        assertTrue(here || most != 3);
        if (here) fetch.discard();
      }
    }
    assertTrue(settled("/proc/self/task") <= threads + 2);  // of the garbage collector
    assertTrue(settled("/proc/self/fd") <= files + 4);  // connections that are kept for the next request
  }

  /** How many there are once no more of them go. */
  private static int settled(String folder) throws InterruptedException {
    int count = Integer.MAX_VALUE;
    for (int still = 0; still < 5; Thread.sleep(50)) {
      int now = new File(folder).list().length;
      still = now < count ? 0 : still + 1;
      count = Math.min(count, now);
    }
    return count;
  }
}
