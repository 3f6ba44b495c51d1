// XXH3's loop with 256-bit vectors: the eight lanes are two registers.
#include <immintrin.h>

#include "xxh3_kernels.h"

namespace edgekit {
namespace {

struct Lanes {
  __m256i low, high;
};

__m256i load(const std::uint8_t *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }

__m256i add_stripe(__m256i lanes, const std::uint8_t *data, const std::uint8_t *secret) {
  const __m256i value = load(data);
  const __m256i keyed = _mm256_xor_si256(value, load(secret));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  // A lane's data is added to its neighbour.
  const __m256i neighbour = _mm256_shuffle_epi32(value, 0x4E);
  return _mm256_add_epi64(lanes, _mm256_add_epi64(product, neighbour));
}

void add_stripes(Lanes &lanes, const std::uint8_t *data, std::size_t count, const std::uint8_t *secret) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t *stripe = data + i * kXxh3StripeBytes;
    lanes.low = add_stripe(lanes.low, stripe, secret + i * 8);
    lanes.high = add_stripe(lanes.high, stripe + 32, secret + i * 8 + 32);
  }
}

__m256i scramble(__m256i lanes, const std::uint8_t *secret) {
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(0x9E3779B1u));
  const __m256i shifted = _mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47));
  const __m256i keyed = _mm256_xor_si256(shifted, load(secret));
  const __m256i low = _mm256_mul_epu32(keyed, prime);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
  return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

}  // namespace

void xxh3_loop_avx2(std::uint64_t *lanes, const std::uint8_t *data, std::size_t blocks, std::size_t left,
                    const std::uint8_t *last, const std::uint8_t *secret) {
  __m256i *stored = reinterpret_cast<__m256i *>(lanes);
  Lanes sum{_mm256_loadu_si256(stored), _mm256_loadu_si256(stored + 1)};
  const std::uint8_t *end_secret = secret + kXxh3SecretBytes - kXxh3StripeBytes;
  for (; blocks > 0; --blocks, data += kXxh3BlockBytes) {
    add_stripes(sum, data, kXxh3BlockStripes, secret);
    sum.low = scramble(sum.low, end_secret);
    sum.high = scramble(sum.high, end_secret + 32);
  }
  if (last != nullptr) {
    add_stripes(sum, data, (left - 1) / kXxh3StripeBytes, secret);
    sum.low = add_stripe(sum.low, last, secret + kXxh3LastStripeSecret);
    sum.high = add_stripe(sum.high, last + 32, secret + kXxh3LastStripeSecret + 32);
  }
  _mm256_storeu_si256(stored, sum.low);
  _mm256_storeu_si256(stored + 1, sum.high);
}

}  // namespace edgekit
