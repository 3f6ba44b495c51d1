package io.edgekit;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;

/**
 * Prints how many tokens there are, and of every line of a file its ids, those behind another text, and its text in hexadecimal UTF-8: decoded, and as a stream that is given a
 * token at a time. BUNDLE FILE, lines separated by U+0000.
 */
public final class TextLines {
  private TextLines() {}

  public static void main(String[] arguments) throws Exception {
    String all = new String(Files.readAllBytes(Paths.get(arguments[1])), StandardCharsets.UTF_8);
    try (Tokenizer tokenizer = Tokenizer.open(arguments[0])) {
      System.out.println(tokenizer.count());
      for (String line : all.split("\0")) {
        int[] ids = tokenizer.encode(line, true);
        StringBuilder streamed = new StringBuilder();
        try (TextStream stream = tokenizer.stream(false)) {
          for (int id : ids) streamed.append(stream.push(new int[] {id}));
          streamed.append(stream.finish());
        }
        System.out.println(
            Arrays.toString(ids)
                + "|"
                + Arrays.toString(tokenizer.encodeBehind(line))
                + "|"
                + hex(tokenizer.decode(ids, false))
                + "|"
                + hex(streamed.toString()));
      }
    }
  }

  private static String hex(String text) {
    StringBuilder made = new StringBuilder();
    for (byte each : text.getBytes(StandardCharsets.UTF_8)) made.append(String.format("%02x", each));
    return made.toString();
  }
}
