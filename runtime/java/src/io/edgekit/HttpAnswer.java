package io.edgekit;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** What a server answered: its status, its headers, and then its bytes. */
final class HttpAnswer {
  /** Of what comes before the bytes of an answer that is read here. */
  private static final int MOST_HEAD_BYTES = 64 << 10;
  private static final Pattern STATUS = Pattern.compile("HTTP/1\\.[01] ([1-9][0-9]{2})( .*)?");

  private final HttpURLConnection connection;
  private int status;
  private final List<String[]> fields = new ArrayList<>();  // names and values
  /** What the connection takes for the bytes of an answer that announces this one; null: it has read this one itself. */
  private InputStream behind;

  /** Waits for it. Throws IOException. */
  HttpAnswer(HttpURLConnection connection) throws IOException {
    this.connection = connection;
    status = connection.getResponseCode();
    if (status < 0) throw new HttpCall.Useless("answered with something else than HTTP");
    if (announces(status)) {
      readBehind();
      return;
    }
    String value;
    for (int at = 0; (value = connection.getHeaderField(at)) != null; ++at) {
      String name = connection.getHeaderFieldKey(at);
      if (name != null) fields.add(new String[] {name, value});
    }
  }

  int status() {
    return status;
  }

  /** The last value of a header; null where there is none. */
  String field(String name) {
    List<String> found = fields(name);
    return found.isEmpty() ? null : found.get(found.size() - 1);
  }

  /** Its bytes. Throws IOException, also for a Content-Length that gives none: Java would read for as long as the connection is open. */
  InputStream body() throws IOException {
    boolean chunked = field("Transfer-Encoding") != null;
    long length = chunked ? -1 : length();
    if (behind == null) return connection.getInputStream();
    if (length < 0) throw new HttpCall.Useless("announced an answer, and then gave it without Content-Length");
    return new Limited(behind, length);
  }

  /** Whether another request may have the connection, once all bytes are read. */
  boolean leavesConnection() {
    return behind == null;
  }

  /** As 103 Early Hints does; 101 is an answer of its own. */
  private static boolean announces(int status) {
    return status >= 100 && status < 200 && status != 101;
  }

  private List<String> fields(String name) {
    List<String> found = new ArrayList<>();
    for (String[] field : fields) {
      if (field[0].equalsIgnoreCase(name)) found.add(field[1].trim());
    }
    return found;
  }

  /** -1 where none is said. */
  private long length() throws HttpCall.Useless {
    String length = null;
    for (String said : fields("Content-Length")) {
      if (length != null && !said.equals(length)) {
        throw new HttpCall.Useless("answered with different lengths, Content-Length \"" + length + "\" and \"" + said + "\"");
      }
      length = said;
    }
    if (length == null) return -1;
    if (!length.matches("[0-9]{1,18}")) {
      throw new HttpCall.Useless("answered with Content-Length \"" + length + "\", which is no number of bytes");
    }
    return Long.parseLong(length);
  }

  /**
   * Java before 20 passes over 100 alone, and takes what is behind other announcements for their bytes. Android gives nothing of
   * that.
   */
  private void readBehind() throws IOException {
    int announced = status;
    behind = connection.getInputStream();
    int[] left = {MOST_HEAD_BYTES};
    do {
      fields.clear();
      String line = line(left);
      if (line == null) throw new HttpCall.Useless("answered with HTTP status " + announced + ", and nothing behind it");
      Matcher found = STATUS.matcher(line);
      if (!found.matches()) throw new HttpCall.Useless("answered with something else than HTTP");
      status = Integer.parseInt(found.group(1));
      while ((line = line(left)) != null && !line.isEmpty()) {
        int colon = line.indexOf(':');
        if (colon > 0) fields.add(new String[] {line.substring(0, colon), line.substring(colon + 1).trim()});
      }
    } while (announces(status));
  }

  /** Without its end; null where no more comes. */
  private String line(int[] left) throws IOException {
    StringBuilder line = new StringBuilder();
    for (int letter = behind.read(); letter != '\n'; letter = behind.read()) {
      if (letter < 0) return null;
      if (--left[0] < 0) throw new HttpCall.Useless("announced an answer for more than " + MOST_HEAD_BYTES + " bytes");
      line.append((char) letter);
    }
    int end = line.length();
    return end > 0 && line.charAt(end - 1) == '\r' ? line.substring(0, end - 1) : line.toString();
  }

  /** So many bytes, and no more. */
  private static final class Limited extends InputStream {
    private final InputStream in;
    private long left;

    Limited(InputStream in, long bytes) {
      this.in = in;
      left = bytes;
    }

    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] data, int offset, int count) throws IOException {
      if (left == 0) return -1;
      int came = in.read(data, offset, (int) Math.min(count, left));
      if (came < 0) throw new IOException("its answer is not whole");
      left -= came;
      return came;
    }

    @Override
    public void close() throws IOException {
      in.close();
    }
  }
}
