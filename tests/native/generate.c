/* Generations through the C ABI, as an application that links the library asks for them. Every five lines of standard
 * input are one; all text is UTF-8:
 *
 *   folder of the bundle
 *   threads memory_bytes resident_bytes positions canvas
 *   seed max_new_tokens steps
 *   sampler options (JSON)
 *   token ids of the prompt
 *
 * EDGEKIT_TVM_FFI and EDGEKIT_TVM_RUNTIME name the libraries of TVM for bundles of that format.
 *
 * For each it prints a line of the answer's token ids and lines of statistics ("name value"), or "error STATUS BYTES
 * MESSAGE" with ek_last_error_bytes, and an empty line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgekit.h"

#define LINE 65536

typedef unsigned long long number;

static int read_line(char *line) {
  if (!fgets(line, LINE, stdin)) return 0;
  line[strcspn(line, "\r\n")] = 0;
  return 1;
}

static int32_t print_final(const ek_event *event, void *user_data) {
  int64_t i;
  (void)user_data;
  for (i = 0; event->kind == EK_EVENT_COMMITTED && i < event->count; ++i) printf("%lld ", (long long)event->ids[i]);
  return 0;
}

static void print_statistics(ek_session *session) {
  ek_session_statistics found;
  found.struct_size = sizeof found;
  if (ek_session_get_statistics(session, &found) != EK_OK) abort();
  printf("\nio_mode %s\npinned_bytes %llu\nring_bytes %llu\nstreamed_bytes_per_step %llu\nbytes_read %llu\n",
         found.io_mode, (number)found.pinned_bytes, (number)found.ring_bytes, (number)found.streamed_bytes_per_step,
         (number)found.bytes_read);
}

int main(void) {
  static char folder[LINE], line[LINE], json[LINE];
  static int64_t prompt[LINE];
  const char *ffi = getenv("EDGEKIT_TVM_FFI"), *runtime = getenv("EDGEKIT_TVM_RUNTIME");
  if (ek_abi_version() != EK_ABI_VERSION) return 2;
  if (ffi != NULL && ek_tvm_load(ffi, runtime) != EK_OK) {
    fprintf(stderr, "%s\n", ek_last_error());
    return 2;
  }
  while (read_line(folder)) {
    ek_session_options options = EK_SESSION_OPTIONS_INIT;
    ek_generate_options wishes = EK_GENERATE_OPTIONS_INIT;
    ek_session *session = NULL;
    ek_status status;
    int64_t count = 0;
    char *rest = line, *end;
    if (!read_line(line)) return 2;
    options.threads = (int32_t)strtol(rest, &rest, 10);
    options.memory_bytes = strtoull(rest, &rest, 10);
    options.resident_bytes = strtoull(rest, &rest, 10);
    options.positions = strtoll(rest, &rest, 10);
    options.canvas = strtoll(rest, &rest, 10);
    if (!read_line(line)) return 2;
    wishes.seed = strtoull(line, &rest, 10);
    wishes.max_new_tokens = strtoll(rest, &rest, 10);
    wishes.steps = strtoll(rest, &rest, 10);
    if (!read_line(json) || !read_line(line)) return 2;
    wishes.options = json;
    for (rest = line; count < LINE; rest = end) {
      const int64_t id = strtoll(rest, &end, 10);
      if (end == rest) break;
      prompt[count++] = id;
    }
    status = ek_session_open(folder, &options, &session);
    if (status == EK_OK) status = ek_generate(session, prompt, count, &wishes, print_final, NULL, NULL);
    if (status == EK_OK) {
      print_statistics(session);
    } else {
      printf("error %d %llu %s\n", (int)status, (number)ek_last_error_bytes(), ek_last_error());
    }
    printf("\n");
    ek_session_close(session);
  }
  return 0;
}
