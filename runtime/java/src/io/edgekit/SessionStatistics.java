package io.edgekit;

/** Reading and computing of a session so far. */
public final class SessionStatistics {
  private final long pinnedBytes;
  private final long ringBytes;
  private final long streamedBytesPerStep;
  private final long bytesRead;
  private final double ioSeconds;
  private final double ioWaitSeconds;
  private final double passSeconds;

  SessionStatistics(
      long pinnedBytes,
      long ringBytes,
      long streamedBytesPerStep,
      long bytesRead,
      double ioSeconds,
      double ioWaitSeconds,
      double passSeconds) {
    this.pinnedBytes = pinnedBytes;
    this.ringBytes = ringBytes;
    this.streamedBytesPerStep = streamedBytesPerStep;
    this.bytesRead = bytesRead;
    this.ioSeconds = ioSeconds;
    this.ioWaitSeconds = ioWaitSeconds;
    this.passSeconds = passSeconds;
  }

  /**
   * Measures the weights that stay in memory.
   *
   * @return bytes
   */
  public long pinnedBytes() {
    return pinnedBytes;
  }

  /**
   * Measures the memory for reading ahead.
   *
   * @return bytes
   */
  public long ringBytes() {
    return ringBytes;
  }

  /**
   * Measures the weights that a step reads at most.
   *
   * @return bytes
   */
  public long streamedBytesPerStep() {
    return streamedBytesPerStep;
  }

  /**
   * Measures what was read so far.
   *
   * @return bytes
   */
  public long bytesRead() {
    return bytesRead;
  }

  /**
   * Measures the time in which at least one read was under way.
   *
   * @return seconds
   */
  public double ioSeconds() {
    return ioSeconds;
  }

  /**
   * Measures the time in which computation waited for a read.
   *
   * @return seconds
   */
  public double ioWaitSeconds() {
    return ioWaitSeconds;
  }

  /**
   * Measures the time that passes took.
   *
   * @return seconds
   */
  public double passSeconds() {
    return passSeconds;
  }

  @Override
  public String toString() {
    return "SessionStatistics(" + pinnedBytes + " bytes stay, " + streamedBytesPerStep + " stream in a step, " + bytesRead
        + " read; passes " + passSeconds + " s, waiting " + ioWaitSeconds + " s)";
  }
}
