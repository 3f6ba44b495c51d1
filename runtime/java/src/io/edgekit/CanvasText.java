package io.edgekit;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;

/**
 * An answer while it resolves: final tokens, and behind them the canvas as the last step left it. What a screen draws:
 *
 * <pre>{@code
 * CanvasText canvas = new CanvasText(session.tokenizer());
 * session.generate(prompt, settings, cancellation, event -> {
 *   canvas.fold(event);
 *   show(canvas.parts());
 * });
 * }</pre>
 *
 * <p>It is given events in their order, by one thread at a time. What it gives out does not change, and may go to other
 * threads.
 */
public final class CanvasText {
  /** How certain a token is; from the least. */
  public enum State {
    /** A masked family leaves the place open. */
    OPEN,
    /** Guessed by the last step. */
    DRAFT,
    /** Of masked families: accepted before the last step; it may still change. */
    KEPT,
    /** Accepted by the last step; it may still change. */
    ACCEPTED,
    /** Final. */
    COMMITTED;

    /** By the numbers of EK_CELL_. */
    private static final State[] ALL = values();
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

  /** Numbers of EK_EVENT_. */
  private static final int DRAFT = 0, COMMITTED = 1, DONE = 2;

  /** Numbers of a cell: place, token, state. */
  private static final int MEMBERS = 3;

  private final Tokenizer tokenizer;
  private long[] folded = {};
  private List<Cell> cells = Collections.emptyList();
  private long step;
  private GenerationStatistics statistics;

  /**
   * Makes one with nothing in it yet.
   *
   * @param tokenizer of the session; it must be open while this is drawn
   */
  public CanvasText(Tokenizer tokenizer) {
    if (tokenizer == null) throw new NullPointerException("tokenizer is null");
    this.tokenizer = tokenizer;
  }

  /**
   * Takes the next event.
   *
   * @param event of the generation
   */
  public void fold(Event event) {
    if (event == null) throw new NullPointerException("event is null");
    if (event instanceof Event.Draft) {
      Event.Draft draft = (Event.Draft) event;
      fold(DRAFT, draft.start(), draft.tokens(), draft.accepted());
      step = draft.step();
    } else if (event instanceof Event.Committed) {
      Event.Committed part = (Event.Committed) event;
      fold(COMMITTED, part.start(), part.tokens(), null);
      step = 0;
      statistics = part.statistics();
    } else if (event instanceof Event.Done) {
      fold(DONE, 0, new int[0], null);
      statistics = ((Event.Done) event).statistics();
    }
  }

  private void fold(int kind, long start, int[] tokens, boolean[] accepted) {
    folded = Native.canvasFold(folded, kind, start, tokens, accepted, tokenizer.mask());
    cells = null;
  }

  /**
   * Gives the tokens: the final ones, and those of the canvas behind them.
   *
   * @return by place
   */
  public List<Cell> cells() {
    if (cells == null) {
      List<Cell> made = new ArrayList<>();
      for (int at = 0; at < folded.length; at += MEMBERS) {
        made.add(new Cell(folded[at], (int) folded[at + 1], State.ALL[(int) folded[at + 2]]));
      }
      cells = Collections.unmodifiableList(made);
    }
    return cells;
  }

  /**
   * Gives the final tokens.
   *
   * @return token ids
   */
  public int[] answer() {
    return cells().stream().filter(cell -> cell.state == State.COMMITTED).mapToInt(Cell::token).toArray();
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
   * Gives the answer in pieces that are drawn alike. Tokens read as they do inside of a sentence, with the space in front of
   * them; those that make a character together are drawn together.
   *
   * @return in order; a place without a text is {@link #OPEN} or {@link #SPECIAL}, with a space between the latter and what is
   *     beside it
   */
  public List<Part> parts() {
    byte[][] drawn = tokenizer.draw(folded);
    byte[] states = drawn[0];
    List<Part> made = new ArrayList<>();
    for (int at = 0; at < states.length; ++at) made.add(new Part(Utf8.decode(drawn[at + 1]), State.ALL[states[at]]));
    return Collections.unmodifiableList(made);
  }

  /**
   * Gives the answer as one text, see {@link #parts}.
   *
   * @return the text of all parts
   */
  public String text() {
    StringBuilder text = new StringBuilder();
    for (Part part : parts()) text.append(part.text);
    return text.toString();
  }
}
