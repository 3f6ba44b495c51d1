package io.edgekit;

/** How far a bundle has arrived. */
public final class FetchProgress {
  private final boolean current;
  private final long totalBytes;
  private final long wholeBytes;
  private final long arrivedBytes;
  private final long fetchedBytes;
  private final long copiedBytes;
  private final long foundBytes;
  private final long damaged;
  private final long requests;
  private final boolean keptFormat;
  private final String chosen;

  /** The numbers as Native.fetchInfo gives them. */
  FetchProgress(long[] numbers, String chosen) {
    current = numbers[0] != 0;
    totalBytes = numbers[1];
    wholeBytes = numbers[2];
    arrivedBytes = numbers[3];
    fetchedBytes = numbers[4];
    copiedBytes = numbers[5];
    foundBytes = numbers[6];
    damaged = numbers[7];
    requests = numbers[8];
    keptFormat = numbers[9] != 0;
    this.chosen = chosen;
  }

  /**
   * Says whether the folder had this bundle already.
   *
   * @return whether it had
   */
  public boolean current() {
    return current;
  }

  /**
   * Measures the bundle.
   *
   * @return bytes; 0 until the manifest has come
   */
  public long totalBytes() {
    return totalBytes;
  }

  /**
   * Measures what of the bundle is here and has been compared.
   *
   * @return bytes
   */
  public long wholeBytes() {
    return wholeBytes;
  }

  /**
   * Measures what else is here, and waits for the rest of its run.
   *
   * @return bytes
   */
  public long arrivedBytes() {
    return arrivedBytes;
  }

  /**
   * Measures what sources have given since it was opened, in vain included.
   *
   * @return bytes
   */
  public long fetchedBytes() {
    return fetchedBytes;
  }

  /**
   * Measures what was copied from the bundle that was there.
   *
   * @return bytes
   */
  public long copiedBytes() {
    return copiedBytes;
  }

  /**
   * Measures what an earlier fetch had left.
   *
   * @return bytes
   */
  public long foundBytes() {
    return foundBytes;
  }

  /**
   * Counts runs and files that came with other bytes.
   *
   * @return how many
   */
  public long damaged() {
    return damaged;
  }

  /**
   * Counts requests that are open.
   *
   * @return how many
   */
  public long requests() {
    return requests;
  }

  /**
   * Names which of several bundles is taken.
   *
   * @return its path below the address; null before that is known, and where a bundle is alone
   */
  public String chosen() {
    return chosen;
  }

  /**
   * Says whether it was chosen by the format of the bundle in the folder, see {@link FetchOptions#keepFormat}.
   *
   * @return whether it was
   */
  public boolean keptFormat() {
    return keptFormat;
  }

  @Override
  public String toString() {
    return (wholeBytes + arrivedBytes) + " of " + totalBytes + " bytes";
  }
}
