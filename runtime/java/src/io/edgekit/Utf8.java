package io.edgekit;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Text as the native library takes and gives it. */
final class Utf8 {
  private Utf8() {}

  /** Throws IllegalArgumentException for half of a surrogate pair, which String.getBytes would turn into '?'. */
  static byte[] encode(String text, String what) {
    if (text == null) throw new NullPointerException(what + " is null");
    try {
      ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
      return Arrays.copyOf(bytes.array(), bytes.limit());
    } catch (CharacterCodingException broken) {
      throw new IllegalArgumentException(what + " holds half of a surrogate pair; it is no Unicode text", broken);
    }
  }

  /** For what C reads up to a NUL. */
  static byte[] name(String text, String what) {
    byte[] bytes = encode(text, what);
    if (text.indexOf('\0') >= 0) throw new IllegalArgumentException(what + " holds a NUL character");
    return Arrays.copyOf(bytes, bytes.length + 1);
  }

  /** For the path of a folder. */
  static byte[] path(String path) {
    if (path != null && path.isEmpty()) throw new IllegalArgumentException("the path is empty; give that of a bundle");
    return name(path, "the path");
  }

  /** For what a server said, which may be no text. */
  static byte[] said(String text) {
    return (text.replace('\0', '?') + '\0').getBytes(StandardCharsets.UTF_8);
  }

  static String decode(byte[] bytes) {
    return new String(bytes, StandardCharsets.UTF_8);
  }
}
