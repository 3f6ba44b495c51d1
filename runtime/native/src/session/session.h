// A model being run: streamed weights, prefix KV, masks and the order of a pass, over an engine that computes.
#ifndef EDGEKIT_SESSION_SESSION_H
#define EDGEKIT_SESSION_SESSION_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flash_file.h"
#include "kernels/head.h"
#include "sampling/denoiser.h"

namespace edgekit {

class Bundle;
class Engine;
class Json;
struct ExpertUse;
struct Model;

// Makes the engine for an opened bundle.
using MakeEngine = std::function<std::unique_ptr<Engine>(Bundle &)>;

struct SessionOptions {
  std::uint64_t memory_bytes = 0;  // bounds the whole process; 0: everything resident
  std::uint64_t resident_bytes = UINT64_MAX;  // caps the pinned weights further
  std::int64_t positions = 2048;   // the longest prefix that the budget must hold
  std::int64_t canvas = 256;       // the longest pass
  int threads = 0;                 // 0: every core that the process may use
};

struct SessionStatistics {
  std::string io_mode;
  std::uint64_t pinned_bytes = 0, ring_bytes = 0, streamed_bytes_per_step = 0, bytes_read = 0, scratch_bytes = 0;
  std::uint64_t bytes_skipped = 0;    // of streamed experts that had no rows
  std::uint64_t bytes_exchanged = 0;  // of streamed experts that were read to stay; among bytes_read
  double io_seconds = 0, io_wait_seconds = 0, pass_seconds = 0;
};

// Bytes besides weights that a memory budget holds, by cause. `process` is what the process held already.
struct MemoryNeeds {
  std::uint64_t process = 0, prefix = 0, activations = 0, scratch = 0, head = 0, allowance = 0;

  std::uint64_t total() const { return process + prefix + activations + scratch + head + allowance; }
};

struct PlannedUnit {
  std::string name, group;
  std::uint64_t bytes = 0;
  bool pinned = false;
};

// What a session takes.
struct SessionPlan {
  MemoryNeeds needs;
  std::uint64_t pinned = 0, ring = 0, streamed = 0;
  std::uint64_t weights = 0;       // all of them
  std::uint64_t least_memory = 0;  // the smallest memory_bytes for these lengths
  std::vector<PlannedUnit> units;
};

// The native engine for `options`.
MakeEngine native_engine(const SessionOptions &options);

// What Session would take, from headers alone; `process` stands for what the process holds. Throws Error.
SessionPlan plan_session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
                         std::uint64_t process);

// Not for use by several threads at once.
class Session : public Denoiser {
 public:
  // `bundle` is the folder; `wrap` is for tests, see FlashFile. Throws Error.
  Session(const std::string &bundle, const SessionOptions &options, const MakeEngine &make,
          const FlashFile::Wrap &wrap = nullptr);
  ~Session() override;

  std::int64_t vocabulary() const override;
  std::int64_t prefix_length() const override;
  std::int64_t hidden_size() const override;
  void reset() override;
  void prefill(const std::int64_t *ids, std::int64_t count) override;
  HeadResult denoise(const std::int64_t *ids, std::int64_t count, const HeadRequest &request,
                     const float *soft) override;
  HeadResult project(const HeadRequest &request) override;

  void idle();

  // From the next pass or idle() on at most so many bytes of weights stay in memory. From any thread.
  void limit_resident(std::uint64_t bytes);

  SessionStatistics statistics() const;
  ExpertUse expert_use(std::size_t layer, std::size_t expert) const;
  const MemoryNeeds &needs() const;
  SessionPlan plan() const;
  int threads() const;
  const Model &model() const;
  const Json &sampler() const;  // the manifest's section

  // Throws Error for a denoising pass of `count` positions behind `committed` ones: EK_BUDGET_EXCEEDED when the budget
  // was not planned for it, EK_INVALID_ARGUMENT when no session takes so many.
  void check_lengths(std::int64_t count, std::int64_t committed) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_SESSION_H
