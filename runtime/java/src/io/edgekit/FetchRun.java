package io.edgekit;

import io.edgekit.EdgeKitException.Status;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Threads that do what a fetch asks for until it is ready. Once it is over its requests are given back, and they use nothing of
 * the library: one that still waits for a server ends by itself, and keeps nothing from being closed.
 */
final class FetchRun {
  /** Between two looks at how far it is. */
  private static final long LOOK_MILLISECONDS = 100;
  /** That threads are given to end, once it is over. */
  private static final long END_MILLISECONDS = 500;

  private final BundleFetch fetch;
  private final String[] names;
  private final HttpSource[] sources;
  private final int connections;
  private final Consumer<String> trouble;
  // Below what `this` guards.
  private final Map<FetchRequest, HttpCall> open = new HashMap<>();
  private int working;
  /** Of `working`, by source: those that were left alone with a request of it. */
  private final int[] alone;
  private long changes;
  private boolean ready;
  private boolean stopped;
  private Throwable failure;

  /** Throws IllegalArgumentException for a source that is no address. */
  FetchRun(BundleFetch fetch, FetchOptions options) {
    this.fetch = fetch;
    names = options.sources().toArray(new String[0]);
    sources = options.sources().stream().map(HttpSource::new).toArray(HttpSource[]::new);
    alone = new int[sources.length];
    connections = options.connections();
    trouble = options.trouble();
  }

  boolean run(Cancellation cancellation, Consumer<FetchProgress> listener) {
    try {
      for (int number = 0; number < connections; ++number) start();
      while (goesOn(cancellation)) {
        FetchProgress progress = progress();
        if (progress != null) listener.accept(progress);
        leaveLate();
      }
    } finally {
      stop(null);
      awaitEnd();
      giveBack();
    }
    synchronized (this) {
      if (failure != null) throw failed(failure);
      if (!ready) return false;
    }
    FetchProgress last = progress();
    if (last == null) return false;
    listener.accept(last);
    return true;
  }

  /** What this thread throws where another one has failed: with frames of this one, which say who asked for it. */
  private static RuntimeException failed(Throwable failure) {
    if (failure instanceof EdgeKitException) return new EdgeKitException((EdgeKitException) failure);
    if (failure.getClass() == IllegalStateException.class) {
      return new IllegalStateException(failure.getMessage(), failure);
    }
    // Of the application's listener, or an error of Java's: none can be made of its class, so that it has both stacks.
    List<StackTraceElement> frames = new ArrayList<>(Arrays.asList(failure.getStackTrace()));
    StackTraceElement[] own = new Throwable().getStackTrace();
    frames.addAll(Arrays.asList(own).subList(1, own.length));
    failure.setStackTrace(frames.toArray(new StackTraceElement[0]));
    if (failure instanceof Error) throw (Error) failure;
    return (RuntimeException) failure;
  }

  /** Ends it; null: it has not failed. */
  synchronized void stop(Throwable error) {
    if (!stopped && !ready) failure = error;
    stopped = true;
    notifyAll();
  }

  private synchronized boolean isStopped() {
    return stopped;
  }

  private void start() {
    Thread thread = new Thread(this::work, "edgekit-fetch");
    thread.setDaemon(true);
    synchronized (this) {
      ++working;
    }
    try {
      thread.start();
    } catch (Throwable error) {
      left();
      throw error;
    }
  }

  /** Waits a little; false once it is over. */
  private synchronized boolean goesOn(Cancellation cancellation) {
    if (ready || stopped) return false;
    try {
      wait(LOOK_MILLISECONDS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return false;
    }
    return !ready && !stopped && (cancellation == null || !cancellation.isCancelled());
  }

  /** null where it was closed meanwhile. */
  private FetchProgress progress() {
    try {
      return fetch.progress();
    } catch (IllegalStateException closed) {
      if (isStopped()) return null;
      throw closed;
    }
  }

  /** An interrupt stays set. */
  private synchronized void awaitEnd() {
    boolean interrupted = false;
    long end = System.nanoTime() + END_MILLISECONDS * 1_000_000;
    for (long left = END_MILLISECONDS; working > Arrays.stream(alone).sum() && left > 0; left = (end - System.nanoTime()) / 1_000_000) {
      try {
        wait(left);
      } catch (InterruptedException error) {
        interrupted = true;
      }
    }
    if (interrupted) Thread.currentThread().interrupt();
  }

  /**
   * Leaves threads alone that a server lets wait for too long: their requests are over, and others take their places. Java may read
   * on for ever, whatever is done to the connection.
   */
  private void leaveLate() {
    Map<FetchRequest, String> late = new HashMap<>();
    synchronized (this) {
      open.forEach((request, call) -> {
        String why = call.endIfLate();
        if (why != null) late.put(request, why);
      });
      for (FetchRequest request : late.keySet()) {
        open.remove(request);
        ++alone[request.source()];
      }
    }
    try {
      for (Map.Entry<FetchRequest, String> each : late.entrySet()) {
        start();
        over(each.getKey(), each.getValue());
      }
    } catch (Throwable error) {  // where the fetch was closed, it was stopped before
      stop(error);
    }
  }

  /** `why`: what went wrong; null: nothing. */
  private void over(FetchRequest request, String why) {
    if (why != null) trouble.accept(names[request.source()] + ": " + why);
    fetch.end(request, why);
  }

  /** Of threads that still wait for a server, so that another run may have them. */
  private void giveBack() {
    Map<FetchRequest, HttpCall> left;
    synchronized (this) {
      left = new HashMap<>(open);
      open.clear();
    }
    for (HttpCall call : left.values()) call.end();
    try {
      for (FetchRequest request : left.keySet()) fetch.giveBack(request);
    } catch (IllegalStateException closed) {
      // Nobody asks for them any more.
    }
  }

  private synchronized void left() {
    --working;
    notifyAll();
  }

  private synchronized long changes() {
    return changes;
  }

  private synchronized void tellChange() {
    ++changes;
    notifyAll();
  }

  private synchronized void tellReady() {
    ready = true;
    notifyAll();
  }

  /** Waits until something has changed since `seen`. */
  private synchronized void awaitChange(long seen) throws InterruptedException {
    if (changes == seen && !ready && !stopped) wait(LOOK_MILLISECONDS);
  }

  private synchronized void pause(long milliseconds) throws InterruptedException {
    long end = System.nanoTime() + milliseconds * 1_000_000;
    for (long left = milliseconds; !stopped && left > 0; left = (end - System.nanoTime()) / 1_000_000) wait(left);
  }

  private void work() {
    try {
      while (!isStopped()) {
        long seen = changes();
        FetchStep step = fetch.next();
        switch (step.kind()) {
          case ASK:
            if (!send(step.request())) return;
            tellChange();
            break;
          case WAIT:
            awaitChange(seen);
            break;
          case READY:
            tellReady();
            return;
          default:
        }
      }
    } catch (Throwable error) {  // where the fetch was closed, it was stopped before
      stop(error instanceof InterruptedException ? new IllegalStateException("a thread of the fetch was interrupted") : error);
    } finally {
      left();
    }
  }

  /** False where the request was taken from this thread. */
  private boolean send(FetchRequest request) throws InterruptedException {
    int source = request.source();
    Answer answer = new Answer(request);
    HttpCall call = sources[source].call(request, answer);
    synchronized (this) {
      open.put(request, call);
    }
    String why = null;
    try {
      pause(request.waitMilliseconds());
      if (leavesWaiting(source)) throw new IOException("gave nothing in time, and its answer has no end");
      if (!isStopped()) call.run();
      why = answer.lack();
    } catch (IOException error) {
      why = error.getMessage();
    } catch (RuntimeException | Error error) {
      if (!call.isLate()) throw error;  // else of Java's, where what it reads was ended below it
    }
    boolean ends;
    synchronized (this) {
      if (open.remove(request) == null) {
        if (call.isLate()) --alone[source];
        return false;
      }
      ends = !stopped;
    }
    if (ends) over(request, why);
    else fetch.giveBack(request);
    return true;
  }

  /** Whether a thread that was left alone with it still is: what Java reads there costs memory, and no other is given to it. */
  private synchronized boolean leavesWaiting(int source) {
    return alone[source] > 0;
  }

  /** Gives what comes to the fetch. */
  private final class Answer implements HttpCall.Taker {
    private final FetchRequest request;
    private boolean over;  // for the fetch, which needs no more of it
    private long gave;
    private long promised;  // 0: nobody knows how much

    Answer(FetchRequest request) {
      this.request = request;
      promised = request.bytes();
    }

    /** What it has given too little of; null: nothing, or it is not at its end. */
    String lack() {
      return over || gave >= promised ? null : "gave " + gave + " of " + promised + " bytes of " + request.name();
    }

    @Override
    public boolean head(int status, String contentRange) {
      if (isStopped()) return false;
      try {
        if (status == 200) promised = request.size();  // the file from its beginning, whatever was asked for
        fetch.answer(request, status, contentRange);
        return true;
      } catch (EdgeKitException error) {
        over = true;
        if (error.status() != Status.FETCH_FAILED) throw error;
        trouble.accept(error.getMessage());
        return false;
      }
    }

    @Override
    public boolean part(byte[] data, int count) {
      if (isStopped()) return false;
      gave += count;
      over = !fetch.write(request, data, 0, count);
      return !over;
    }
  }
}
