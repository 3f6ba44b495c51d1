package io.edgekit;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.SocketTimeoutException;
import java.net.URL;
import java.net.UnknownHostException;

/** A request to a server and its answer, by what Java and Android both have. */
final class HttpCall {
  /** Read at once: small enough to stop soon. */
  private static final int PART_BYTES = 256 << 10;
  private static final int MOST_REDIRECTS = 10;
  /** Of an answer that leads elsewhere: read, so that its connection serves for more. */
  private static final int REDIRECT_BYTES = 64 << 10;

  /** Of the time that a request has for an answer, and for its next bytes; tests give less. */
  static volatile double patienceShare = 1;

  /** Takes what comes; false: no more of it is needed. */
  interface Taker {
    boolean head(int status, String contentRange);

    boolean part(byte[] data, int count);
  }

  /** An answer that came, and says nothing of use. */
  static final class Useless extends IOException {
    private static final long serialVersionUID = 1L;

    Useless(String message) {
      super(message);
    }
  }

  private final String address;
  private final String range;
  private final Taker taker;
  private final int patienceMilliseconds;
  private final int leastBytesPerSecond;
  /** That something is waited for from, and what; null: nothing is. */
  private HttpURLConnection awaited;
  private String what;
  private long began;
  private boolean late;

  HttpCall(String address, FetchRequest request, Taker taker) {
    this.address = address;
    this.taker = taker;
    range = request.range();
    patienceMilliseconds = (int) Math.max(1, request.patienceMilliseconds() * patienceShare);
    leastBytesPerSecond = request.leastBytesPerSecond();
  }

  /** Throws IOException with what went wrong, for people. */
  void run() throws IOException {
    URL url = new URL(address);
    for (int redirects = 0; url != null; ++redirects) {
      if (redirects > MOST_REDIRECTS) throw new IOException("leads from one address to another, without an end");
      url = ask(url);
    }
  }

  /**
   * Ends it where it waits for too long, whatever the server sends meanwhile, and says why; null: it goes on. For any thread. The
   * taker of one that is late is given nothing any more, but its `run` may go on.
   */
  String endIfLate() {
    HttpURLConnection ending;
    String waited;
    synchronized (this) {
      if (late || awaited == null || System.nanoTime() - began < patienceMilliseconds * 1_000_000L) return null;
      ending = awaited;
      waited = what;
      late = true;
    }
    end(ending);
    return "gave no " + waited + " in " + seconds(patienceMilliseconds);
  }

  /** Ends it where it waits; else it ends with its next bytes. For any thread. */
  void end() {
    HttpURLConnection ending;
    synchronized (this) {
      ending = awaited;
    }
    if (ending != null) end(ending);
  }

  synchronized boolean isLate() {
    return late;
  }

  /**
   * By a thread of its own. Android closes the connection at once. Other Javas wait for the thread that reads, where an answer has
   * begun, and that reads on for as long as anything comes: the frames of chunks, and no byte of the answer.
   */
  private static void end(HttpURLConnection connection) {
    Thread thread = new Thread(() -> disconnect(connection), "edgekit-fetch-end");
    thread.setDaemon(true);
    thread.start();
  }

  private static void disconnect(HttpURLConnection connection) {
    try {
      connection.disconnect();
    } catch (RuntimeException error) {
      // Java's own, where the one that reads ends it at the same time.
    }
  }

  private synchronized void await(HttpURLConnection connection, String what) {
    awaited = connection;
    this.what = what;
    began = System.nanoTime();
  }

  /** What was waited for is here. Throws IOException where it was late. */
  private synchronized void came() throws IOException {
    awaited = null;
    if (late) throw new IOException("late");
  }

  /** Where the answer leads; null: it was taken. */
  private URL ask(URL url) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) url.openConnection();
    boolean usable = false;  // for the next request to the same server
    boolean answered = false;
    await(connection, "answer");
    try {
      connection.setInstanceFollowRedirects(false);
      connection.setUseCaches(false);
      connection.setConnectTimeout(patienceMilliseconds);
      connection.setReadTimeout(patienceMilliseconds);
      connection.setRequestProperty("Accept-Encoding", "identity");
      connection.setRequestProperty("User-Agent", "edgekit/" + Library.version());
      if (range != null) connection.setRequestProperty("Range", range);
      HttpAnswer answer = new HttpAnswer(connection);
      int status = answer.status();
      answered = true;
      String location = answer.field("Location");
      if (isRedirect(status) && location != null) {
        usable = answer.leavesConnection() && ended(answer.body());
        came();
        return HttpSource.redirected(url, location);
      }
      String coding = answer.field("Content-Encoding");
      if (status < 300 && coding != null && !coding.isEmpty() && !coding.equalsIgnoreCase("identity")) {
        throw new Useless("answered in the coding \"" + coding + "\", which was not asked for");
      }
      came();
      if (!taker.head(status, answer.field("Content-Range"))) return null;
      InputStream in = answer.body();
      Pace pace = new Pace();
      byte[] part = new byte[PART_BYTES];
      for (int count = next(connection, in, part); count >= 0; count = next(connection, in, part)) {
        pace.check(count);
        if (!taker.part(part, count)) return null;
      }
      in.close();
      usable = answer.leavesConnection();
      return null;
    } catch (Useless error) {
      throw error;
    } catch (IOException error) {
      throw new IOException((answered ? "the connection broke (" : "cannot be reached (") + reason(error) + ")", error);
    } finally {
      await(null, null);
      if (!usable) disconnect(connection);
    }
  }

  private int next(HttpURLConnection connection, InputStream in, byte[] part) throws IOException {
    await(connection, "bytes");
    int count = in.read(part);
    came();
    return count;
  }

  /** Ends what gives a byte now and then, so that another source may give the rest. */
  private final class Pace {
    private long begin = System.nanoTime();
    private long bytes;

    void check(int count) throws Useless {
      bytes += count;
      long milliseconds = (System.nanoTime() - begin) / 1_000_000;
      if (milliseconds < patienceMilliseconds) return;
      if (bytes < leastBytesPerSecond * milliseconds / 1000) throw new Useless("gave " + bytes + " bytes in " + seconds(milliseconds));
      begin = System.nanoTime();
      bytes = 0;
    }
  }

  private static String seconds(long milliseconds) {
    return (milliseconds + 500) / 1000 + " seconds";
  }

  private static boolean isRedirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  }

  private static boolean ended(InputStream in) throws IOException {
    byte[] part = new byte[1024];
    int count = 0;
    for (int left = REDIRECT_BYTES; left > 0 && count >= 0; left -= count) {
      count = in.read(part, 0, Math.min(left, part.length));
      if (count < 0) return true;
    }
    return false;
  }

  private String reason(IOException error) {
    if (error instanceof SocketTimeoutException) return "nothing for " + seconds(patienceMilliseconds);
    if (error instanceof UnknownHostException) return "no host has this name";
    String message = error.getMessage();
    return message == null ? error.getClass().getSimpleName() : message.replaceAll("\\s+", " ");
  }
}
