// Greedy decoding by the causal pass of a model that also denoises blocks: a token at a time, or drafted and verified.
#ifndef EDGEKIT_SAMPLING_CAUSAL_H
#define EDGEKIT_SAMPLING_CAUSAL_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sampling/options.h"
#include "sampling/sampler.h"
#include "sampling/token_draw.h"

namespace edgekit {

// A token at a time: the scores of the last token give the next one.
//
// Speculative (arXiv 2607.05722, linear self-speculation): a block is drafted by a bidirectional pass over the next token and
// masks, and verified by a causal one. Its tokens are taken as long as the causal pass says the same, and one more from that.
// These are the tokens of a token at a time. How many will be taken is not known before: with `ahead` the pass that
// verifies a block also drafts the next one for that many of the likeliest numbers, by how often each has come, so
// that one read of the weights does both. Another number than these costs a pass that only drafts.
//
// Tells committed tokens, as many as a pass gave, and the end.
class CausalSampler : public Sampler {
 public:
  // Throws Error (EK_INVALID_ARGUMENT).
  CausalSampler(SamplerModel model, BlockOptions options);

  void begin(const std::vector<std::int64_t> &prompt, std::uint64_t seed) override;
  std::unique_ptr<Sampler> copy() const override { return std::make_unique<CausalSampler>(*this); }

 protected:
  const char *name() const override { return "block"; }
  std::string options_text() const override { return text_of(options_); }
  void proceed(HeadResult &&answer) override;
  void proceed_pass(std::vector<HeadResult> &&answers) override;
  bool hurries() const override { return true; }
  void go_on() override;
  void write(StateWriter &state) const override;
  void read(StateReader &state) override;
  void ask_waiting() override;

 private:
  // What go_on() asks for: a draft behind the token that waits, or what the causal pass says of both.
  enum class Stage : std::int64_t { draft = 0, verify = 1, commit = 2 };

  void encode_or_verify();
  void ask_draft();
  void ask_verify();
  std::vector<std::int64_t> likeliest() const;
  AskSegment canvas(std::int64_t at, std::vector<std::int64_t> ids, std::int64_t first_row) const;
  void set_draft(std::vector<std::int64_t> tokens, std::int64_t left);
  void take_verified(const std::vector<HeadResult> &answers);
  std::int64_t left() const { return options_.max_new_tokens - told_; }

  template <typename Archive, typename Self>
  static void fields(Archive &archive, Self &self);

  BlockOptions options_;
  TokenDraw draw_;
  std::vector<std::int64_t> waiting_;  // final text that is not encoded; its last token is the one that is gone on behind
  std::int64_t told_ = 0;
  bool ended_ = false;

  Stage stage_ = Stage::verify;
  std::int64_t length_ = 0;           // positions that are final and encoded
  std::int64_t passes_ = 0;           // that gave tokens
  std::vector<std::int64_t> draft_;   // tokens behind the one that waits; none: there is no draft
  std::vector<std::int64_t> fresh_;   // that are final and not told
  std::vector<std::int64_t> counts_;  // [0..block_length) how often so many tokens of a draft were taken

  std::vector<std::int64_t> ahead_;  // for which numbers the pass under way drafts the next block
};

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_CAUSAL_H
