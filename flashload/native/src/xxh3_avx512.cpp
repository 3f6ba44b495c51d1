// XXH3's loop with 512-bit vectors: the eight lanes are one register.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own header initialises what may stay undefined with itself, and GCC 12 warns about that (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include "xxh3_kernels.h"

namespace edgekit {
namespace {

__m512i load(const std::uint8_t *from) { return _mm512_loadu_si512(from); }

__m512i add_stripe(__m512i lanes, const std::uint8_t *data, const std::uint8_t *secret) {
  const __m512i value = load(data);
  const __m512i keyed = _mm512_xor_si512(value, load(secret));
  const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  // A lane's data is added to its neighbour.
  const __m512i neighbour = _mm512_shuffle_epi32(value, _MM_PERM_BADC);
  return _mm512_add_epi64(lanes, _mm512_add_epi64(product, neighbour));
}

__m512i add_stripes(__m512i lanes, const std::uint8_t *data, std::size_t count, const std::uint8_t *secret) {
  for (std::size_t i = 0; i < count; ++i) lanes = add_stripe(lanes, data + i * kXxh3StripeBytes, secret + i * 8);
  return lanes;
}

__m512i scramble(__m512i lanes, const std::uint8_t *secret) {
  const __m512i prime = _mm512_set1_epi32(static_cast<int>(0x9E3779B1u));
  const __m512i shifted = _mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47));
  const __m512i keyed = _mm512_xor_si512(shifted, load(secret));
  const __m512i low = _mm512_mul_epu32(keyed, prime);
  const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), prime);
  return _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
}

}  // namespace

void xxh3_loop_avx512(std::uint64_t *lanes, const std::uint8_t *data, std::size_t blocks, std::size_t left,
                      const std::uint8_t *last, const std::uint8_t *secret) {
  __m512i sum = _mm512_loadu_si512(lanes);
  for (; blocks > 0; --blocks, data += kXxh3BlockBytes) {
    sum = add_stripes(sum, data, kXxh3BlockStripes, secret);
    sum = scramble(sum, secret + kXxh3SecretBytes - kXxh3StripeBytes);
  }
  if (last != nullptr) {
    sum = add_stripes(sum, data, (left - 1) / kXxh3StripeBytes, secret);
    sum = add_stripe(sum, last, secret + kXxh3LastStripeSecret);
  }
  _mm512_storeu_si512(lanes, sum);
}

}  // namespace edgekit
