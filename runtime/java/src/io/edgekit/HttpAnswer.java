package io.edgekit;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.util.ArrayList;
import java.util.List;

/** What a server answered: its status, its headers, and then its bytes. */
final class HttpAnswer {
  private final HttpURLConnection connection;
  private final int status;
  private final List<String[]> fields = new ArrayList<>();  // names and values

  /** Waits for it. Throws IOException. */
  HttpAnswer(HttpURLConnection connection) throws IOException {
    this.connection = connection;
    status = connection.getResponseCode();
    if (status < 0) throw new HttpCall.Useless("answered with something else than HTTP");
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
    if (field("Transfer-Encoding") == null) requireLength();
    return connection.getInputStream();
  }

  private List<String> fields(String name) {
    List<String> found = new ArrayList<>();
    for (String[] field : fields) {
      if (field[0].equalsIgnoreCase(name)) found.add(field[1].trim());
    }
    return found;
  }

  private void requireLength() throws HttpCall.Useless {
    String length = null;
    for (String said : fields("Content-Length")) {
      if (length != null && !said.equals(length)) {
        throw new HttpCall.Useless("answered with different lengths, Content-Length \"" + length + "\" and \"" + said + "\"");
      }
      length = said;
    }
    if (length != null && !length.matches("[0-9]{1,18}")) {
      throw new HttpCall.Useless("answered with Content-Length \"" + length + "\", which is no number of bytes");
    }
  }
}
