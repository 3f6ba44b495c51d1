package io.edgekit;

/**
 * Ends what was given it, from any thread: a generation at its next step boundary, or before its first pass; a fetch within
 * seconds, for another one to go on.
 */
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
