// SHA-256 by every instruction set that this machine has, and the examples of FIPS 180-4.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sha256.h"
#include "sha256_kernels.h"
#include "unit.h"

namespace edgekit {
namespace {

std::string hex_of(const std::string &text) {
  Sha256 digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

EK_TEST(sha256_of_the_standards_examples) {
  EK_CHECK(hex_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EK_CHECK(hex_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EK_CHECK(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EK_CHECK(hex_of(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

EK_TEST(sha256_is_the_same_by_every_instruction_set) {
  std::mt19937 random(7);
  const Sha256Blocks portable = sha256_find_blocks("portable");
  EK_CHECK(portable != nullptr && sha256_find_blocks("") != nullptr && sha256_find_blocks("none") == nullptr);
  for (const char *name : {"shani", "sha2"}) {
    const Sha256Blocks blocks = sha256_find_blocks(name);
    if (blocks == nullptr) continue;
    for (int round = 0; round < 200; ++round) {
      const std::size_t count = random() % 9, offset = random() % 3;  // at any address
      std::vector<std::uint8_t> data(offset + count * kSha256BlockBytes);
      for (std::uint8_t &byte : data) byte = static_cast<std::uint8_t>(random());
      std::uint32_t found[8], expected[8];
      for (std::size_t i = 0; i < 8; ++i) found[i] = expected[i] = static_cast<std::uint32_t>(random());
      portable(expected, data.data() + offset, count);
      blocks(found, data.data() + offset, count);
      EK_CHECK(std::memcmp(found, expected, sizeof found) == 0);
    }
  }
}

}  // namespace
}  // namespace edgekit
