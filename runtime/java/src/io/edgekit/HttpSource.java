package io.edgekit;

import java.io.IOException;
import java.net.IDN;
import java.net.MalformedURLException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** Files over HTTP, below an address. */
final class HttpSource {
  private static final int MOST_PORT = 65535;
  /** What RFC 3986 has in paths besides letters, digits and "-._~". */
  private static final String NAME_SAFE = "/", PATH_SAFE = "/:%!$&'()*+,;=@";

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
    if (odd || more || !isUsable(url) || !hasUsablePort(url)) throw refused(address);
    String path = url.getPath();
    while (path.endsWith("/")) path = path.substring(0, path.length() - 1);
    String port = url.getPort() < 0 ? "" : ":" + url.getPort();
    below = url.getProtocol() + "://" + host(url, address) + port + encoded(path, PATH_SAFE);
  }

  /** As servers of names know it: letters beyond ASCII have a spelling within it. */
  private static String host(URL url, String address) {
    if (url.getHost().startsWith("[")) return url.getHost();  // numbers of IPv6
    try {
      return IDN.toASCII(url.getHost());
    } catch (IllegalArgumentException error) {
      throw refused(address);
    }
  }

  /** What addresses of its files begin with, without a slash at the end. */
  String address() {
    return below;
  }

  private static IllegalArgumentException refused(String address) {
    String shown = address.substring(address.lastIndexOf('@') + 1);  // without a password
    return new IllegalArgumentException(
        "\"" + shown + "\" is no address of a folder; give one without user, query and fragment, as https://host/folder");
  }

  /** What asks for a request's bytes, once it is run. */
  HttpCall call(FetchRequest request, HttpCall.Taker taker) {
    return new HttpCall(below + "/" + encoded(request.name(), NAME_SAFE), request, taker);
  }

  private static boolean isUsable(URL url) {
    boolean http = url.getProtocol().equals("http") || url.getProtocol().equals("https");
    return http && !url.getHost().isEmpty();
  }

  /** Also where it says none. Java itself takes "-1" for none, and "+80" for 80. */
  private static boolean hasUsablePort(URL url) {
    String authority = url.getAuthority();
    String behind = authority.substring(Math.max(authority.lastIndexOf('@'), authority.lastIndexOf(']')) + 1);
    String port = behind.substring(behind.indexOf(':') < 0 ? behind.length() : behind.indexOf(':') + 1);
    return port.isEmpty() || port.matches("[0-9]+") && url.getPort() > 0 && url.getPort() <= MOST_PORT;
  }

  /** Where an answer leads; throws IOException for what is none. */
  static URL redirected(URL from, String location) throws IOException {
    URL to;
    try {
      to = new URL(from, location);
    } catch (MalformedURLException error) {
      throw new HttpCall.Useless("leads to what is no address, \"" + location + "\"");
    }
    if (!isUsable(to)) throw new HttpCall.Useless("leads to an address of another kind, \"" + location + "\"");
    if (!hasUsablePort(to)) throw new HttpCall.Useless("leads to what is no address, \"" + location + "\"");
    if (from.getProtocol().equals("https") && !to.getProtocol().equals("https")) {
      throw new HttpCall.Useless("leads to an address without encryption, \"" + location + "\"");
    }
    return to;
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
