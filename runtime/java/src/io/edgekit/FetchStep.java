package io.edgekit;

/** What comes next of a bundle that arrives, see {@link BundleFetch#next}. */
public final class FetchStep {
  /** What to do. */
  public enum Kind {
    /** Send the request. */
    ASK,
    /** Ask for the next step: something that was here has been compared. */
    WORKING,
    /** Ask for the next step once an open request has given something or is over. */
    WAIT,
    /** All is here: {@link BundleFetch#finish}. */
    READY
  }

  private final Kind kind;
  private final FetchRequest request;

  FetchStep(Kind kind, FetchRequest request) {
    this.kind = kind;
    this.request = request;
  }

  /**
   * Says what to do.
   *
   * @return the kind of step
   */
  public Kind kind() {
    return kind;
  }

  /**
   * Gives the request of {@link Kind#ASK}.
   *
   * @return null for other kinds
   */
  public FetchRequest request() {
    return request;
  }
}
