// kernels/noise.h for tests in Python.
#include "cpu.h"
#include "edgekit.h"
#include "kernels/noise.h"

extern "C" {

EK_API int ekt_can_use_instruction_set(const char *name) { return edgekit::can_use_instruction_set(name); }

EK_API void ekt_noise_use(const char *name) { edgekit::noise_use_instruction_set(name); }

EK_API void ekt_philox_halves(uint64_t seed, uint64_t draw, uint64_t first, int64_t count, uint32_t *out) {
  edgekit::philox_halves(seed, draw, first, count, out);
}

EK_API void ekt_gumbel_of_halves(const uint32_t *halves, int64_t count, float *out) {
  edgekit::gumbel_of_halves(halves, count, out);
}

EK_API void ekt_gumbel_noise(uint64_t seed, uint64_t draw, uint64_t first, int64_t count, float *out) {
  edgekit::gumbel_noise(seed, draw, first, count, out);
}

EK_API void ekt_philox_integers(uint64_t seed, uint64_t draw, uint64_t high, int64_t count, int64_t *out) {
  edgekit::philox_integers(seed, draw, high, count, out);
}

EK_API double ekt_uniform_of_word(uint64_t word) { return edgekit::uniform_of_word(word); }

EK_API void ekt_philox_uniform(uint64_t seed, uint64_t draw, int64_t count, double *out) {
  edgekit::philox_uniform(seed, draw, count, out);
}

}  // extern "C"
