package io.edgekit;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

/**
 * An answer while it resolves: final tokens, and behind them the canvas as the last step left it. What a screen draws:
 *
 * <pre>{@code
 * CanvasText canvas = new CanvasText();
 * session.generate(prompt, settings, cancellation, event -> {
 *   canvas.fold(event);
 *   show(canvas.parts(session.tokenizer()));
 * });
 * }</pre>
 *
 * <p>It is given events in their order, by one thread at a time. What it gives out does not change, and may go to other
 * threads.
 */
public final class CanvasText {
  /** How certain a token is; from the least. */
  public enum State {
    /** Guessed by the last step. */
    DRAFT,
    /** Accepted by a step of this canvas; it may still change. */
    ACCEPTED,
    /** Final. */
    COMMITTED
  }

  /** Stands for a place that is open, as in the terminal ({@code edgekit run --watch}). */
  public static final String OPEN = "·";

  /** Stands for a token that has no text: the end, and what fills the canvas behind it. */
  public static final String SPECIAL = "◦";

  /** A token at its place in the answer. */
  public static final class Cell {
    private final long place;
    private final int token;
    private final State state;

    Cell(long place, int token, State state) {
      this.place = place;
      this.token = token;
      this.state = state;
    }

    /**
     * Says where it stands in the answer.
     *
     * @return from 0
     */
    public long place() {
      return place;
    }

    /**
     * Gives the token.
     *
     * @return its id
     */
    public int token() {
      return token;
    }

    /**
     * Says how certain it is.
     *
     * @return its state
     */
    public State state() {
      return state;
    }

    @Override
    public boolean equals(Object other) {
      if (!(other instanceof Cell)) return false;
      Cell cell = (Cell) other;
      return place == cell.place && token == cell.token && state == cell.state;
    }

    @Override
    public int hashCode() {
      return Objects.hash(place, token, state);
    }

    @Override
    public String toString() {
      return "Cell(" + token + " at " + place + ", " + state + ")";
    }
  }

  /** Text of neighbours in the same state. */
  public static final class Part {
    private final String text;
    private final State state;

    Part(String text, State state) {
      this.text = text;
      this.state = state;
    }

    /**
     * Gives the text.
     *
     * @return not empty
     */
    public String text() {
      return text;
    }

    /**
     * Says how certain it is.
     *
     * @return the state of all of it
     */
    public State state() {
      return state;
    }

    @Override
    public boolean equals(Object other) {
      if (!(other instanceof Part)) return false;
      Part part = (Part) other;
      return text.equals(part.text) && state == part.state;
    }

    @Override
    public int hashCode() {
      return Objects.hash(text, state);
    }

    @Override
    public String toString() {
      return "Part(" + text + ", " + state + ")";
    }
  }

  private List<Cell> cells = Collections.emptyList();
  private long step;
  private GenerationStatistics statistics;

  /** Nothing yet. */
  public CanvasText() {}

  /**
   * Takes the next event.
   *
   * @param event of the generation
   */
  public void fold(Event event) {
    if (event == null) throw new NullPointerException("event is null");
    if (event instanceof Event.Draft) {
      draft((Event.Draft) event);
    } else if (event instanceof Event.Committed) {
      commit((Event.Committed) event);
    } else if (event instanceof Event.Done) {
      statistics = ((Event.Done) event).statistics();
      cells = Collections.unmodifiableList(committed());
    }
  }

  private void draft(Event.Draft draft) {
    step = draft.step();
    Map<Long, Cell> earlier = new HashMap<>();
    for (Cell cell : cells) earlier.put(cell.place, cell);
    List<Cell> made = committed();
    int committed = made.size();
    int[] tokens = draft.tokens();
    for (int offset = 0; offset < tokens.length; ++offset) {
      long place = draft.start() + offset;
      if (place < committed) continue;
      Cell before = earlier.get(place);
      // Masked families keep what they accepted: the step that did so said it once.
      boolean kept =
          step > 1 && before != null && before.state == State.ACCEPTED && before.token == tokens[offset];
      made.add(new Cell(place, tokens[offset], draft.accepted()[offset] || kept ? State.ACCEPTED : State.DRAFT));
    }
    cells = Collections.unmodifiableList(made);
  }

  private void commit(Event.Committed part) {
    step = 0;
    statistics = part.statistics();
    List<Cell> made = committed();
    for (int token : part.tokens()) made.add(new Cell(made.size(), token, State.COMMITTED));
    // A block of a longer answer: what follows it stays on the screen until the next step.
    for (Cell cell : cells) {
      if (cell.place >= made.size()) made.add(cell);
    }
    cells = Collections.unmodifiableList(made);
  }

  private List<Cell> committed() {
    List<Cell> found = new ArrayList<>();
    for (Cell cell : cells) {
      if (cell.state == State.COMMITTED) found.add(cell);
    }
    return found;
  }

  /**
   * Gives the tokens: the final ones, and those of the canvas behind them.
   *
   * @return by place
   */
  public List<Cell> cells() {
    return cells;
  }

  /**
   * Gives the final tokens.
   *
   * @return token ids
   */
  public int[] answer() {
    return committed().stream().mapToInt(Cell::token).toArray();
  }

  /**
   * Counts the steps of the current canvas or block.
   *
   * @return 0 before the first
   */
  public long step() {
    return step;
  }

  /**
   * Counts what was done until tokens were last committed, and of the whole generation once it is done.
   *
   * @return the counters, the rate of tokens among them; null before the first are committed
   */
  public GenerationStatistics statistics() {
    return statistics;
  }

  /**
   * Gives the answer in pieces that are drawn alike.
   *
   * @param tokenizer of the session
   * @return in order; a place without a text is {@link #OPEN} or {@link #SPECIAL}
   */
  public List<Part> parts(Tokenizer tokenizer) {
    if (tokenizer == null) throw new NullPointerException("tokenizer is null");
    return parts(tokens -> tokenizer.decode(tokens, true), tokenizer.mask());
  }

  /**
   * Gives the answer as one text, see {@link #parts}.
   *
   * @param tokenizer of the session
   * @return the text of all parts
   */
  public String text(Tokenizer tokenizer) {
    StringBuilder text = new StringBuilder();
    for (Part part : parts(tokenizer)) text.append(part.text);
    return text.toString();
  }

  /** By `decode`, which makes text of tokens, without special ones; `mask` is the token of open places, -1 where none has one. */
  List<Part> parts(Function<int[], String> decode, int mask) {
    List<Part> made = new ArrayList<>();
    int[] answer = answer();
    add(made, answer.length == 0 ? "" : decode.apply(answer), State.COMMITTED);
    // One by one: a place that is open, or behind the end, is a special token and has no text.
    List<String> texts = new ArrayList<>();
    for (Cell cell : cells.subList(answer.length, cells.size())) {
      texts.add(cell.token == mask ? OPEN : decode.apply(new int[] {cell.token}));
    }
    for (int at = 0, next; at < texts.size(); at = next) {
      String text = texts.get(at);
      State state = cells.get(answer.length + at).state;
      next = at + 1;
      if (isPartial(text)) {  // of a character that several tokens make: they are drawn together
        while (next < texts.size() && isPartial(texts.get(next))) ++next;
        List<Cell> whole = cells.subList(answer.length + at, answer.length + next);
        text = decode.apply(whole.stream().mapToInt(Cell::token).toArray());
        for (Cell cell : whole) {
          if (cell.state.compareTo(state) < 0) state = cell.state;
        }
      }
      add(made, text.isEmpty() ? SPECIAL : text, state);
    }
    return Collections.unmodifiableList(made);
  }

  private static boolean isPartial(String text) {
    return text.indexOf('\uFFFD') >= 0;
  }

  private static void add(List<Part> made, String text, State state) {
    if (text.isEmpty()) return;
    Part last = made.isEmpty() ? null : made.get(made.size() - 1);
    if (last == null || last.state != state) {
      made.add(new Part(text, state));
    } else {
      made.set(made.size() - 1, new Part(last.text + text, state));
    }
  }
}
