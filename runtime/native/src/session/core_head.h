// The vocabulary head on the core's own kernels, for engines whose tables lie in runs.
#ifndef EDGEKIT_SESSION_CORE_HEAD_H
#define EDGEKIT_SESSION_CORE_HEAD_H

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "executor/weights.h"
#include "json.h"
#include "session/engine.h"
#include "thread_pool.h"

namespace edgekit {

class CoreHead {
 public:
  // `entry` is the program's in the manifest. Throws Error (EK_MALFORMED_FILE, EK_UNSUPPORTED_BUNDLE).
  CoreHead(const Bundle &bundle, const Json &entry);

  // Bytes of requests of these lengths.
  std::uint64_t bytes(const EngineLengths &lengths, int threads) const;

  // As Engine::head; the pool must outlive what it returns, and so must this object.
  std::unique_ptr<HeadScores> scores(ThreadPool &pool, const float *x, std::int64_t rows, const HeadRequest &request,
                                     float *logits) const;

 private:
  const Bundle &bundle_;
  float softcap_;
  std::unordered_map<const WeightUnit *, TableLayout> tables_;
};

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_CORE_HEAD_H
