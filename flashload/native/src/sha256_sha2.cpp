// SHA-256 by the cryptographic extension of AArch64 (Arm Architecture Reference Manual, SHA256H).
#include <arm_neon.h>

#include "sha256_kernels.h"

namespace edgekit {

void sha256_blocks_sha2(std::uint32_t *state, const std::uint8_t *data, std::size_t blocks) noexcept {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; blocks > 0; --blocks, data += kSha256BlockBytes) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t added = vaddq_u32(words[i % 4], vld1q_u32(kSha256Rounds + 4 * i));
      if (i < 12) {
        const uint32x4_t low = vsha256su0q_u32(words[i % 4], words[(i + 1) % 4]);
        words[i % 4] = vsha256su1q_u32(low, words[(i + 2) % 4], words[(i + 3) % 4]);
      }
      const uint32x4_t first = abcd;
      abcd = vsha256hq_u32(abcd, efgh, added);
      efgh = vsha256h2q_u32(efgh, first, added);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

}  // namespace edgekit
