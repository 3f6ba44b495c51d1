#include "abi_head.h"

#include <algorithm>
#include <vector>

#include "abi_guard.h"
#include "error.h"

namespace edgekit {
namespace {

// Far more than any canvas has, so that sizes computed from it stay sizes.
constexpr std::int64_t kMostRows = std::int64_t{1} << 22;

void check_reserved(std::int64_t value, const char *name) {
  if (value != 0) fail(EK_INVALID_ARGUMENT, name, ".reserved is ", value, "; set it to 0");
}

template <typename T>
void deliver(const std::vector<T> &from, T *to) {
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
}

}  // namespace

AskedHead asked_head(const ek_head_request *given, const ek_head_output *arrays) {
  const ek_head_request wanted = read_struct<ek_head_request>(given, EK_HEAD_REQUEST_INIT, "ek_head_request");
  AskedHead out;
  out.output = read_struct<ek_head_output>(arrays, EK_HEAD_OUTPUT_INIT, "ek_head_output");
  check_reserved(out.output.reserved, "ek_head_output");
  out.request.temperature = wanted.temperature;
  out.request.soft = wanted.soft != 0;
  out.request.roles = wanted.roles != 0;
  out.request.top_k = wanted.top_k;
  out.request.logits = out.output.logits != nullptr;
  out.request.logits_to = out.output.logits;
  if (wanted.gumbel != 0) out.request.gumbel = GumbelDraw{wanted.seed, wanted.draw, wanted.gumbel_scale};
  out.request.expected_rows = wanted.row_count;
  if (wanted.rows != nullptr) {
    if (wanted.row_count < 0 || wanted.row_count > kMostRows) {
      fail(EK_INVALID_ARGUMENT, "row_count is ", wanted.row_count, "; it must be 0..", kMostRows);
    }
    out.request.all_rows = false;
    out.request.rows.assign(wanted.rows, wanted.rows + wanted.row_count);
  }
  const auto needs = [](bool asked, bool array, const char *name, const char *member) {
    if (array && !asked) fail(EK_INVALID_ARGUMENT, "ek_head_output has ", name, ", but the request has no ", member);
  };
  needs(wanted.gumbel != 0, out.output.sample != nullptr || out.output.sample_prob != nullptr, "sample", "gumbel");
  needs(wanted.soft != 0, out.output.soft != nullptr, "soft", "soft");
  needs(wanted.roles != 0, out.output.roles != nullptr, "roles", "roles");
  needs(wanted.top_k != 0, out.output.top_ids != nullptr || out.output.top_z != nullptr, "top_ids or top_z", "top_k");
  return out;
}

void deliver(const HeadResult &result, const ek_head_output &output) {
  deliver(result.argmax, output.argmax);
  deliver(result.others, output.others);
  deliver(result.entropy, output.entropy);
  deliver(result.log_z, output.log_z);
  deliver(result.sample, output.sample);
  deliver(result.sample_prob, output.sample_prob);
  deliver(result.soft, output.soft);
  deliver(result.roles, output.roles);
  deliver(result.top_ids, output.top_ids);
  deliver(result.top_z, output.top_z);
}

}  // namespace edgekit
