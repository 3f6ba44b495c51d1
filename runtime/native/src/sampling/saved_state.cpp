#include "sampling/saved_state.h"

#include <cstring>

#include "error.h"
#include "xxh3.h"

namespace edgekit {
namespace {

constexpr std::string_view kMagic = "edgekit sampler\n";
constexpr std::uint64_t kVersion = 3;
constexpr std::size_t kWord = 8;

[[noreturn]] void damaged(const char *what) {
  fail(EK_MALFORMED_FILE, "the saved state of a generation is damaged: ", what, "; begin the generation anew");
}

std::uint64_t word_at(const char *at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kWord; ++i) value |= std::uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  return value;
}

void put(std::string &bytes, std::uint64_t value) {
  for (std::size_t i = 0; i < kWord; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

bool is_within(std::int64_t value, StateLimits limits) { return value >= limits.least && value <= limits.most; }

// Those of a state that is being written hold, or the sampler is broken.
void expect(bool holds, const char *name) {
  if (!holds) fail(EK_INTERNAL, "the state of a generation holds no possible ", name);
}

}  // namespace

StateWriter::StateWriter() : bytes_(kMagic) { put(bytes_, kVersion); }

void StateWriter::word(std::uint64_t value) { put(bytes_, value); }

void StateWriter::integer(const char *name, std::int64_t value, StateLimits limits) {
  expect(is_within(value, limits), name);
  word(static_cast<std::uint64_t>(value));
}

void StateWriter::text(const char *, const std::string &value) {
  word(value.size());
  bytes_ += value;
}

void StateWriter::integers(const char *name, const std::vector<std::int64_t> &values, StateLimits count,
                           StateLimits limits) {
  integer(name, static_cast<std::int64_t>(values.size()), count);
  for (const std::int64_t value : values) integer(name, value, limits);
}

void StateWriter::flags(const char *name, const std::vector<std::uint8_t> &values, StateLimits count) {
  integer(name, static_cast<std::int64_t>(values.size()), count);
  for (const std::uint8_t value : values) bytes_ += static_cast<char>(value);
}

void StateWriter::floats(const char *name, const std::vector<float> &values, StateLimits count) {
  integer(name, static_cast<std::int64_t>(values.size()), count);
  for (const float value : values) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    for (std::size_t i = 0; i < sizeof bits; ++i) bytes_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }
}

std::string StateWriter::sealed() const {
  std::string all = bytes_;
  put(all, xxh3_64(all.data(), all.size()));
  return all;
}

StateReader::StateReader(std::string_view state) {
  if (state.substr(0, kMagic.size()) != kMagic)
    fail(EK_MALFORMED_FILE, "these ", state.size(), " bytes are no saved state of a generation");
  if (state.size() < kMagic.size() + 2 * kWord) damaged("it is too short");
  const std::uint64_t version = word_at(state.data() + kMagic.size());
  if (version != kVersion)
    fail(EK_UNSUPPORTED_VERSION, "the saved state of a generation has version ", version, ", this library reads ",
         kVersion, "; use the version of edgekit that saved it");
  const std::size_t size = state.size() - kWord;
  if (word_at(state.data() + size) != xxh3_64(state.data(), size))
    fail(EK_CHECKSUM_MISMATCH, "the saved state of a generation is not as it was written; begin the generation anew");
  left_ = state.substr(0, size).substr(kMagic.size() + kWord);
}

const char *StateReader::take(const char *name, std::uint64_t count, std::size_t width) {
  if (count > left_.size() / width) damaged(name);
  const char *at = left_.data();
  left_.remove_prefix(static_cast<std::size_t>(count) * width);
  return at;
}

void StateReader::word(std::uint64_t &value) { value = word_at(take("it is too short", 1, kWord)); }

void StateReader::integer(const char *name, std::int64_t &value, StateLimits limits) {
  value = static_cast<std::int64_t>(word_at(take(name, 1, kWord)));
  if (!is_within(value, limits)) damaged(name);
}

void StateReader::flag(const char *name, bool &value) {
  std::int64_t number = 0;
  integer(name, number, {0, 1});
  value = number != 0;
}

void StateReader::text(const char *name, std::string &value) {
  std::uint64_t size = 0;
  word(size);
  value.assign(take(name, size, 1), static_cast<std::size_t>(size));
}

void StateReader::integers(const char *name, std::vector<std::int64_t> &values, StateLimits count,
                           StateLimits limits) {
  std::int64_t size = 0;
  integer(name, size, count);
  const char *at = take(name, static_cast<std::uint64_t>(size), kWord);
  values.resize(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int64_t>(word_at(at + i * kWord));
    if (!is_within(values[i], limits)) damaged(name);
  }
}

void StateReader::flags(const char *name, std::vector<std::uint8_t> &values, StateLimits count) {
  std::int64_t size = 0;
  integer(name, size, count);
  const char *at = take(name, static_cast<std::uint64_t>(size), 1);
  values.assign(at, at + size);
  for (const std::uint8_t value : values) {
    if (value > 1) damaged(name);
  }
}

void StateReader::floats(const char *name, std::vector<float> &values, StateLimits count) {
  std::int64_t size = 0;
  integer(name, size, count);
  const char *at = take(name, static_cast<std::uint64_t>(size), sizeof(float));
  values.resize(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t b = 0; b < sizeof bits; ++b)
      bits |= std::uint32_t{static_cast<unsigned char>(at[i * sizeof bits + b])} << (8 * b);
    std::memcpy(&values[i], &bits, sizeof bits);
  }
}

void StateReader::end() const {
  if (!left_.empty()) damaged("more follows its end");
}

void check_state(bool holds, const char *what) {
  if (!holds) damaged(what);
}

}  // namespace edgekit
