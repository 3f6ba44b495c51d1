// Philox and the logarithms on vectors of 512 bits.
#include "kernels/noise_steps.h"
#include "kernels/vector_math_avx512.h"

namespace edgekit {
namespace {

struct Lanes : Avx512Lanes {
  using Avx512Lanes::sub;
  using Int = __m512i;

  EK_VECTOR_INLINE Int load_int(const std::uint32_t *p) { return _mm512_loadu_si512(p); }
  EK_VECTOR_INLINE Int set_int(std::int32_t x) { return _mm512_set1_epi32(x); }
  EK_VECTOR_INLINE Int sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  EK_VECTOR_INLINE Int shift_right_23(Int x) { return _mm512_srai_epi32(x, 23); }
  EK_VECTOR_INLINE Int shift_left_23(Int x) { return _mm512_slli_epi32(x, 23); }
  EK_VECTOR_INLINE Int odd_of_half(Int x) { return _mm512_or_si512(_mm512_srli_epi32(x, 7), _mm512_set1_epi32(1)); }
  EK_VECTOR_INLINE Int bits(Float x) { return _mm512_castps_si512(x); }
  EK_VECTOR_INLINE Float from_bits(Int x) { return _mm512_castsi512_ps(x); }
  EK_VECTOR_INLINE Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  EK_VECTOR_INLINE Float negate(Float x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
  EK_VECTOR_INLINE Float where_zero(Int k, Float yes, Float no) {
    return _mm512_mask_blend_ps(_mm512_testn_epi32_mask(k, k), no, yes);
  }
};

// Blocks in the lanes of a vector, and vectors that take their rounds together.
constexpr int kLaneBlocks = 8;
constexpr int kGroups = 2;
constexpr int kStepBlocks = kLaneBlocks * kGroups;
constexpr int kVectors = 4;

EK_VECTOR_INLINE __m512i set_word(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }

// The 128-bit products of 8 words with m, from four products of 32 by 32 bits.
EK_VECTOR_INLINE void wide_products(__m512i x, std::uint64_t m, __m512i &high, __m512i &low) {
  const __m512i mask = set_word(0xffffffffu), m0 = set_word(m & 0xffffffffu), m1 = set_word(m >> 32);
  const __m512i x1 = _mm512_srli_epi64(x, 32);
  const __m512i p00 = _mm512_mul_epu32(x, m0), p01 = _mm512_mul_epu32(x, m1);
  const __m512i p10 = _mm512_mul_epu32(x1, m0), p11 = _mm512_mul_epu32(x1, m1);
  const __m512i middle = _mm512_add_epi64(p10, _mm512_srli_epi64(p00, 32));
  const __m512i other = _mm512_add_epi64(p01, _mm512_and_si512(middle, mask));
  high = _mm512_add_epi64(p11, _mm512_srli_epi64(middle, 32));
  high = _mm512_add_epi64(high, _mm512_srli_epi64(other, 32));
  // The lower half of p00 under the lower half of `other`.
  low = _mm512_mask_shuffle_epi32(p00, 0xAAAA, other, static_cast<_MM_PERM_ENUM>(0xA0));
}

// Words of 8 blocks, each vector one of the four, in the order of the stream.
EK_VECTOR_INLINE void interleave(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *out) {
  const __m512i ab0 = _mm512_unpacklo_epi64(a, b), ab1 = _mm512_unpackhi_epi64(a, b);
  const __m512i cd0 = _mm512_unpacklo_epi64(c, d), cd1 = _mm512_unpackhi_epi64(c, d);
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i blocks02 = _mm512_permutex2var_epi64(ab0, lower, cd0);
  const __m512i blocks13 = _mm512_permutex2var_epi64(ab1, lower, cd1);
  const __m512i blocks46 = _mm512_permutex2var_epi64(ab0, upper, cd0);
  const __m512i blocks57 = _mm512_permutex2var_epi64(ab1, upper, cd1);
  out[0] = _mm512_shuffle_i64x2(blocks02, blocks13, 0x44);
  out[1] = _mm512_shuffle_i64x2(blocks02, blocks13, 0xEE);
  out[2] = _mm512_shuffle_i64x2(blocks46, blocks57, 0x44);
  out[3] = _mm512_shuffle_i64x2(blocks46, blocks57, 0xEE);
}

// As philox_block, for the kStepBlocks blocks from `counter` - 1 on.
EK_VECTOR_INLINE void philox_step(const PhiloxKey &key, std::uint64_t counter, __m512i (&out)[4 * kGroups]) {
  __m512i a[kGroups], b[kGroups], c[kGroups], d[kGroups], high0, low0, high1, low1;
  for (int g = 0; g < kGroups; ++g) {
    const __m512i first = set_word(counter + static_cast<std::uint64_t>(g * kLaneBlocks));
    wide_products(_mm512_add_epi64(first, _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)), kPhiloxMultiplier0, high0, low0);
    wide_products(_mm512_xor_si512(high0, set_word(key.k1[0])), kPhiloxMultiplier1, high1, low1);
    a[g] = _mm512_xor_si512(high1, set_word(key.k0[1]));
    b[g] = low1;
    c[g] = _mm512_xor_si512(low0, set_word(key.second_high));
    d[g] = set_word(key.second_low);
  }
  for (int round = 2; round < kPhiloxRounds; ++round) {
    for (int g = 0; g < kGroups; ++g) {
      wide_products(a[g], kPhiloxMultiplier0, high0, low0);
      wide_products(c[g], kPhiloxMultiplier1, high1, low1);
      a[g] = _mm512_ternarylogic_epi64(high1, b[g], set_word(key.k0[round]), 0x96);
      b[g] = low1;
      c[g] = _mm512_ternarylogic_epi64(high0, d[g], set_word(key.k1[round]), 0x96);
      d[g] = low0;
    }
  }
  for (int g = 0; g < kGroups; ++g) interleave(a[g], b[g], c[g], d[g], out + 4 * g);
}

void philox(const PhiloxKey &key, std::uint64_t first, std::int64_t count, std::uint64_t *words) {
  std::int64_t i = 0;
  for (; i + kStepBlocks <= count; i += kStepBlocks) {
    __m512i out[4 * kGroups];
    philox_step(key, first + static_cast<std::uint64_t>(i) + 1, out);
    for (int j = 0; j < 4 * kGroups; ++j) _mm512_storeu_si512(words + 4 * i + 8 * j, out[j]);
  }
  philox_array(key, first + static_cast<std::uint64_t>(i), count - i, words + 4 * i);
}

void gumbel(const std::uint32_t *halves, std::int64_t count, float *out) {
  gumbel_array<Lanes, kVectors>(halves, count, out);
}

void gumbel_of_blocks(const PhiloxKey &key, std::uint64_t first, std::int64_t count, float *out) {
  std::int64_t i = 0;
  for (; i + kStepBlocks <= count; i += kStepBlocks) {
    __m512i words[4 * kGroups];
    philox_step(key, first + static_cast<std::uint64_t>(i) + 1, words);
    for (int g = 0; g < kGroups; ++g) {
      const __m512i halves[4] = {words[4 * g], words[4 * g + 1], words[4 * g + 2], words[4 * g + 3]};
      __m512 values[4];
      gumbel_vectors<Lanes>(halves, values);
      for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + 8 * i + 16 * (4 * g + j), values[j]);
    }
  }
  gumbel_blocks<Lanes, kVectors>(key, first + static_cast<std::uint64_t>(i), count - i, out + 8 * i);
}

}  // namespace

const NoiseKernels kNoiseAvx512 = {"avx512", philox, gumbel, gumbel_of_blocks};

}  // namespace edgekit
