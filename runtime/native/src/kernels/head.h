// The vocabulary head over tiles of the table: statistics of z = softcap(x @ table.T) / temperature without keeping z.
#ifndef EDGEKIT_KERNELS_HEAD_H
#define EDGEKIT_KERNELS_HEAD_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/matrix.h"
#include "thread_pool.h"

namespace edgekit {

// Gumbel noise of one draw over [positions, vocabulary], added to z times `scale`.
struct GumbelDraw {
  std::uint64_t seed = 0;
  std::uint64_t draw = 0;
  float scale = 1.0f;
};

struct HeadOptions {
  float temperature = 1.0f;
  float softcap = 0.0f;  // 0: none
  const GumbelDraw *gumbel = nullptr;
  bool soft = false;
  std::int64_t top_k = 0;
  float *logits = nullptr;  // [rows, vocabulary] filled with z when not null
};

// As runtime.sampling.types.HeadOutput; arrays that were not asked for are empty.
struct HeadResult {
  std::vector<std::int64_t> argmax;
  std::vector<float> others, entropy, log_z;
  std::vector<std::int64_t> sample;
  std::vector<float> sample_prob;
  std::vector<float> soft;  // [rows, hidden]
  std::vector<std::int64_t> top_ids;
  std::vector<float> top_z;
  std::vector<float> roles;   // [rows, kRoles], by whoever runs the pass
  std::vector<float> logits;  // [rows, vocabulary], by whoever runs the pass: HeadOptions say where they go
};

// Joins tiles, given in ascending order of tokens, by the online softmax (arXiv 1805.02867). Ties keep the lower
// token. Results do not depend on the number of threads.
class HeadPass {
 public:
  // x [rows, hidden], contiguous, must stay alive. Rounds x to int8 once if the tables have 8 bits. Noise has `rows`
  // positions. Throws Error: EK_INVALID_ARGUMENT, EK_OUT_OF_MEMORY.
  HeadPass(ThreadPool &pool, const float *x, std::int64_t rows, std::int64_t hidden, std::int64_t vocabulary, int bits,
           const HeadOptions &options);
  ~HeadPass();

  // The rows of the table whose first token is `first`. Throws Error (EK_INVALID_ARGUMENT) for a tile that is not
  // behind the ones before, not of this vocabulary, or of another form.
  void add(std::int64_t first, const Table &tile);

  // Statistics over all tiles; the pass is over.
  HeadResult result();

  // Memory that a pass of this size holds at most (results included, logits excluded).
  static std::size_t bytes(int threads, std::int64_t rows, std::int64_t hidden, std::int64_t tile_rows,
                           const HeadOptions &options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Forces "avx512", "avx2", "neon" or "scalar" for what follows the scores, for tests; null chooses the best again.
// Throws Error (EK_INVALID_ARGUMENT) for one that this process may not use.
void head_use_instruction_set(const char *name);

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_HEAD_H
