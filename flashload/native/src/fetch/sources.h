// The places that serve the same files: which of them is asked next, and which no more.
#ifndef EDGEKIT_FETCH_SOURCES_H
#define EDGEKIT_FETCH_SOURCES_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace edgekit {

// A set of sources, by their numbers.
using SourceMask = std::uint32_t;
constexpr std::size_t kMaxSources = 32;

class FetchSources {
 public:
  // In a row without a byte of use, for one source; for one that has never given any.
  static constexpr int kMostFailures = 8;
  static constexpr int kMostFirstFailures = 3;
  // Runs or files with other bytes than they should have, from one source, while there are others.
  static constexpr int kMostDamaged = 3;

  // `names` are for messages. Throws Error (EK_INVALID_ARGUMENT) for none, and for more than kMaxSources.
  explicit FetchSources(std::vector<std::string> names);

  std::size_t count() const noexcept { return sources_.size(); }
  std::size_t usable() const noexcept;
  const std::string &name(std::size_t source) const { return sources_[source].name; }
  // Whether it gives files from their beginning alone.
  bool whole_only(std::size_t source) const { return sources_[source].whole_only; }
  void set_whole_only(std::size_t source, bool is) { sources_[source].whole_only = is; }

  // Whether nothing more may be asked of it until what is open has ended.
  bool is_busy(std::size_t source) const { return sources_[source].whole_only && sources_[source].open > 0; }

  // The one to be asked now, not one of `avoided`; none where it is busy, or where there is none. One that gives whole
  // files alone is asked for one at a time.
  std::optional<std::size_t> pick(SourceMask avoided) const noexcept;
  // How long to wait before it is asked.
  int wait_milliseconds(std::size_t source) const noexcept;

  void asked(std::size_t source) { ++sources_[source].open; }
  void ended(std::size_t source) { --sources_[source].open; }

  void gave(std::size_t source);
  void failed(std::size_t source, const std::string &why);
  void damaged(std::size_t source, const std::string &why);
  // It is not asked again.
  void drop(std::size_t source, const std::string &why);
  bool is_dropped(std::size_t source) const { return sources_[source].dropped; }

  // Throws Error (EK_FETCH_FAILED) where none may be asked any more, with what the last one of them did.
  void require_one() const;

 private:
  struct Source {
    std::string name;
    int open = 0, failures = 0, damaged = 0;
    bool whole_only = false, has_given = false, dropped = false;
  };

  std::vector<Source> sources_;
  std::string last_;  // what a source did that was dropped or failed
};

}  // namespace edgekit

#endif  // EDGEKIT_FETCH_SOURCES_H
