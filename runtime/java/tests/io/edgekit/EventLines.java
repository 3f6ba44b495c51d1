package io.edgekit;

import java.util.Arrays;

/** Prints the events of a generation, one a line: BUNDLE PROMPT SEED NEW_TOKENS STEPS NAME=NUMBER..., ids with commas. */
public final class EventLines {
  private EventLines() {}

  public static void main(String[] arguments) {
    int[] prompt = Arrays.stream(arguments[1].split(",")).mapToInt(Integer::parseInt).toArray();
    GenerationSettings settings = new GenerationSettings()
        .seed(Long.parseUnsignedLong(arguments[2]))
        .maxNewTokens(Long.parseLong(arguments[3]))
        .steps(Long.parseLong(arguments[4]));
    for (String option : Arrays.copyOfRange(arguments, 5, arguments.length)) {
      String[] parts = option.split("=");
      settings.option(parts[0], Double.parseDouble(parts[1]));
    }
    try (Session session = Session.open(arguments[0], new SessionOptions().threads(1))) {
      GenerationStatistics statistics = session.generate(prompt, settings, null, EventLines::print);
      System.out.println("returned " + counters(statistics));
    }
  }

  private static void print(Event event) {
    if (event instanceof Event.Draft) {
      Event.Draft draft = (Event.Draft) event;
      StringBuilder accepted = new StringBuilder();
      for (boolean each : draft.accepted()) accepted.append(each ? '1' : '0');
      System.out.println("draft " + draft.canvasIndex() + " " + draft.step() + " " + draft.start() + " "
          + Arrays.toString(draft.tokens()) + " " + accepted);
    } else if (event instanceof Event.Committed) {
      Event.Committed part = (Event.Committed) event;
      System.out.println("committed " + part.canvasIndex() + " " + part.start() + " " + Arrays.toString(part.tokens()));
    } else if (event instanceof Event.Done) {
      System.out.println("done " + counters(((Event.Done) event).statistics()));
    }
  }

  private static String counters(GenerationStatistics found) {
    return found.finishReason() + " " + found.denoisingSteps() + " " + found.forwards() + " " + found.projections() + " "
        + found.prefills() + " " + found.committedTokens() + " " + found.canvases();
  }
}
