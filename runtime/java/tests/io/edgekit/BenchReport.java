package io.edgekit;

import java.util.Arrays;

/** Prints the report of a benchmark: BUNDLE RESIDENT_BYTES WARMUPS RUNS FORWARDS NEW_TOKENS STEPS PROMPT, ids with commas. */
public final class BenchReport {
  private static double spent;

  private BenchReport() {}

  public static void main(String[] arguments) throws Exception {
    int[] prompt = Arrays.stream(arguments[7].split(",")).mapToInt(Integer::parseInt).toArray();
    System.out.println(
        new Benchmark(arguments[0])
            .session(new SessionOptions().residentBytes(Long.parseLong(arguments[1])))
            .runs(Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]))
            .forwards(Long.parseLong(arguments[4]))
            .spans(10)
            .joules(() -> spent += 0.5)
            .state(() -> "\"battery\": 0.8")
            .run(
                prompt,
                new GenerationSettings()
                    .maxNewTokens(Long.parseLong(arguments[5]))
                    .steps(Long.parseLong(arguments[6]))));
  }
}
