package io.edgekit;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.MalformedURLException;
import java.net.SocketTimeoutException;
import java.net.URL;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** Files over HTTP, below an address, by what Java and Android both have. */
final class HttpSource {
  private static final int TIMEOUT_MILLISECONDS = 30_000;
  /** Read at once: small enough to stop soon. */
  private static final int PART_BYTES = 256 << 10;
  private static final int MOST_REDIRECTS = 10;
  private static final int MOST_PORT = 65535;
  /** Of an answer that leads elsewhere: read, so that its connection serves for more. */
  private static final int REDIRECT_BYTES = 64 << 10;
  /** What RFC 3986 has in paths besides letters, digits and "-._~". */
  private static final String NAME_SAFE = "/", ADDRESS_SAFE = "/:%[]!$&'()*+,;=@";

  /** Takes what comes; false: no more of it is needed. */
  interface Taker {
    boolean head(int status, String contentRange);

    boolean part(byte[] data, int count);
  }

  private final String below;

  /** Throws IllegalArgumentException for what is no address of a folder. */
  HttpSource(String address) {
    URL url;
    try {
      url = new URL(address);
    } catch (MalformedURLException error) {
      throw refused(address);
    }
    boolean odd = address.chars().anyMatch(letter -> letter <= ' ' || letter == 0x7f);
    boolean more = url.getUserInfo() != null || url.getQuery() != null || url.getRef() != null;
    if (odd || more || !isUsable(url)) throw refused(address);
    int end = address.length();
    while (address.charAt(end - 1) == '/') --end;
    below = encoded(address.substring(0, end), ADDRESS_SAFE);
  }

  private static IllegalArgumentException refused(String address) {
    String shown = address.substring(address.lastIndexOf('@') + 1);  // without a password
    return new IllegalArgumentException(
        "\"" + shown + "\" is no address of a folder; give one without user, query and fragment, as https://host/folder");
  }

  /** Throws IOException with what went wrong, for people. */
  void ask(FetchRequest request, Taker taker) throws IOException {
    URL url = new URL(below + "/" + encoded(request.name(), NAME_SAFE));
    for (int redirects = 0; url != null; ++redirects) {
      if (redirects > MOST_REDIRECTS) throw new IOException("leads from one address to another, without an end");
      url = ask(url, request.range(), taker);
    }
  }

  /** Where the answer leads; null: it was taken. */
  private URL ask(URL url, String range, Taker taker) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) url.openConnection();
    boolean usable = false;  // for the next request to the same server
    boolean answered = false;
    try {
      connection.setInstanceFollowRedirects(false);
      connection.setUseCaches(false);
      connection.setConnectTimeout(TIMEOUT_MILLISECONDS);
      connection.setReadTimeout(TIMEOUT_MILLISECONDS);
      connection.setRequestProperty("Accept-Encoding", "identity");
      connection.setRequestProperty("User-Agent", "edgekit/" + Library.version());
      if (range != null) connection.setRequestProperty("Range", range);
      int status = connection.getResponseCode();
      if (status < 0) throw new Useless("answered with something else than HTTP");
      answered = true;
      String location = connection.getHeaderField("Location");
      if (isRedirect(status) && location != null) {
        usable = ended(connection.getInputStream());
        return redirected(url, location);
      }
      String coding = connection.getContentEncoding();
      if (status < 300 && coding != null && !coding.equalsIgnoreCase("identity")) {
        throw new Useless("answered in the coding \"" + coding + "\", which was not asked for");
      }
      if (!taker.head(status, connection.getHeaderField("Content-Range"))) return null;
      InputStream in = connection.getInputStream();
      byte[] part = new byte[PART_BYTES];
      for (int count = in.read(part); count >= 0; count = in.read(part)) {
        if (!taker.part(part, count)) return null;
      }
      in.close();
      usable = true;
      return null;
    } catch (Useless error) {
      throw error;
    } catch (IOException error) {
      throw new IOException((answered ? "the connection broke (" : "cannot be reached (") + reason(error) + ")", error);
    } finally {
      if (!usable) connection.disconnect();
    }
  }

  /** An answer that came, and says nothing of use. */
  private static final class Useless extends IOException {
    private static final long serialVersionUID = 1L;

    Useless(String message) {
      super(message);
    }
  }

  private static boolean isRedirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
  }

  private static boolean isUsable(URL url) {
    boolean http = url.getProtocol().equals("http") || url.getProtocol().equals("https");
    return http && !url.getHost().isEmpty() && url.getPort() <= MOST_PORT;
  }

  private static URL redirected(URL from, String location) throws IOException {
    URL to;
    try {
      to = new URL(from, location);
    } catch (MalformedURLException error) {
      throw new Useless("leads to what is no address, \"" + location + "\"");
    }
    if (!isUsable(to)) throw new Useless("leads to an address of another kind, \"" + location + "\"");
    if (from.getProtocol().equals("https") && !to.getProtocol().equals("https")) {
      throw new Useless("leads to an address without encryption, \"" + location + "\"");
    }
    return to;
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

  private static String reason(IOException error) {
    if (error instanceof SocketTimeoutException) return "nothing for " + TIMEOUT_MILLISECONDS / 1000 + " seconds";
    if (error instanceof UnknownHostException) return "no host has this name";
    String message = error.getMessage();
    return message == null ? error.getClass().getSimpleName() : message.replaceAll("\\s+", " ");
  }

  /** With percent encoding of what is neither a letter, a digit, one of "-._~" nor in `safe`. */
  private static String encoded(String text, String safe) {
    StringBuilder made = new StringBuilder();
    for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
      char letter = (char) (each & 0xff);
      boolean plain = letter >= 'a' && letter <= 'z' || letter >= 'A' && letter <= 'Z' || letter >= '0' && letter <= '9'
          || "-._~".indexOf(letter) >= 0 || safe.indexOf(letter) >= 0;
      if (plain) made.append(letter);
      else made.append(String.format(Locale.ROOT, "%%%02X", each & 0xff));
    }
    return made.toString();
  }
}
