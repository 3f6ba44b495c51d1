// Categories of characters, and the canonical composition of texts, as the tokenizers know them that models were trained
// behind.
#ifndef EDGEKIT_TEXT_UNICODE_H
#define EDGEKIT_TEXT_UNICODE_H

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace edgekit {

constexpr std::uint32_t kCodePoints = 0x110000;

// In the order of tools/unicode_tables.py. The letter in front is the one of the group.
enum class Category : std::uint8_t {
  Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co, Cn
};

// Calls `each(first, last, category)` for all ranges of characters, in their order.
void each_category(const std::function<void(std::uint32_t, std::uint32_t, Category)> &each);

// What Python's str.strip takes away, and with it the `trim` of templates.
bool is_white(std::uint32_t code_point);

// NFC. `text` is UTF-8.
std::string composed(std::string_view text);

}  // namespace edgekit

#endif  // EDGEKIT_TEXT_UNICODE_H
