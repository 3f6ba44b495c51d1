// SHA-256 by the SHA extensions of x86-64 (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
// SHA256RNDS2): the state is held as A B E F and C D G H, the words of the message four at a time.
#include <immintrin.h>

#include "sha256_kernels.h"

namespace edgekit {

void sha256_blocks_shani(std::uint32_t *state, const std::uint8_t *data, std::size_t blocks) noexcept {
  const auto load = [](const void *from) { return _mm_loadu_si128(static_cast<const __m128i *>(from)); };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(load(state + 4), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, data += kSha256BlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (int i = 0; i < 4; ++i) words[i] = _mm_shuffle_epi8(load(data + 16 * i), big_endian);
    for (int i = 0; i < 16; ++i) {
      const __m128i added = _mm_add_epi32(words[i % 4], load(kSha256Rounds + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
      if (i >= 12) continue;
      const __m128i middle = _mm_alignr_epi8(words[(i + 3) % 4], words[(i + 2) % 4], 4);
      const __m128i low = _mm_add_epi32(_mm_sha256msg1_epu32(words[i % 4], words[(i + 1) % 4]), middle);
      words[i % 4] = _mm_sha256msg2_epu32(low, words[(i + 3) % 4]);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

}  // namespace edgekit
