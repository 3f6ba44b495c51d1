// kernels/head.h for tests in Python.
#include "kernels/head.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "edgekit.h"
#include "thread_pool.h"

namespace {

thread_local std::string message;

template <typename Body>
const char *caught(const Body &body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception &error) {
    message = error.what();
    return message.c_str();
  }
}

template <typename Value>
void copy(const std::vector<Value> &from, Value *to) {
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
}

}  // namespace

extern "C" {

struct ekt_head_call {
  int64_t threads, rows, hidden, vocabulary, bits, tile_rows, top_k, gumbel, soft;
  uint64_t seed, draw;
  float gumbel_scale, temperature, softcap, reserved;
  const float *x;
  const uint8_t *codes;
  const float *scales;
  int64_t *argmax;
  float *others, *entropy, *log_z;
  int64_t *sample;
  float *sample_prob, *soft_out;
  int64_t *top_ids;
  float *top_z, *logits;
};

// One pass over a table in memory in tiles of `tile_rows`. Null, or what went wrong.
EK_API const char *ekt_head(const ekt_head_call *call) {
  return caught([&] {
    edgekit::ThreadPool pool(static_cast<int>(call->threads));
    const edgekit::GumbelDraw gumbel{call->seed, call->draw, call->gumbel_scale};
    edgekit::HeadOptions options;
    options.temperature = call->temperature;
    options.softcap = call->softcap;
    options.gumbel = call->gumbel != 0 ? &gumbel : nullptr;
    options.soft = call->soft != 0;
    options.top_k = call->top_k;
    options.logits = call->logits;
    edgekit::HeadPass pass(pool, call->x, call->rows, call->hidden, call->vocabulary, static_cast<int>(call->bits),
                           options);
    for (int64_t first = 0; first < call->vocabulary; first += call->tile_rows) {
      edgekit::Table tile;
      tile.rows = std::min(call->tile_rows, call->vocabulary - first);
      tile.columns = call->hidden;
      tile.bits = static_cast<int>(call->bits);
      tile.codes = call->codes + first * call->hidden * (call->bits / 8);
      tile.scales = call->scales == nullptr ? nullptr : call->scales + first;
      pass.add(first, tile);
    }
    const edgekit::HeadResult result = pass.result();
    copy(result.argmax, call->argmax);
    copy(result.others, call->others);
    copy(result.entropy, call->entropy);
    copy(result.log_z, call->log_z);
    copy(result.sample, call->sample);
    copy(result.sample_prob, call->sample_prob);
    copy(result.soft, call->soft_out);
    copy(result.top_ids, call->top_ids);
    copy(result.top_z, call->top_z);
  });
}

EK_API uint64_t ekt_head_bytes(int64_t threads, int64_t rows, int64_t hidden, int64_t tile_rows, int64_t gumbel,
                               int64_t soft, int64_t top_k) {
  const edgekit::GumbelDraw draw;
  edgekit::HeadOptions options;
  options.gumbel = gumbel != 0 ? &draw : nullptr;
  options.soft = soft != 0;
  options.top_k = top_k;
  return edgekit::HeadPass::bytes(static_cast<int>(threads), rows, hidden, tile_rows, options);
}

EK_API const char *ekt_head_use(const char *name) {
  return caught([&] { edgekit::head_use_instruction_set(name); });
}

}  // extern "C"
