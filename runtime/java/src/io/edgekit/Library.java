package io.edgekit;

/** The native library. */
public final class Library {
  private Library() {}

  /**
   * Names its release.
   *
   * @return such as "0.1.0"
   */
  public static String version() {
    return Utf8.decode(Native.version());
  }

  /**
   * Measures the physical memory of this process now, which {@link SessionOptions#memoryBytes} bounds.
   *
   * @return bytes; 0 where the system does not tell
   */
  public static long processBytes() {
    return Native.processBytes();
  }
}
