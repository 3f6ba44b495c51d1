package io.edgekit;

import java.util.function.DoubleSupplier;
import java.util.function.Supplier;

/**
 * Measures what {@code edgekit bench} measures; its report is one of {@code edgekit bench --merge}.
 *
 * <pre>{@code
 * String report = new Benchmark("llada").runs(1, 5).run(prompt, new GenerationSettings().maxNewTokens(128));
 * }</pre>
 *
 * <p>docs/bench.md of the repository says what the report holds.
 */
public final class Benchmark {
  /** Of each figure of the processor, and of the disk. */
  private static final double PROCESSOR_SECONDS = 0.3, DISK_SECONDS = 1.0;

  private final String bundle;
  private SessionOptions options = new SessionOptions();
  private int repetitions = 5;
  private int warmups = 1;
  private long forwards;
  private long spans;
  private boolean probe = true;
  private DoubleSupplier joules;
  private Supplier<String> state = () -> "";

  /**
   * Makes one of five answers behind one that is not counted.
   *
   * @param bundle its folder
   */
  public Benchmark(String bundle) {
    if (bundle == null) throw new NullPointerException("bundle is null");
    this.bundle = bundle;
  }

  /**
   * Says how the session is opened.
   *
   * @param options with a memory budget, lengths that hold prompt and answer
   * @return this
   */
  public Benchmark session(SessionOptions options) {
    if (options == null) throw new NullPointerException("options is null");
    this.options = options;
    return this;
  }

  /**
   * Says how often to generate.
   *
   * @param warmups that are not counted; 0 or more
   * @param repetitions that are; 1 or more
   * @return this
   */
  public Benchmark runs(int warmups, int repetitions) {
    if (warmups < 0 || repetitions < 1) {
      throw new IllegalArgumentException(
          repetitions + " repetitions after " + warmups + " warm-ups; use 1 or more, and 0 or more");
    }
    this.warmups = warmups;
    this.repetitions = repetitions;
    return this;
  }

  /**
   * Ends every generation after some denoising passes.
   *
   * @param passes 0: at its end
   * @return this
   */
  public Benchmark forwards(long passes) {
    if (passes < 0) throw new IllegalArgumentException("forwards is " + passes + "; it is 0 (all) or more");
    forwards = passes;
    return this;
  }

  /**
   * Keeps single reads, waits and uses of weights, for charts of a pass.
   *
   * @param most of every generation, the first of them
   * @return this
   */
  public Benchmark spans(long most) {
    spans = most;
    return this;
  }

  /**
   * Says whether to measure first, for about three seconds, what the machine can do at most.
   *
   * @param wanted true where it is not said
   * @return this
   */
  public Benchmark probe(boolean wanted) {
    probe = wanted;
    return this;
  }

  /**
   * Gives a meter of energy, such as what Android's power monitors counted.
   *
   * @param joules since any moment; negative: not known. It is asked often, from another thread, for which runs wait at
   *     their ends: it has to return at once. null: the meters that the library knows
   * @return this
   */
  public Benchmark joules(DoubleSupplier joules) {
    this.joules = joules;
    return this;
  }

  /**
   * Gives what the application knows of the device before each generation, such as its battery's level.
   *
   * @param members of a JSON object without its braces, such as {@code "battery": 0.8}
   * @return this
   */
  public Benchmark state(Supplier<String> members) {
    if (members == null) throw new NullPointerException("members is null");
    state = members;
    return this;
  }

  /**
   * Opens the bundle, generates and reports. An interrupt of this thread ends a generation, and all of it once the machine
   * has been measured.
   *
   * @param prompt token ids, see {@link Tokenizer#prompt}
   * @param settings of every generation; without their length, {@link GenerationSettings#maxNewTokens}, the report names the
   *     test by what was generated
   * @return the report: one line of JSON
   * @throws EdgeKitException as {@link Session#open} and {@link Session#generate}
   * @throws InterruptedException where the thread was interrupted
   */
  public String run(int[] prompt, GenerationSettings settings) throws InterruptedException {
    if (prompt == null) throw new NullPointerException("prompt is null");
    if (settings == null) throw new NullPointerException("settings is null");
    byte[] path = Utf8.path(bundle);
    String limits = probe ? Utf8.decode(Native.limits(path, PROCESSOR_SECONDS, DISK_SECONDS)) : "null";
    try (Session session = Session.open(bundle, options)) {
      for (int number = 0; number < warmups; ++number) {
        if (session.measured(prompt, settings, 0, forwards) == null) throw interrupted();
      }
      byte[] about = Utf8.name("{\"case\": " + told(session, settings) + ", \"limits\": " + limits + "}", "a setting");
      long bench = session.held(own -> Native.benchOpen(own, about, spans, joules));
      try {
        for (int number = 0; number < repetitions; ++number) test(session, bench, prompt, settings, number);
        return Utf8.decode(session.held(own -> Native.benchReport(bench)));
      } finally {
        session.held(
            own -> {
              Native.benchClose(bench);
              return null;
            });
      }
    }
  }

  private void test(Session session, long bench, int[] prompt, GenerationSettings settings, int number)
      throws InterruptedException {
    String members = state.get();
    if (members == null) throw new NullPointerException("the state of the device is null");
    byte[] label =
        Utf8.name("{\"run\": " + number + (members.isEmpty() ? "" : ", " + members) + "}", "the state of the device");
    Native.benchBegin(bench, label, prompt.length);
    boolean counts = false;
    try {
      counts = session.measured(prompt, settings, bench, forwards) != null;
    } finally {
      if (counts) Native.benchEnd(bench);
      else Native.benchDrop(bench);
    }
    if (!counts) throw interrupted();
  }

  /** Where it is thrown, the thread's interrupt is no longer set. */
  private static InterruptedException interrupted() {
    Thread.interrupted();
    return new InterruptedException("the benchmark was interrupted");
  }

  private String told(Session session, GenerationSettings settings) {
    String lengths = "";
    if (settings.maxNewTokens() > 0) {
      long canvas = Math.max(1, session.info().canvasLength());  // whole canvases are written
      lengths = ", \"new_tokens\": " + (settings.maxNewTokens() + canvas - 1) / canvas * canvas;
    }
    return "{\"sequences\": 1, \"prompt\": \"tokens\", \"forwards\": " + forwards + ", \"settings\": " + settings.told()
        + lengths + "}";
  }
}
