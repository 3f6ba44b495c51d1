/* What runtime/swift's Benchmark.run asks of the C ABI, in the same order: opens a bundle, generates without counting,
 * then as often as is wanted with a recorder looking on, and prints the report.
 *
 *   measure BUNDLE ABOUT RESIDENT_BYTES WARMUPS RUNS FORWARDS NEW_TOKENS STEPS ID...
 *
 * ABOUT is the member "about" (JSON); FORWARDS end a run after so many denoising passes, 0: at its end. */
#include <stdio.h>
#include <stdlib.h>

#include "edgekit.h"

#define MOST 4096

typedef struct {
  ek_bench *bench; /* null: it is not measured */
  int64_t forwards;
  int reached;
  ek_status told;
} run;

static int32_t on_event(const ek_event *event, void *user_data) {
  run *own = user_data;
  if (own->bench != NULL) own->told = ek_bench_tell(own->bench, 0, event);
  own->reached = own->forwards > 0 && event->statistics != NULL && event->statistics->forwards >= own->forwards;
  return own->told != EK_OK || own->reached;
}

static void check(ek_status status) {
  if (status == EK_OK) return;
  fprintf(stderr, "%s\n", ek_last_error());
  exit(1);
}

/* A meter of the caller's. */
static double joules(void *user_data) { return *(double *)user_data += 0.5; }

int main(int count, char **words) {
  static int64_t prompt[MOST];
  ek_session_options options = EK_SESSION_OPTIONS_INIT;
  ek_generate_options wishes = EK_GENERATE_OPTIONS_INIT;
  ek_bench_options recording = EK_BENCH_OPTIONS_INIT;
  ek_session *session = NULL;
  ek_bench *bench = NULL;
  double spent = 0;
  int64_t tokens = 0;
  uint64_t size = 0, capacity;
  char *buffer;
  int number, warmups, runs;
  if (ek_abi_version() != EK_ABI_VERSION || count < 10 || count - 9 > MOST) return 2;
  options.resident_bytes = strtoull(words[3], NULL, 10);
  warmups = atoi(words[4]);
  runs = atoi(words[5]);
  wishes.max_new_tokens = atoll(words[7]);
  wishes.steps = atoll(words[8]);
  for (number = 9; number < count; ++number) prompt[tokens++] = atoll(words[number]);
  recording.about = words[2];
  recording.joules = joules;
  recording.user_data = &spent;
  check(ek_session_open(words[1], &options, &session));
  for (number = -warmups; number < runs; ++number) {
    run own = {NULL, 0, 0, EK_OK};
    char label[32];
    ek_status status;
    own.forwards = atoll(words[6]);
    if (number == 0) check(ek_bench_open(session, &recording, &bench));
    own.bench = bench;
    sprintf(label, "{\"run\": %d}", number);
    if (bench != NULL) check(ek_bench_begin(bench, label, tokens));
    status = ek_generate(session, prompt, tokens, &wishes, on_event, &own, NULL);
    check(own.told);
    if (status != EK_STOPPED || !own.reached) check(status);
    if (bench != NULL) check(ek_bench_end(bench));
  }
  check(ek_bench_get_report(bench, NULL, 0, &size));
  capacity = size + 4096;
  buffer = malloc(capacity);
  if (buffer == NULL) return 2;
  check(ek_bench_get_report(bench, buffer, capacity, &size));
  fwrite(buffer, 1, size, stdout);
  putchar('\n');
  free(buffer);
  ek_bench_close(bench);
  ek_session_close(session);
  return 0;
}
