package io.edgekit;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.function.Consumer;

/** Where a bundle comes from, and which one it has to be. */
public final class FetchOptions {
  private static final int MOST_CONNECTIONS = 64;

  private final List<String> sources;
  private String sha256;
  private List<String> formats;
  private String system;
  private String systemVersion;
  private boolean compare;
  private boolean keepFormat;
  private long requestBytes;
  private int connections = 4;
  private Consumer<String> trouble = said -> {};

  /**
   * Has the bundle come from servers that have the same files.
   *
   * @param sources 1 to 32 addresses of a folder, {@code https://host/folder}; where an application has a transport of its
   *     own, any names
   */
  public FetchOptions(String... sources) {
    this(Arrays.asList(sources));
  }

  /**
   * Has the bundle come from servers that have the same files.
   *
   * @param sources as above
   */
  public FetchOptions(Collection<String> sources) {
    this.sources = new ArrayList<>(sources);
  }

  /**
   * Says which bundle it has to be: any other one is refused.
   *
   * @param digits the 64 that its manifest begins with, or the SHA-256 of bundles.json where the address is that of several
   *     bundles; null: any bundle
   * @return this
   */
  public FetchOptions sha256(String digits) {
    sha256 = digits;
    return this;
  }

  /**
   * Says which of several bundles are of use: the first there that is of one of these formats is taken, one that was compiled
   * for other chips than this one only where no other is. A bundle that is alone has to be of one of them too.
   *
   * @param formats such as "native"; none: any. Where it is not said, of several bundles those that sessions run are of use,
   *     and one that is alone in any format
   * @return this
   */
  public FetchOptions formats(String... formats) {
    this.formats = new ArrayList<>(Arrays.asList(formats));
    return this;
  }

  /**
   * Says what system one of several bundles must run on.
   *
   * @param name "ios" or "macos"
   * @param version such as "26.4"
   * @return this
   */
  public FetchOptions system(String name, String version) {
    if (name == null || version == null) throw new NullPointerException("a system has a name and a version; one is null");
    system = name;
    systemVersion = version;
    return this;
  }

  /**
   * Says whether a bundle that is there with the same manifest is compared and mended.
   *
   * @param wanted false where it is not said: it is taken for whole if its files have their sizes
   * @return this
   */
  public FetchOptions compare(boolean wanted) {
    compare = wanted;
    return this;
  }

  /**
   * Says whether the format of the bundle that is in the folder is kept: where there is one, and one of several bundles is of
   * its format, that one is taken, whatever {@link #formats} says.
   *
   * @param wanted false where it is not said: the choice is made anew
   * @return this
   */
  public FetchOptions keepFormat(boolean wanted) {
    keepFormat = wanted;
    return this;
  }

  /**
   * Sets how much is asked for at once.
   *
   * @param bytes 65536 or more; 0: 8 MiB
   * @return this
   */
  public FetchOptions requestBytes(long bytes) {
    if (bytes < 0) throw new IllegalArgumentException("requestBytes is " + bytes + "; it is 0 (8 MiB) or more");
    requestBytes = bytes;
    return this;
  }

  /**
   * Sets how many requests are under way at the same time.
   *
   * @param count 1 to 64; 4 where it is not set
   * @return this
   */
  public FetchOptions connections(int count) {
    if (count < 1 || count > MOST_CONNECTIONS) {
      throw new IllegalArgumentException("connections is " + count + "; it is from 1 to " + MOST_CONNECTIONS);
    }
    connections = count;
    return this;
  }

  /**
   * Gives a listener for answers that failed and are asked for again.
   *
   * @param listener is told one line, by any thread
   * @return this
   */
  public FetchOptions trouble(Consumer<String> listener) {
    if (listener == null) throw new NullPointerException("listener is null");
    trouble = listener;
    return this;
  }

  long open(String folder) {
    return Native.fetchOpen(
        Utf8.path(folder),
        encoded(sources, "a source"),
        sha256 == null ? null : Utf8.name(sha256, "the SHA-256"),
        formats == null ? null : encoded(formats, "a format"),
        system == null ? null : Utf8.name(system, "the system"),
        system == null ? null : Utf8.name(systemVersion, "the system's version"),
        compare,
        requestBytes,
        keepFormat);
  }

  List<String> sources() {
    return new ArrayList<>(sources);
  }

  int connections() {
    return connections;
  }

  Consumer<String> trouble() {
    return trouble;
  }

  private static byte[][] encoded(List<String> texts, String what) {
    return texts.stream().map(text -> Utf8.name(text, what)).toArray(byte[][]::new);
  }
}
