package io.edgekit;

import io.edgekit.CanvasText.Cell;
import io.edgekit.CanvasText.Part;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * Prints what CanvasText makes of the events of a file after each of them: STEP|PLACE:TOKEN:STATE ...|TEXT:STATE ..., texts in
 * hexadecimal UTF-8. Its first line has the bytes of tokens, each in hexadecimal behind a "="; "new" begins another answer.
 */
public final class CanvasLines {
  private CanvasLines() {}

  public static void main(String[] arguments) throws Exception {
    List<String> lines = Files.readAllLines(Paths.get(arguments[0]));
    byte[][] texts = Arrays.stream(lines.get(0).split(" ")).map(CanvasLines::bytes).toArray(byte[][]::new);
    CanvasText canvas = null;
    for (String line : lines.subList(1, lines.size())) {
      if (line.equals("new")) {
        canvas = new CanvasText();
        continue;
      }
      canvas.fold(event(line.split(" ")));
      String cells = canvas.cells().stream().map(CanvasLines::said).collect(Collectors.joining(" "));
      String parts = canvas.parts(tokens -> decoded(texts, tokens), 0).stream().map(CanvasLines::said)
          .collect(Collectors.joining(" "));
      System.out.println(canvas.step() + "|" + cells + "|" + parts);
    }
  }

  private static Event event(String[] words) {
    GenerationStatistics none = GenerationStatistics.STOPPED;
    if (words[0].equals("done")) return new Event.Done(none);
    long canvas = Long.parseLong(words[1]), step = Long.parseLong(words[2]), start = Long.parseLong(words[3]);
    int[] tokens = Arrays.stream(words[4].split(",")).mapToInt(Integer::parseInt).toArray();
    if (words[0].equals("committed")) return new Event.Committed(canvas, start, tokens, none);
    boolean[] accepted = new boolean[tokens.length];
    for (int at = 0; at < accepted.length; ++at) accepted[at] = words[5].charAt(at) == '1';
    return new Event.Draft(canvas, step, start, tokens, accepted);
  }

  private static String decoded(byte[][] texts, int[] tokens) {
    ByteArrayOutputStream all = new ByteArrayOutputStream();
    for (int token : tokens) all.write(texts[token], 0, texts[token].length);
    return new String(all.toByteArray(), StandardCharsets.UTF_8);
  }

  private static String said(Cell cell) {
    return cell.place() + ":" + cell.token() + ":" + cell.state();
  }

  private static String said(Part part) {
    StringBuilder made = new StringBuilder();
    for (byte each : part.text().getBytes(StandardCharsets.UTF_8)) made.append(String.format("%02x", each));
    return made + ":" + part.state();
  }

  private static byte[] bytes(String hex) {
    byte[] made = new byte[(hex.length() - 1) / 2];
    for (int at = 0; at < made.length; ++at) made[at] = (byte) Integer.parseInt(hex.substring(1 + 2 * at, 3 + 2 * at), 16);
    return made;
  }
}
