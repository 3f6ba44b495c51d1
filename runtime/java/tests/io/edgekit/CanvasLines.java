package io.edgekit;

import io.edgekit.CanvasText.Cell;
import io.edgekit.CanvasText.Part;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.stream.Collectors;

/**
 * Prints what CanvasText makes of the events of a file after each of them: STEP|PLACE:TOKEN:STATE ...|TEXT:STATE ..., texts in
 * hexadecimal UTF-8. BUNDLE FILE; a line "new" begins another answer.
 */
public final class CanvasLines {
  private CanvasLines() {}

  public static void main(String[] arguments) throws Exception {
    try (Tokenizer tokenizer = Tokenizer.open(arguments[0])) {
      CanvasText canvas = null;
      for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
        if (line.equals("new")) {
          canvas = new CanvasText(tokenizer);
          continue;
        }
        canvas.fold(event(line.split(" ")));
        String cells = canvas.cells().stream().map(CanvasLines::said).collect(Collectors.joining(" "));
        String parts = canvas.parts().stream().map(CanvasLines::said).collect(Collectors.joining(" "));
        System.out.println(canvas.step() + "|" + cells + "|" + parts);
      }
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

  private static String said(Cell cell) {
    return cell.place() + ":" + cell.token() + ":" + cell.state();
  }

  private static String said(Part part) {
    StringBuilder made = new StringBuilder();
    for (byte each : part.text().getBytes(StandardCharsets.UTF_8)) made.append(String.format("%02x", each));
    return made + ":" + part.state();
  }
}
