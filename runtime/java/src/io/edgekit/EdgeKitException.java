package io.edgekit;

import java.nio.charset.StandardCharsets;

/** What the native library could not do. Its message is one line for the user: what was found, where, and what to do. */
public final class EdgeKitException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** What can go wrong, by what a caller can do about it. */
  public enum Status {
    /** An option, a prompt or a length that the model does not take. */
    INVALID_ARGUMENT,
    /**
     * Prompt and answer are longer than the model takes, or than its programs were exported for: ask for fewer tokens
     * ({@link GenerationSettings#maxNewTokens}), shorten the prompt, or export with longer {@code --lengths}.
     */
    PROMPT_TOO_LONG,
    /** The system gave no memory. */
    OUT_OF_MEMORY,
    /** A file cannot be opened. */
    OPEN_FAILED,
    /** The system reported an error while reading. */
    READ_FAILED,
    /** A file is shorter than it says. */
    TRUNCATED_FILE,
    /** A file was replaced or written while it was open. */
    FILE_CHANGED,
    /** Bytes of a file are not those that were written. */
    CHECKSUM_MISMATCH,
    /** A file breaks the rules of its format. */
    MALFORMED_FILE,
    /** A file is of a version that this library does not read. */
    UNSUPPORTED_VERSION,
    /** The bundle is for another engine, or asks for something that this library does not do. */
    UNSUPPORTED_BUNDLE,
    /** The memory budget is too small; {@link #sufficientBytes} would have been enough. */
    BUDGET_EXCEEDED,
    /** Scores are NaN or infinite: the weights are broken. */
    NOT_FINITE,
    /** A call that must come after another one, or that the bundle has nothing for. */
    INVALID_STATE,
    /** An engine outside the library failed. */
    ENGINE_FAILED,
    /** A file cannot be written. */
    WRITE_FAILED,
    /** A source of a bundle did not give what it was asked for: no server can be reached, or none has it. */
    FETCH_FAILED,
    /** An error in the library: please report it. */
    INTERNAL
  }

  /** By the numbers of edgekit.h; what it has beyond them is INTERNAL. */
  private static final Status[] STATUSES = {
    Status.INTERNAL, Status.INVALID_ARGUMENT, Status.INTERNAL, Status.OUT_OF_MEMORY, Status.OPEN_FAILED,
    Status.READ_FAILED, Status.TRUNCATED_FILE, Status.FILE_CHANGED, Status.CHECKSUM_MISMATCH, Status.MALFORMED_FILE,
    Status.UNSUPPORTED_VERSION, Status.UNSUPPORTED_BUNDLE, Status.BUDGET_EXCEEDED, Status.NOT_FINITE, Status.INTERNAL,
    Status.INVALID_STATE, Status.INTERNAL, Status.INVALID_ARGUMENT, Status.PROMPT_TOO_LONG, Status.ENGINE_FAILED,
    Status.WRITE_FAILED, Status.FETCH_FAILED,
  };

  private final Status status;
  private final long sufficientBytes;

  /** Made by the native code. */
  EdgeKitException(byte[] message, int status, long sufficientBytes) {
    super(new String(message, StandardCharsets.UTF_8));
    this.status = status >= 0 && status < STATUSES.length ? STATUSES[status] : Status.INTERNAL;
    this.sufficientBytes = sufficientBytes;
  }

  /** As another thread has thrown it, with the frames of this one: for whoever asked for that thread's work. */
  EdgeKitException(EdgeKitException cause) {
    super(cause.getMessage(), cause);
    status = cause.status;
    sufficientBytes = cause.sufficientBytes;
  }

  /**
   * Says what kind of failure it is.
   *
   * @return the kind
   */
  public Status status() {
    return status;
  }

  /**
   * Says what would have been enough after {@link Status#BUDGET_EXCEEDED}.
   *
   * @return a memory budget in bytes; 0 where it is not known
   */
  public long sufficientBytes() {
    return sufficientBytes;
  }
}
