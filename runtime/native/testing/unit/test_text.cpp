// Reading of tokenizers, for what Python cannot look into, and for the sanitizers. What texts and ids must be is compared
// with another implementation in tests/native/test_native_text.py.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "error.h"
#include "text/digest_key.h"
#include "text/expression.h"
#include "unit.h"

namespace {

using edgekit::DigestKey;

constexpr std::size_t kEntries = 4096, kSlots = 2 * kEntries;
// Of so many entries by chance 3223 different slots are expected, give or take 40.
constexpr std::size_t kFewestSlots = 3000;

// Texts of 16 bytes that std::hash of libstdc++ cannot tell apart: MurmurHash64A, whose every step can be gone back.
std::vector<std::string> alike() {
  constexpr std::uint64_t kProduct = 0xC6A4A7935BD1E995, kSeed = 0xC70F6907, kEnd = 12345;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kProduct * inverse;
  const auto folded = [](std::uint64_t value) { return value ^ value >> 47; };
  std::vector<std::string> found;
  for (std::uint64_t first = 1; first <= kEntries; ++first) {
    const std::uint64_t state = ((kSeed ^ 16 * kProduct) ^ folded(first * kProduct) * kProduct) * kProduct;
    const std::uint64_t second = folded((state ^ kEnd * inverse) * inverse) * inverse;
    std::string text(16, '\0');
    std::memcpy(text.data(), &first, 8);
    std::memcpy(text.data() + 8, &second, 8);
    found.push_back(text);
  }
  return found;
}

}  // namespace

EK_TEST(texts_that_are_alike_to_a_known_hash_have_slots_of_their_own) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const DigestKey key(seed * 0x9E3779B97F4A7C15, seed * 0xC2B2AE3D27D4EB4F);
    std::set<std::size_t> slots;
    for (const std::string &text : alike()) slots.insert(key.of(text) % kSlots);
    EK_CHECK(slots.size() >= kFewestSlots);
  }
}

EK_TEST(pairs_of_ids_that_differ_by_powers_of_two_have_slots_of_their_own) {
  const DigestKey key(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F);
  for (unsigned shift = 0; shift <= 10; ++shift) {
    std::set<std::size_t> left, right;
    for (std::uint32_t i = 0; i < kEntries; ++i) {
      left.insert(key.of(i << shift, 7) % kSlots);
      right.insert(key.of(7, i << shift) % kSlots);
    }
    EK_CHECK(left.size() >= kFewestSlots && right.size() >= kFewestSlots);
  }
}

EK_TEST(digests_hang_on_the_key_the_length_and_every_byte) {
  const DigestKey key, same, other(1, 2);
  std::set<std::size_t> found;
  std::size_t count = 0;
  for (std::size_t size = 0; size <= 40; ++size) {
    const std::string text(size, '\0');
    EK_CHECK(key.of(text) == same.of(text) && key.of(text) != other.of(text));
    found.insert(key.of(text));
    ++count;
    for (std::size_t at = 0; at < size; ++at) {
      std::string changed = text;
      changed[at] = 'a';
      found.insert(key.of(changed));
      ++count;
    }
  }
  EK_CHECK(found.size() == count);
}

EK_TEST(an_expression_that_ends_too_early_is_read_no_further) {
  for (const std::string pattern : {"(?!", "(?=", "a(?!", "(?:(?=", "[", "[^", "[a-", "[a&&", "a{", "a{2,", "\\", "\\p{", "\\x"}) {
    const std::unique_ptr<char[]> exact(new char[pattern.size()]);  // without a byte behind it
    std::memcpy(exact.get(), pattern.data(), pattern.size());
    ek_status status = EK_OK;
    try {
      edgekit::Expression({exact.get(), pattern.size()}, "tokenizer.json");
    } catch (const edgekit::Error &error) {
      status = error.status();
    }
    EK_CHECK(status == EK_UNSUPPORTED_BUNDLE);
  }
}
