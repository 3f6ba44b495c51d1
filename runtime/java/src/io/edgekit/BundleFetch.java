package io.edgekit;

import java.io.File;
import java.util.function.Consumer;
import java.util.function.LongFunction;

/**
 * A bundle on its way from servers to a folder. Every run of the weights and every file is compared with its digest when its
 * last byte is here, and comes again where it is damaged. A bundle that is in the folder stays until {@link #finish}; what has
 * not changed is copied from it. What has arrived lies in FOLDER.arriving, and a later fetch goes on with it.
 *
 * <pre>{@code
 * try (BundleFetch fetch = BundleFetch.open("llada", new FetchOptions("https://host/llada"))) {
 *   if (fetch.run(cancellation, progress -> show(progress))) fetch.finish();
 * }
 * }</pre>
 *
 * <p>{@link #pause} ends {@link #run}, and another call of that goes on.
 *
 * <p>An application with a transport of its own sends the requests of {@link #next} in place of {@link #run}, and gives what
 * comes to {@link #answer}, {@link #write}, {@link #end} and {@link #giveBack}. Any number of requests may be open, in different
 * threads. A fetch that failed throws the same from then on: close it, and open it anew to go on.
 */
public final class BundleFetch implements AutoCloseable {
  private static final int STEP_NUMBERS = 9, INFO_NUMBERS = 10;
  private static final FetchStep.Kind[] KINDS = FetchStep.Kind.values();  // by the numbers of edgekit.h

  private final Handle handle;
  private final FetchOptions options;
  private FetchRun run;
  private boolean closing;

  private BundleFetch(Handle handle, FetchOptions options) {
    this.handle = handle;
    this.options = options;
  }

  /**
   * Begins, or goes on with what an earlier fetch has left.
   *
   * @param folder of the bundle; it need not exist. Nothing else may fetch into it
   * @param options where it comes from
   * @return the fetch, to be closed
   * @throws EdgeKitException for options that are of no use, a folder that cannot be written, and INVALID_STATE where
   *     another fetch is at it
   */
  public static BundleFetch open(String folder, FetchOptions options) {
    if (options == null) throw new NullPointerException("options is null");
    return new BundleFetch(new Handle("fetch", options.open(folder), Native::fetchClose), options);
  }

  /**
   * Begins, or goes on with what an earlier fetch has left.
   *
   * @param folder as above
   * @param options as above
   * @return as above
   * @throws EdgeKitException as above
   */
  public static BundleFetch open(File folder, FetchOptions options) {
    return open(folder.getPath(), options);
  }

  /**
   * Brings a bundle to its folder, all of it: {@link #open}, {@link #run}, {@link #finish}. No session of a bundle that is in the
   * folder may be open.
   *
   * @param folder of the bundle
   * @param options where it comes from
   * @param cancellation ends it; null: only an interrupt of the thread does
   * @param listener is told how far it is
   * @return whether the bundle is in its place; false where it was ended, and may be gone on with
   * @throws EdgeKitException as {@link #open}, {@link #run} and {@link #finish}
   */
  public static boolean fetch(
      String folder, FetchOptions options, Cancellation cancellation, Consumer<FetchProgress> listener) {
    try (BundleFetch fetch = open(folder, options)) {
      if (!fetch.run(cancellation, listener)) return false;
      fetch.finish();
      return true;
    }
  }

  /**
   * Has everything come over HTTP, by several connections, and blocks until then. Redirects are followed, from https to https
   * alone. Where it was ended before all was here, another call goes on. An interrupt of this thread ends it like a cancellation,
   * and stays set; connections from which nothing comes then end by themselves, within half a minute.
   *
   * @param cancellation ends it; null: only an interrupt does, {@link #pause} or {@link #close}
   * @param listener is told how far it is, ten times a second, on this thread; what it throws ends the fetch and is thrown here
   * @return whether all is here, for {@link #finish}; false where it was ended
   * @throws EdgeKitException FETCH_FAILED where no source gives what is needed, CHECKSUM_MISMATCH and MALFORMED_FILE where they
   *     give other bytes again and again, WRITE_FAILED (also for a disk without the room), UNSUPPORTED_BUNDLE,
   *     UNSUPPORTED_VERSION, INVALID_ARGUMENT for a folder that has files which are no bundle's, OPEN_FAILED where a folder
   *     or another thing lies in FOLDER.arriving in the place of a file, READ_FAILED
   * @throws IllegalArgumentException for a source that is no address of a folder
   * @throws IllegalStateException where it runs already, or is closed
   */
  public boolean run(Cancellation cancellation, Consumer<FetchProgress> listener) {
    if (listener == null) throw new NullPointerException("listener is null");
    FetchRun own = new FetchRun(this, options);
    synchronized (this) {
      if (closing) throw new IllegalStateException("the fetch is closed");
      if (run != null) throw new IllegalStateException("the fetch runs already");
      run = own;
    }
    try {
      return own.run(cancellation, listener);
    } finally {
      synchronized (this) {
        run = null;
      }
    }
  }

  /** Ends {@link #run}, which returns false soon; another call of it goes on. From any thread; where nothing runs, nothing is done. */
  public void pause() {
    FetchRun current;
    synchronized (this) {
      current = run;
    }
    if (current != null) current.stop(null);
  }

  /**
   * Says what comes next. Compares what is here already, 32 MB or a run at a time.
   *
   * @return the step, with its request
   * @throws EdgeKitException as {@link #run}
   */
  public FetchStep next() {
    long[] numbers = new long[STEP_NUMBERS];
    byte[] name = handle.use(fetch -> Native.fetchNext(fetch, numbers));
    FetchStep.Kind kind = KINDS[(int) numbers[0]];
    return new FetchStep(kind, name == null ? null : new FetchRequest(this, Utf8.decode(name), numbers));
  }

  /**
   * Takes what an HTTP server answered, before its bytes. Transports of other kinds leave it out.
   *
   * @param request of this fetch
   * @param status of HTTP, redirects followed
   * @param contentRange the header Content-Range; null where there is none
   * @throws EdgeKitException FETCH_FAILED: the answer is of no use, and the request is over
   */
  public void answer(FetchRequest request, int status, String contentRange) {
    byte[] range = contentRange == null ? null : Utf8.said(contentRange);
    use(
        request,
        fetch -> {
          Native.fetchAnswer(fetch, request.id, status, range);
          return null;
        });
  }

  /**
   * Takes the next bytes of a request.
   *
   * @param request of this fetch
   * @param data has them
   * @param offset where they begin in it
   * @param count how many
   * @return whether it goes on; false: no more of it are needed, and it is over
   * @throws EdgeKitException as {@link #run}: the fetch has failed
   */
  public boolean write(FetchRequest request, byte[] data, int offset, int count) {
    if (offset < 0 || count < 0 || offset > data.length - count) {
      throw new IndexOutOfBoundsException(count + " bytes from " + offset + " of an array of " + data.length);
    }
    return use(request, fetch -> Native.fetchWrite(fetch, request.id, data, offset, count));
  }

  /**
   * Says that a request has no more bytes. What it lacks is asked for again. One that is over is left alone.
   *
   * @param request of this fetch
   * @param why null where its answer has ended, else what went wrong, for people
   * @throws EdgeKitException as {@link #run}: the fetch has failed
   */
  public void end(FetchRequest request, String why) {
    byte[] text = why == null ? null : Utf8.said(why);
    use(
        request,
        fetch -> {
          Native.fetchEnd(fetch, request.id, text);
          return null;
        });
  }

  /**
   * Gives a request back that was not sent, or not to its end, for a reason that is not its source's, such as a pause. What it lacks
   * is asked for again. One that is over is left alone.
   *
   * @param request of this fetch
   */
  public void giveBack(FetchRequest request) {
    use(
        request,
        fetch -> {
          Native.fetchReturn(fetch, request.id);
          return null;
        });
  }

  /**
   * Says how far it is.
   *
   * @return as of now
   */
  public FetchProgress progress() {
    long[] numbers = new long[INFO_NUMBERS];
    byte[] chosen = handle.use(fetch -> Native.fetchInfo(fetch, numbers))[1];
    return new FetchProgress(numbers, chosen == null ? null : Utf8.decode(chosen));
  }

  /**
   * Names the folder with what has arrived.
   *
   * @return its path
   */
  public String arriving() {
    return Utf8.decode(handle.use(fetch -> Native.fetchInfo(fetch, new long[INFO_NUMBERS]))[0]);
  }

  /**
   * Puts the bundle in its place, and removes the one that was there. Sessions of that one must be closed before: what they read
   * after that has changed.
   *
   * @throws EdgeKitException INVALID_STATE before all is here, WRITE_FAILED, OPEN_FAILED as {@link #run}
   */
  public void finish() {
    handle.use(
        fetch -> {
          Native.fetchFinish(fetch);
          return null;
        });
  }

  /** Removes what has arrived, and closes it. */
  public void discard() {
    stop();
    handle.close(Native::fetchDiscard);
  }

  /** Ends {@link #run}, and gives its memory back; what has arrived stays. Closing it again does nothing. */
  @Override
  public void close() {
    stop();
    handle.close();
  }

  private void stop() {
    synchronized (this) {
      closing = true;
    }
    pause();
  }

  private <T> T use(FetchRequest request, LongFunction<T> body) {
    if (request.owner != this) throw new IllegalArgumentException("the request is one of another fetch");
    synchronized (request.use) {
      return handle.use(body);
    }
  }
}
