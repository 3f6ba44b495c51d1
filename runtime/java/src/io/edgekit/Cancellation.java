package io.edgekit;

/** Ends generations that were given it, from any thread: each at its next step boundary, or before its first pass. */
public final class Cancellation {
  private volatile boolean cancelled;

  /** Makes one that has not happened. */
  public Cancellation() {}

  /** Ends them. */
  public void cancel() {
    cancelled = true;
  }

  /**
   * Says whether {@link #cancel} was called.
   *
   * @return whether it was
   */
  public boolean isCancelled() {
    return cancelled;
  }
}
