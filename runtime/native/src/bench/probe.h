// What a processor can do, measured: the limits that a run is held against.
#ifndef EDGEKIT_BENCH_PROBE_H
#define EDGEKIT_BENCH_PROBE_H


namespace edgekit {

struct ProcessorProbe {
  int threads = 1;
  // Per second, on all threads at once; a product and a sum are two. See peak.h.
  double int8_operations = 0, float_operations = 0;
  double memory_bytes = 0;  // read per second, of memory that no cache holds
  const char *int8_instructions = "", *float_instructions = "";
  double product_operations = 0, few_row_operations = 0, attention_operations = 0;  // see bench/kernel_rates.h
};

// Takes about `seconds` for each figure. Throws Error (EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY).
ProcessorProbe probe_processor(int threads, double seconds);

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_PROBE_H
