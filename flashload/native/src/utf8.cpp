#include "utf8.h"

#include <cstring>

namespace edgekit {

std::size_t utf8_prefix(std::string_view text) noexcept {
  const auto *bytes = reinterpret_cast<const unsigned char *>(text.data());
  std::size_t at = 0;
  const auto follows = [&](std::size_t i, unsigned char low, unsigned char high) {
    return at + i < text.size() && bytes[at + i] >= low && bytes[at + i] <= high;
  };
  while (at < text.size()) {
    std::uint64_t eight;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, bytes + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const unsigned char lead = bytes[at];
    if (lead < 0x80) {
      at += 1;
    } else if (lead >= 0xC2 && lead <= 0xDF) {
      if (!follows(1, 0x80, 0xBF)) return at;
      at += 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      const unsigned char low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
      if (!follows(1, low, high) || !follows(2, 0x80, 0xBF)) return at;
      at += 3;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      const unsigned char low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
      if (!follows(1, low, high) || !follows(2, 0x80, 0xBF) || !follows(3, 0x80, 0xBF)) return at;
      at += 4;
    } else {
      return at;
    }
  }
  return at;
}

void append_utf8(std::string &out, std::uint32_t code_point) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::uint32_t next_code_point(std::string_view text, std::size_t &at) noexcept {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) & 0x3Fu : 0;
  };
  const auto lead = static_cast<unsigned char>(text[at]);
  std::uint32_t value = lead;
  std::size_t length = 1;
  if (lead >= 0xF0) {
    value = (lead & 0x07u) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3);
    length = 4;
  } else if (lead >= 0xE0) {
    value = (lead & 0x0Fu) << 12 | byte(1) << 6 | byte(2);
    length = 3;
  } else if (lead >= 0xC0) {
    value = (lead & 0x1Fu) << 6 | byte(1);
    length = 2;
  }
  at += length;
  return value;
}

}  // namespace edgekit
