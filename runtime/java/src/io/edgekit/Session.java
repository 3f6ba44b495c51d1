package io.edgekit;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.LongFunction;

/**
 * A model being run.
 *
 * <pre>{@code
 * try (Session session = Session.open("llada", new SessionOptions().memoryBytes(1_500_000_000L))) {
 *   session.answer("Why is the sky blue?", part -> System.out.print(part));
 * }
 * }</pre>
 *
 * <p>It holds memory that Java's collector knows nothing of, until it is closed. Its methods block: on Android call them from
 * a thread for work. One call computes at a time, others wait for it, a generation no longer than it is cancelled;
 * {@link #limitResident}, {@link #onTrimMemory} and {@link #close} need not wait. What a listener is told comes on the
 * thread that generates, between two passes; there it may use the tokenizer and those three, nothing else of the session.
 */
public final class Session implements AutoCloseable {
  /** {@code android.content.ComponentCallbacks2.TRIM_MEMORY_RUNNING_LOW} and {@code TRIM_MEMORY_RUNNING_CRITICAL}. */
  private static final int RUNNING_LOW = 10, RUNNING_CRITICAL = 15;

  /** {@code TRIM_MEMORY_BACKGROUND}; what is above it is worse. */
  private static final int BACKGROUND = 40;

  /** How long a generation that waits for another one does not look whether it is to end. */
  private static final long LOOK_MILLISECONDS = 20;

  private final ReentrantLock calls = new ReentrantLock();
  private final Object pointerLock = new Object();
  private final Tokenizer tokenizer;
  private final EdgeKitException tokenizerFailure;
  private long pointer;
  private long pinnedBytes;
  private volatile boolean closing;
  private volatile boolean generating;

  private Session(long pointer, Tokenizer tokenizer, EdgeKitException tokenizerFailure) {
    this.pointer = pointer;
    this.tokenizer = tokenizer;
    this.tokenizerFailure = tokenizerFailure;
    pinnedBytes = Native.sessionStatistics(pointer).pinnedBytes();
  }

  /**
   * Opens a bundle, with all weights in memory.
   *
   * @param bundle its folder, see {@link #open(String, SessionOptions)}
   * @return the session, to be closed
   * @throws EdgeKitException as {@link #open(String, SessionOptions)}
   */
  public static Session open(String bundle) {
    return open(bundle, new SessionOptions());
  }

  /**
   * Opens a bundle: its tokenizer, and the weights that stay in memory.
   *
   * @param bundle its folder, or one with several bundles of a model: the first that runs here is opened
   * @param options how it holds the model
   * @return the session, to be closed
   * @throws EdgeKitException for a bundle that is damaged, or for another engine or version than this, and
   *     BUDGET_EXCEEDED
   */
  public static Session open(String bundle, SessionOptions options) {
    Tokenizer tokenizer = null;
    EdgeKitException failure = null;
    try {  // before the session, whose memory budget counts what the process holds
      tokenizer = Tokenizer.open(bundle, true);
    } catch (EdgeKitException error) {
      failure = error;
    }
    try {
      Session session = new Session(
          Native.sessionOpen(Utf8.path(bundle), options.members()), tokenizer, failure);
      tokenizer = null;
      return session;
    } finally {
      if (tokenizer != null) tokenizer.free();
    }
  }

  /**
   * Gives the bundle's tokenizer, which ends with the session.
   *
   * @return the tokenizer
   * @throws EdgeKitException where the bundle has none, or one that the library does not read: then prompts and answers
   *     are token ids
   */
  public Tokenizer tokenizer() {
    checkOpen();
    if (tokenizer == null) throw tokenizerFailure;
    return tokenizer;
  }

  /**
   * Answers a question with the checkpoint's settings.
   *
   * @param question the user's message
   * @param listener is told text that will not change, as it becomes certain
   * @return counters
   * @throws EdgeKitException as {@link #answer(List, GenerationSettings, Cancellation, Consumer)}
   */
  public GenerationStatistics answer(String question, Consumer<String> listener) {
    return answer(question, new GenerationSettings(), null, listener);
  }

  /**
   * Answers a question.
   *
   * @param question the user's message
   * @param settings what to ask for
   * @param cancellation ends it; null: only an interrupt of the thread does, or {@link #close}
   * @param listener is told text that will not change, as it becomes certain
   * @return counters
   * @throws EdgeKitException as {@link #answer(List, GenerationSettings, Cancellation, Consumer)}
   */
  public GenerationStatistics answer(
      String question, GenerationSettings settings, Cancellation cancellation, Consumer<String> listener) {
    return answer(Arrays.asList(Message.user(question)), settings, cancellation, listener);
  }

  /**
   * Answers the last message of a conversation.
   *
   * @param conversation its messages, see {@link Tokenizer#chat}
   * @param settings what to ask for
   * @param cancellation ends it; null: only an interrupt of the thread does, or {@link #close}
   * @param listener is told text that will not change, as it becomes certain
   * @return counters
   * @throws EdgeKitException for a conversation or settings that the model does not take, a bundle that has no form of its
   *     chat template, and errors of reading
   */
  public GenerationStatistics answer(
      List<Message> conversation, GenerationSettings settings, Cancellation cancellation, Consumer<String> listener) {
    checkListener(listener);
    return generate(
        tokenizer().prompt(conversation),
        settings,
        cancellation,
        event -> {
          if (event instanceof Event.Text) listener.accept(((Event.Text) event).text());
        });
  }

  /**
   * Generates behind a prompt. An interrupt of this thread ends it like a cancellation, and stays set.
   *
   * @param prompt token ids of the bundle's tokenizer, chat template included where the model wants one
   * @param settings what to ask for
   * @param cancellation ends it; null: only an interrupt does, or {@link #close}
   * @param listener is told what happens; what it throws ends the generation and is thrown here
   * @return counters, also of a generation that was ended
   * @throws EdgeKitException for a prompt or settings that the model does not take, and errors of reading
   * @throws IllegalStateException where the session is closed, or a listener of its own calls
   */
  public GenerationStatistics generate(
      int[] prompt, GenerationSettings settings, Cancellation cancellation, Consumer<Event> listener) {
    if (prompt == null) throw new NullPointerException("prompt is null");
    if (settings == null) throw new NullPointerException("settings is null");
    checkListener(listener);
    if (!entered(cancellation)) return GenerationStatistics.STOPPED;
    return within(
        session -> {
          try (Told told = new Told(listener, tokenizer, () -> goesOn(cancellation))) {
            if (!goesOn(cancellation)) return GenerationStatistics.STOPPED;
            GenerationStatistics statistics = run(session, prompt, settings, told, 0, 0);
            if (statistics.finishReason() != GenerationStatistics.FinishReason.STOPPED) told.done(statistics);
            return statistics;
          }
        });
  }

  /** Has a bench look on, see {@link Benchmark}; null where it was ended before `forwards` denoising passes, or its end. */
  GenerationStatistics measured(int[] prompt, GenerationSettings settings, long bench, long forwards) {
    return call(
        session -> {
          try (Told told = new Told(event -> {}, null, () -> goesOn(null))) {
            if (!goesOn(null)) return null;
            GenerationStatistics statistics = run(session, prompt, settings, told, bench, forwards);
            boolean stopped = statistics.finishReason() == GenerationStatistics.FinishReason.STOPPED;
            return stopped && (forwards == 0 || statistics.forwards() < forwards) ? null : statistics;
          }
        });
  }

  /** What `body` says of the session, as a call that others wait for. */
  <T> T held(LongFunction<T> body) {
    return call(body);
  }

  private GenerationStatistics run(
      long session, int[] prompt, GenerationSettings settings, Told told, long bench, long forwards) {
    generating = true;
    try {
      return Native.generate(
          session,
          prompt,
          settings.seed(),
          settings.maxNewTokens(),
          settings.steps(),
          settings.options(),
          told,
          bench,
          forwards);
    } finally {
      generating = false;
    }
  }

  /**
   * Says what the model is, and how much text the session holds.
   *
   * @return as of now
   */
  public SessionInfo info() {
    return call(Native::sessionInfo);
  }

  /**
   * Says what was read and computed.
   *
   * @return so far
   */
  public SessionStatistics statistics() {
    return call(Native::sessionStatistics);
  }

  /** Forgets all text. */
  public void reset() {
    call(
        session -> {
          Native.sessionReset(session);
          return null;
        });
  }

  /**
   * Has at most so many bytes of weights stay in memory: from the next pass on, also of a generation under way. Answers
   * stay the same, and come slower. What was given back does not come again while the session is open.
   *
   * @param bytes 0: all weights stream
   */
  public void limitResident(long bytes) {
    if (bytes < 0) throw new IllegalArgumentException("bytes is " + bytes + "; it is 0 (none) or more");
    synchronized (pointerLock) {
      if (pointer == 0) return;
      pinnedBytes = Math.min(pinnedBytes, bytes);
      Native.sessionLimitResident(pointer, pinnedBytes);
    }
    // A generation gives it back before its next pass. Without one the session is told to be idle, and may read for that.
    if (!generating) {
      Thread worker = new Thread(this::idle, "edgekit-idle");
      worker.setDaemon(true);
      worker.start();
    }
  }

  /**
   * Gives weights back that stay in memory, see {@link #limitResident}: half of them where the system runs low, all where
   * it is critical or the application is in the background. To be called from {@code onTrimMemory} of an application or
   * activity. For full speed afterwards open a session anew.
   *
   * @param level as {@code android.content.ComponentCallbacks2} has it
   */
  public void onTrimMemory(int level) {
    if (level == RUNNING_CRITICAL || level >= BACKGROUND) {
      limitResident(0);
    } else if (level == RUNNING_LOW) {
      long half;
      synchronized (pointerLock) {
        half = pinnedBytes / 2;
      }
      limitResident(half);
    }
  }

  /** Ends a generation under way, waits for it, and gives memory back. A listener may call it, and does not wait. */
  @Override
  public void close() {
    closing = true;
    if (calls.isHeldByCurrentThread()) return;  // `call` frees it
    calls.lock();
    try {
      free();
    } finally {
      calls.unlock();
    }
  }

  private boolean goesOn(Cancellation cancellation) {
    return !closing
        && !Thread.currentThread().isInterrupted()
        && (cancellation == null || !cancellation.isCancelled());
  }

  private <T> T call(LongFunction<T> body) {
    checkCaller();
    calls.lock();
    return within(body);
  }

  /** Waits for other calls, and holds them off then; not where the call was ended meanwhile, which is false. */
  private boolean entered(Cancellation cancellation) {
    checkCaller();
    try {
      while (!calls.tryLock(LOOK_MILLISECONDS, TimeUnit.MILLISECONDS)) {
        checkOpen();
        if (!goesOn(cancellation)) return false;
      }
      return true;
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  /** The rest of a call, for the thread that holds `calls`. */
  private <T> T within(LongFunction<T> body) {
    try {
      checkOpen();
      return body.apply(pointer);
    } finally {
      if (closing) free();
      calls.unlock();
    }
  }

  private void idle() {
    calls.lock();
    try {
      if (!closing) Native.sessionIdle(pointer);
    } catch (EdgeKitException error) {
      // Nobody waits for it, and the next pass gives the weights back.
    } finally {
      if (closing) free();
      calls.unlock();
    }
  }

  private void checkCaller() {
    if (calls.isHeldByCurrentThread()) {
      throw new IllegalStateException("a listener calls the session that generates; call it after the generation");
    }
  }

  private void checkOpen() {
    if (closing) throw new IllegalStateException("the session is closed");
  }

  private static void checkListener(Consumer<?> listener) {
    if (listener == null) throw new NullPointerException("listener is null");
  }

  /** For the thread that holds `calls`. */
  private void free() {
    synchronized (pointerLock) {
      if (pointer != 0) Native.sessionClose(pointer);
      pointer = 0;
    }
    if (tokenizer != null) tokenizer.free();
  }
}
