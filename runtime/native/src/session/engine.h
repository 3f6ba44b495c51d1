// What computes: everything else, such as streaming, prefix, masks and the joining of the head's tiles, is the session's.
#ifndef EDGEKIT_SESSION_ENGINE_H
#define EDGEKIT_SESSION_ENGINE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "kernels/attention.h"
#include "kernels/head.h"
#include "sampling/ask.h"
#include "session/bundle.h"
#include "session/engine_memory.h"

namespace edgekit {

// The most candidates per position that a sampler asks for.
constexpr std::int64_t kMostCandidates = 256;

// The lengths that a session is opened for.
struct EngineLengths {
  std::int64_t rows = 0;       // of the longest segment
  std::int64_t prefix = 0;     // kept positions before it
  std::int64_t head_rows = 0;  // of the largest head request of a segment
  std::int64_t segments = 1;   // of a pass
};

// Bytes that an engine takes besides weights and what the session holds for it, and those of weights that it may keep in
// memory of its own; see ek_engine_bytes.
struct EngineBytes {
  std::uint64_t activations = 0, scratch = 0, head = 0, allowance = 0, weights = 0;
};

// A unit of weights in memory; no data where the engine keeps it, or has opened it itself.
struct LoadedUnit {
  const WeightUnit *unit = nullptr;
  const std::uint8_t *data = nullptr;
};

struct LoadedExpertUnit {
  std::size_t index = 0;  // in its layer
  LoadedUnit weights;
};

// Hands the experts of a layer to an engine, each once, in any order and in batches as they come, all of those that have
// rows. `rows` holds how many rows each has.
using EachExpert = std::function<void(const std::vector<std::int64_t> &rows,
                                      const std::function<void(const std::vector<LoadedExpertUnit> &)> &use)>;

// What one layer is given for a segment besides its rows. Keys and values lie in the engine's memory.
struct LayerInputs {
  std::size_t layer = 0;        // number in the model
  std::vector<KeyPiece> kept;   // [1, KV, some, D] each: what the segment sees before its own keys
  std::int64_t kept_rows = 0;   // in all of them
  const float *cos = nullptr;   // [count, frequencies], behind those of the segment before
  const float *sin = nullptr;
  const float *query_scale = nullptr;  // [count] factors for rotated queries; null where the rope has none
  const float *adapter = nullptr;  // [count] factors for what adapters add to products; null where the model has none
  const float *mask = nullptr;  // [count, kept_rows + count], added to the scores; null: nothing is hidden
  Strided k, v;                 // [1, KV, count, D] to be filled, without data: not wanted. Later segments may see them
};

// Rows of a pass that see the same, in the order of the call.
struct LayerSegment {
  std::int64_t first = 0, count = 0;
  bool causal = false;  // text that is encoded; else a canvas
  std::vector<LayerInputs> layers;
};

// Consecutive layers that share a unit of weights.
struct LayersCall {
  const BundleChunk *chunk = nullptr;
  LoadedUnit weights;
  LoadedUnit mixture;  // see BundleChunk
  std::int64_t rows = 0;
  float *x = nullptr;  // [rows, hidden] in the engine's memory: what comes out replaces what goes in
  std::vector<LayerSegment> segments;
  std::uint64_t inputs = 0;  // see ek_layers_call
  EachExpert experts;
};

// A head request at work: tiles come in ascending order of tokens and cover the vocabulary.
class HeadScores {
 public:
  virtual ~HeadScores() = default;
  virtual void add(const BundleTile &tile, const LoadedUnit &weights) = 0;
  virtual HeadResult result() = 0;  // logits excluded, which go to where the request says
};

// Its functions are called by one thread at a time, with no lock held. They throw Error. Arrays x and `soft` lie in its
// memory.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual EngineMemory &memory() const { return session_memory(); }

  // Calls that were given weights, or memory, and that have returned with their work under way, so far.
  virtual std::uint64_t submitted() const { return 0; }

  // Returns, or throws what they failed with, when none of the first `count` of them is under way any more.
  virtual void wait(std::uint64_t) {}

  virtual EngineBytes bytes(const EngineLengths &lengths) const = 0;

  // How many of the layer's experts have rows in a pass of denoising at these lengths, at most.
  virtual std::uint64_t experts_wanted(const BundleChunk &chunk, const EngineLengths &) const { return chunk.experts.size(); }

  // Once, when `bytes` of these lengths are granted and before any of the following.
  virtual void open(const EngineLengths &lengths) = 0;

  // Throws Error (EK_PROMPT_TOO_LONG) where no program takes a segment of so many rows behind `kept` others.
  virtual void check_rows(std::int64_t, std::int64_t) const {}

  virtual void layers(const LayersCall &call) = 0;

  // In place: x [rows, hidden] becomes the decoder's input. `soft` [rows, hidden] carries the embedding's scale.
  virtual void self_condition(const LoadedUnit &weights, std::int64_t rows, float *x, const float *soft) = 0;

  // The last norm, in place: x [rows, hidden].
  virtual void final(const LoadedUnit &weights, std::int64_t rows, float *x) = 0;

  // x [rows, hidden] and the request must stay alive. `logits` [rows, vocabulary] is null or filled with z.
  virtual std::unique_ptr<HeadScores> head(const float *x, std::int64_t rows, const HeadRequest &request,
                                           float *logits) = 0;

  // For bundles whose weights lie in packages. `open_begin` starts to open one and returns at once; `open_finish` waits until
  // it is open and gives the seconds that opening took. Several may be under way, of different packages. Each begin has its
  // finish, also where it failed, and each finish that did not throw its close.
  virtual void open_begin(const WeightUnit &) { no_packages(); }
  virtual double open_finish(const WeightUnit &) { no_packages(); }
  virtual void close_unit(const WeightUnit &) noexcept {}

  // Whether the calling thread is the one on which they are opened: a call of the session there would wait for itself. Any
  // thread may ask.
  virtual bool opens_here() const { return false; }

  // Memory where weights lie: see ek_engine. The first throws Error.
  virtual void lend(const std::uint8_t *, std::uint64_t) {}
  virtual void take_back(const std::uint8_t *, std::uint64_t) noexcept {}

  // Whether the engine keeps a unit from now on, in memory of its own; if not, it has none left. Throws Error.
  virtual bool keep(const LoadedUnit &) { return false; }

  // Engines that say the same compute the same keys and values of a bundle, as far as anybody knows.
  virtual std::string numerics() const = 0;

  virtual int threads() const = 0;  // 0: its own affair
  virtual std::uint64_t scratch_held() const = 0;

 private:
  [[noreturn]] static void no_packages() { fail(EK_INTERNAL, "this engine opens no packages; please report it"); }
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_ENGINE_H
