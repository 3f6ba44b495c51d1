#include "text/digest_key.h"

#include <random>

namespace edgekit {
namespace {

DigestKey drawn() {
  std::random_device source;
  const auto draw = [&source] { return std::uint64_t{source()} << 32 | source(); };
  const std::uint64_t first = draw();
  return {first, draw()};
}

}  // namespace

DigestKey::DigestKey() {
  static const DigestKey kOwn = drawn();
  *this = kOwn;
}

}  // namespace edgekit
