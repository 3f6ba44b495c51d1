package io.edgekit;

/** What a generation reports. The answer's tokens are those of all {@link Committed}, its text that of all {@link Text}. */
public abstract class Event {
  private Event() {}

  /** The canvas or block after a denoising step; nothing in it is final. */
  public static final class Draft extends Event {
    private final long canvasIndex;
    private final long step;
    private final long start;
    private final int[] tokens;
    private final boolean[] accepted;

    Draft(long canvasIndex, long step, long start, int[] tokens, boolean[] accepted) {
      this.canvasIndex = canvasIndex;
      this.step = step;
      this.start = start;
      this.tokens = tokens;
      this.accepted = accepted;
    }

    /**
     * Counts canvases or blocks.
     *
     * @return from 0
     */
    public long canvasIndex() {
      return canvasIndex;
    }

    /**
     * Counts steps within the canvas or block.
     *
     * @return from 1
     */
    public long step() {
      return step;
    }

    /**
     * Says where the first of {@link #tokens} stands in the answer.
     *
     * @return from 0
     */
    public long start() {
      return start;
    }

    /**
     * Gives the best guess, the mask token where a masked family leaves a position open: a special one, which decoding leaves
     * out if it is told to.
     *
     * @return token ids; the event's own array
     */
    public int[] tokens() {
      return tokens;
    }

    /**
     * Says where this step accepted or committed a token.
     *
     * @return as many as {@link #tokens}; the event's own array
     */
    public boolean[] accepted() {
      return accepted;
    }

    @Override
    public String toString() {
      return "Draft(canvas " + canvasIndex + ", step " + step + ", " + tokens.length + " tokens from " + start + ")";
    }
  }

  /** Final tokens of a canvas or block. */
  public static final class Committed extends Event {
    private final long canvasIndex;
    private final long start;
    private final int[] tokens;
    private final GenerationStatistics statistics;

    Committed(long canvasIndex, long start, int[] tokens, GenerationStatistics statistics) {
      this.canvasIndex = canvasIndex;
      this.start = start;
      this.tokens = tokens;
      this.statistics = statistics;
    }

    /**
     * Counts canvases or blocks.
     *
     * @return from 0
     */
    public long canvasIndex() {
      return canvasIndex;
    }

    /**
     * Says where the first of {@link #tokens} stands in the answer.
     *
     * @return from 0
     */
    public long start() {
      return start;
    }

    /**
     * Gives the tokens.
     *
     * @return token ids; the event's own array
     */
    public int[] tokens() {
      return tokens;
    }

    /**
     * Counts what was done so far, these tokens with it.
     *
     * @return counters, the rate of tokens among them; how it ends is not known yet
     */
    public GenerationStatistics statistics() {
      return statistics;
    }

    @Override
    public String toString() {
      return "Committed(canvas " + canvasIndex + ", " + tokens.length + " tokens from " + start + ")";
    }
  }

  /**
   * Text that has become certain with committed tokens: whole characters, never taken back. A character may be spread
   * over several tokens, so the last of it comes before {@link Done}. There is none where the session has no tokenizer.
   */
  public static final class Text extends Event {
    private final String text;

    Text(String text) {
      this.text = text;
    }

    /**
     * Gives the text.
     *
     * @return not empty
     */
    public String text() {
      return text;
    }

    @Override
    public String toString() {
      return "Text(" + text + ")";
    }
  }

  /** The last event of a generation that was neither stopped nor failed. */
  public static final class Done extends Event {
    private final GenerationStatistics statistics;

    Done(GenerationStatistics statistics) {
      this.statistics = statistics;
    }

    /**
     * Counts what was done.
     *
     * @return the final counters
     */
    public GenerationStatistics statistics() {
      return statistics;
    }

    @Override
    public String toString() {
      return "Done(" + statistics + ")";
    }
  }
}
