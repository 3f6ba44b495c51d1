// A sampler's state as bytes: numbers in little endian one after the other, sealed with their XXH3. The seal finds
// accidents; whoever writes a state on purpose can seal it, so everything that is read is held to its limits.
#ifndef EDGEKIT_SAMPLING_SAVED_STATE_H
#define EDGEKIT_SAMPLING_SAVED_STATE_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace edgekit {

// What a number of a state may be.
struct StateLimits {
  std::int64_t least = 0, most = 0;
};

// Writer and reader have the same members, so that a list of fields serves both.
class StateWriter {
 public:
  StateWriter();

  void integer(const char *name, std::int64_t value, StateLimits limits);
  void word(std::uint64_t value);
  void flag(const char *name, bool value) { integer(name, value ? 1 : 0, {0, 1}); }
  void text(const char *name, const std::string &value);
  // Each within the limits, `count` of them.
  void integers(const char *name, const std::vector<std::int64_t> &values, StateLimits count, StateLimits limits);
  void flags(const char *name, const std::vector<std::uint8_t> &values, StateLimits count);
  void floats(const char *name, const std::vector<float> &values, StateLimits count);

  // All of it, with the seal.
  std::string sealed() const;

 private:
  std::string bytes_;
};

// Members throw Error (EK_MALFORMED_FILE) for what is not there or out of its limits.
class StateReader {
 public:
  // `state` must outlive it. Throws Error: EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION, EK_CHECKSUM_MISMATCH.
  explicit StateReader(std::string_view state);

  void integer(const char *name, std::int64_t &value, StateLimits limits);
  void word(std::uint64_t &value);
  void flag(const char *name, bool &value);
  void text(const char *name, std::string &value);
  void integers(const char *name, std::vector<std::int64_t> &values, StateLimits count, StateLimits limits);
  void flags(const char *name, std::vector<std::uint8_t> &values, StateLimits count);
  void floats(const char *name, std::vector<float> &values, StateLimits count);

  void end() const;

 private:
  const char *take(const char *name, std::uint64_t count, std::size_t width);

  std::string_view left_;
};

// Throws Error (EK_MALFORMED_FILE) unless it holds.
void check_state(bool holds, const char *what);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_SAVED_STATE_H
