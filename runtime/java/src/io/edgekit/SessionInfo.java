package io.edgekit;

/** What a session says about its model. */
public final class SessionInfo {
  private final int threads;
  private final int vocabulary;
  private final int prefixLength;
  private final int canvasLength;
  private final long maxPositions;
  private final boolean causalPrefix;

  SessionInfo(
      int threads, int vocabulary, int prefixLength, int canvasLength, long maxPositions, boolean causalPrefix) {
    this.threads = threads;
    this.vocabulary = vocabulary;
    this.prefixLength = prefixLength;
    this.canvasLength = canvasLength;
    this.maxPositions = maxPositions;
    this.causalPrefix = causalPrefix;
  }

  /**
   * Counts the threads that compute.
   *
   * @return the caller's among them
   */
  public int threads() {
    return threads;
  }

  /**
   * Counts the model's tokens.
   *
   * @return ids are less than this
   */
  public int vocabulary() {
    return vocabulary;
  }

  /**
   * Counts the positions that are encoded now.
   *
   * @return 0 where the session holds no text
   */
  public int prefixLength() {
    return prefixLength;
  }

  /**
   * Says how long the model's canvas is.
   *
   * @return tokens; 0: it takes canvases of any length
   */
  public int canvasLength() {
    return canvasLength;
  }

  /**
   * Says how much text the model was made for.
   *
   * @return positions of prompt and answer together; 0: not known
   */
  public long maxPositions() {
    return maxPositions;
  }

  /**
   * Says whether committed text is encoded causally and kept; otherwise all of it stands on the canvas.
   *
   * @return whether it is
   */
  public boolean causalPrefix() {
    return causalPrefix;
  }

  @Override
  public String toString() {
    return "SessionInfo(" + threads + " threads, vocabulary " + vocabulary + ", prefix " + prefixLength + ", canvas "
        + canvasLength + ", at most " + maxPositions + " positions)";
  }
}
