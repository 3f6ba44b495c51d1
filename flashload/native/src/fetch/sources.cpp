#include "fetch/sources.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "error.h"

namespace edgekit {
namespace {

constexpr int kFirstWait = 500;  // milliseconds
constexpr int kLongestWait = 30'000;

}  // namespace

FetchSources::FetchSources(std::vector<std::string> names) {
  if (names.empty() || names.size() > kMaxSources) {
    fail(EK_INVALID_ARGUMENT, "a bundle comes from 1 to ", kMaxSources, " sources, not ", names.size());
  }
  for (std::string &name : names) {
    sources_.emplace_back();
    sources_.back().name = std::move(name);
  }
}

std::size_t FetchSources::usable() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(sources_.begin(), sources_.end(), [](const Source &source) { return !source.dropped; }));
}

std::optional<std::size_t> FetchSources::pick(SourceMask avoided) const noexcept {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source &source = sources_[i];
    if (source.dropped || (avoided >> i & 1) != 0 || is_busy(i)) continue;
    const auto rank = [this](std::size_t at) { return std::make_tuple(sources_[at].failures, sources_[at].open, at); };
    if (!best || rank(i) < rank(*best)) best = i;
  }
  return best;
}

int FetchSources::wait_milliseconds(std::size_t source) const noexcept {
  const int failures = sources_[source].failures;
  return failures == 0 ? 0 : std::min(kFirstWait << (failures - 1), kLongestWait);
}

void FetchSources::gave(std::size_t source) {
  sources_[source].failures = 0;
  sources_[source].has_given = true;
}

void FetchSources::failed(std::size_t source, const std::string &why) {
  last_ = name(source) + ": " + why;
  const int most = sources_[source].has_given ? kMostFailures : kMostFirstFailures;
  if (++sources_[source].failures >= most) drop(source, why);
}

void FetchSources::damaged(std::size_t source, const std::string &why) {
  last_ = name(source) + ": " + why;
  if (++sources_[source].damaged >= kMostDamaged && usable() > 1) drop(source, why);
}

void FetchSources::drop(std::size_t source, const std::string &why) {
  last_ = name(source) + ": " + why;
  sources_[source].dropped = true;
}

void FetchSources::require_one() const {
  if (usable() == 0) fail(EK_FETCH_FAILED, last_);
}

}  // namespace edgekit
