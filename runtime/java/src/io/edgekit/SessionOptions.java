package io.edgekit;

/** How a session holds a model. The same tokens come out whatever is set here. */
public final class SessionOptions {
  private int threads;
  private long memoryBytes;
  private long residentBytes = -1;
  private long positions = 2048;
  private long canvas = 256;
  private long adapter;

  /** No limit: all weights stay in memory, and all cores compute. */
  public SessionOptions() {}

  /**
   * Sets how many threads compute, the caller's included.
   *
   * @param threads 0: one per core that the process may use
   * @return this
   */
  public SessionOptions threads(int threads) {
    if (threads < 0) throw new IllegalArgumentException("threads is " + threads + "; it is 0 (one per core) or more");
    this.threads = threads;
    return this;
  }

  /**
   * Bounds the physical memory of the whole process; weights that do not fit stream from the bundle.
   *
   * @param bytes 0: no limit
   * @return this
   */
  public SessionOptions memoryBytes(long bytes) {
    if (bytes < 0) throw new IllegalArgumentException("memoryBytes is " + bytes + "; it is 0 (no limit) or more");
    memoryBytes = bytes;
    return this;
  }

  /**
   * Bounds the weights that stay in memory further.
   *
   * @param bytes 0: every one streams
   * @return this
   */
  public SessionOptions residentBytes(long bytes) {
    if (bytes < 0) throw new IllegalArgumentException("residentBytes is " + bytes + "; it is 0 (none) or more");
    residentBytes = bytes;
    return this;
  }

  /**
   * Sets the longest encoded prefix that {@link #memoryBytes} keeps memory free for; for a longer one weights give theirs
   * up. It matters where {@link SessionInfo#causalPrefix}: prompt and answer together, the answer rounded up to whole
   * canvases, less one canvas.
   *
   * @param tokens 2048 where it is not set
   * @return this
   */
  public SessionOptions positions(long tokens) {
    if (tokens < 0) throw new IllegalArgumentException("positions is " + tokens + "; it is 0 or more");
    positions = tokens;
    return this;
  }

  /**
   * Sets the longest pass that {@link #memoryBytes} keeps memory free for; for a longer one weights give theirs up. At
   * least {@link SessionInfo#canvasLength}; where there is no causal prefix, prompt and answer together, the answer
   * rounded up to whole blocks.
   *
   * @param tokens 256 where it is not set
   * @return this
   */
  public SessionOptions canvas(long tokens) {
    if (tokens < 1) throw new IllegalArgumentException("canvas is " + tokens + "; it is 1 or more");
    canvas = tokens;
    return this;
  }

  /**
   * Has all be computed with an adapter beside the bundle's weights.
   *
   * @param number from 1; 0: none
   * @return this
   */
  public SessionOptions adapter(long number) {
    if (number < 0) throw new IllegalArgumentException("adapter is " + number + "; it is 0 or more");
    adapter = number;
    return this;
  }

  long[] members() {
    return new long[] {threads, memoryBytes, residentBytes, positions, canvas, adapter};
  }
}
