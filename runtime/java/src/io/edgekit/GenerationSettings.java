package io.edgekit;

import java.util.LinkedHashMap;
import java.util.Map;

/** What one generation may ask for; what is not set is as the checkpoint says. */
public final class GenerationSettings {
  private final Map<String, String> options = new LinkedHashMap<>();
  private long seed;
  private long maxNewTokens;
  private long steps;

  /** The checkpoint's own settings, and seed 0. */
  public GenerationSettings() {}

  /**
   * Sets the seed: equal ones give equal events, on every machine and with any number of threads.
   *
   * @param seed any number
   * @return this
   */
  public GenerationSettings seed(long seed) {
    this.seed = seed;
    return this;
  }

  /**
   * Sets how many tokens to generate at most.
   *
   * @param tokens rounded up to whole canvases or blocks
   * @return this
   */
  public GenerationSettings maxNewTokens(long tokens) {
    maxNewTokens = positive(tokens, "maxNewTokens");
    return this;
  }

  /**
   * Sets the denoising steps, per canvas where canvases are encoded.
   *
   * @param steps 1 or more
   * @return this
   */
  public GenerationSettings steps(long steps) {
    this.steps = positive(steps, "steps");
    return this;
  }

  /**
   * Sets an option of the bundle's procedure that has no method of its own here, one of those that `edgekit options` lists.
   *
   * @param name such as "temperature"
   * @param value a finite number
   * @return this
   */
  public GenerationSettings option(String name, double value) {
    if (Double.isNaN(value) || Double.isInfinite(value)) {
      throw new IllegalArgumentException("option " + name + " is " + value + "; it takes a finite number");
    }
    return put(name, Double.toString(value));
  }

  /**
   * Sets an option that takes whole numbers.
   *
   * @param name such as "block_length"
   * @param value the number
   * @return this
   */
  public GenerationSettings option(String name, long value) {
    return put(name, Long.toString(value));
  }

  /**
   * Sets an option that takes whole numbers.
   *
   * @param name such as "block_length"
   * @param value the number
   * @return this
   */
  public GenerationSettings option(String name, int value) {
    return option(name, (long) value);
  }

  /**
   * Sets an option that is on or off.
   *
   * @param name such as "continue_prefix"
   * @param value whether it is on
   * @return this
   */
  public GenerationSettings option(String name, boolean value) {
    return put(name, Boolean.toString(value));
  }

  /**
   * Sets an option that takes a word.
   *
   * @param name such as "procedure"
   * @param value the word
   * @return this
   */
  public GenerationSettings option(String name, String value) {
    if (value == null) throw new NullPointerException("option " + name + " is null");
    return put(name, quoted(value));
  }

  long seed() {
    return seed;
  }

  long maxNewTokens() {
    return maxNewTokens;
  }

  long steps() {
    return steps;
  }

  /** A JSON object; null where there is nothing. */
  byte[] options() {
    return options.isEmpty() ? null : Utf8.name(json(options), "an option");
  }

  /** The options and the steps as reports have them: a JSON object. */
  String told() {
    Map<String, String> all = new LinkedHashMap<>(options);
    if (steps > 0) all.put("steps", Long.toString(steps));
    return json(all);
  }

  private static String json(Map<String, String> members) {
    StringBuilder text = new StringBuilder("{");
    for (Map.Entry<String, String> each : members.entrySet()) {
      if (text.length() > 1) text.append(", ");
      text.append(quoted(each.getKey())).append(": ").append(each.getValue());
    }
    return text.append('}').toString();
  }

  private GenerationSettings put(String name, String json) {
    if (name == null) throw new NullPointerException("the name of an option is null");
    options.put(name, json);
    return this;
  }

  private static long positive(long value, String name) {
    if (value < 1) throw new IllegalArgumentException(name + " is " + value + "; it is 1 or more");
    return value;
  }

  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (char each : text.toCharArray()) {
      if (each == '"' || each == '\\') json.append('\\').append(each);
      else if (each < ' ') json.append(String.format("\\u%04x", (int) each));
      else json.append(each);
    }
    return json.append('"').toString();
  }
}
