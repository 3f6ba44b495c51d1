package io.edgekit;

/** Bytes that a source is to be asked for, see {@link BundleFetch#next}. */
public final class FetchRequest {
  /** The library has a request used by one thread at a time. */
  final Object use = new Object();

  final BundleFetch owner;
  final long id;
  private final String name;
  private final int source;
  private final long offset;
  private final long bytes;
  private final long size;
  private final int waitMilliseconds;
  private final int patienceMilliseconds;
  private final int leastBytesPerSecond;

  /** The numbers as Native.fetchNext gives them. */
  FetchRequest(BundleFetch owner, String name, long[] numbers) {
    this.owner = owner;
    this.name = name;
    source = (int) numbers[1];
    id = numbers[2];
    offset = numbers[3];
    bytes = numbers[4];
    size = numbers[5];
    waitMilliseconds = (int) numbers[6];
    patienceMilliseconds = (int) numbers[7];
    leastBytesPerSecond = (int) numbers[8];
  }

  /**
   * Says which source to ask.
   *
   * @return its place among those of {@link FetchOptions}
   */
  public int source() {
    return source;
  }

  /**
   * Names the file.
   *
   * @return with forward slashes, below the source's address
   */
  public String name() {
    return name;
  }

  /**
   * Says where the bytes begin.
   *
   * @return a place in the file
   */
  public long offset() {
    return offset;
  }

  /**
   * Says how many bytes.
   *
   * @return 0: all of the file, without a Range header
   */
  public long bytes() {
    return bytes;
  }

  /**
   * Says how large the file is.
   *
   * @return bytes; 0: not known
   */
  public long size() {
    return size;
  }

  /**
   * Says how long to wait before it is sent, as the source has failed.
   *
   * @return milliseconds
   */
  public int waitMilliseconds() {
    return waitMilliseconds;
  }

  /**
   * Says how long to wait for its answer to begin, and how often to look whether enough has come of it.
   *
   * @return milliseconds
   */
  public int patienceMilliseconds() {
    return patienceMilliseconds;
  }

  /**
   * Says how much has to come of its answer in each such time; of one that gives less no more is awaited.
   *
   * @return bytes a second
   */
  public int leastBytesPerSecond() {
    return leastBytesPerSecond;
  }

  /**
   * Writes the Range header that asks for it.
   *
   * @return such as "bytes=0-99"; null: none is to be sent
   */
  public String range() {
    return bytes == 0 ? null : "bytes=" + offset + "-" + (offset + bytes - 1);
  }
}
