package io.edgekit;

/** Counters of one generation. */
public final class GenerationStatistics {
  /** How a generation came to its end. */
  public enum FinishReason {
    /** By an error, or not yet. */
    NONE,
    /** An end token was committed. */
    END_TOKEN,
    /** As many tokens as were asked for. */
    LENGTH,
    /** It was cancelled, its thread was interrupted, or its session closed. */
    STOPPED
  }

  /** Of a generation that was ended before its first pass. */
  static final GenerationStatistics STOPPED = new GenerationStatistics(3, 0, 0, 0, 0, 0, 0, 0);

  private final FinishReason finishReason;
  private final long denoisingSteps;
  private final long forwards;
  private final long projections;
  private final long prefills;
  private final long committedTokens;
  private final long canvases;
  private final double seconds;

  GenerationStatistics(
      int finishReason,
      long denoisingSteps,
      long forwards,
      long projections,
      long prefills,
      long committedTokens,
      long canvases,
      double seconds) {
    this.finishReason = FinishReason.values()[finishReason];
    this.denoisingSteps = denoisingSteps;
    this.forwards = forwards;
    this.projections = projections;
    this.prefills = prefills;
    this.committedTokens = committedTokens;
    this.canvases = canvases;
    this.seconds = seconds;
  }

  /**
   * Says how the generation came to its end.
   *
   * @return the reason
   */
  public FinishReason finishReason() {
    return finishReason;
  }

  /**
   * Counts the steps whose pass ran.
   *
   * @return denoising steps
   */
  public long denoisingSteps() {
    return denoisingSteps;
  }

  /**
   * Counts denoising passes: one a step, two with guidance, fewer where steps are drafted.
   *
   * @return forward passes
   */
  public long forwards() {
    return forwards;
  }

  /**
   * Counts further passes of the vocabulary head on the same hidden states.
   *
   * @return passes of the head alone
   */
  public long projections() {
    return projections;
  }

  /**
   * Counts the causal passes that encoded text.
   *
   * @return passes of text
   */
  public long prefills() {
    return prefills;
  }

  /**
   * Counts final tokens, padding not among them.
   *
   * @return tokens
   */
  public long committedTokens() {
    return committedTokens;
  }

  /**
   * Counts the canvases or blocks that were begun.
   *
   * @return canvases
   */
  public long canvases() {
    return canvases;
  }

  /**
   * Measures the time that the generation takes: encoding of the prompt, reading of weights and what listeners do with it.
   *
   * @return seconds since it began
   */
  public double seconds() {
    return seconds;
  }

  /**
   * Measures how fast final tokens came, over the whole time.
   *
   * @return tokens a second; 0 where there are none
   */
  public double tokensPerSecond() {
    return seconds > 0 ? committedTokens / seconds : 0;
  }

  @Override
  public String toString() {
    return "GenerationStatistics(" + finishReason + ", " + committedTokens + " tokens in " + denoisingSteps
        + " denoising steps, " + forwards + " forwards, " + projections + " projections, " + prefills
        + " prefills, " + canvases + " canvases; " + seconds + " s)";
  }
}
