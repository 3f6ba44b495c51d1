#include "text/decoder.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/normalizer.h"
#include "text/tables.h"
#include "utf8.h"

namespace edgekit {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

constexpr std::size_t kLetters = 0x144;

// GPT-2's alphabet, the byte of each letter, -1 of what is none: bytes that are printable stand for themselves, the others
// for characters from U+0100 on.
const std::array<std::int16_t, kLetters> &alphabet() {
  static const std::array<std::int16_t, kLetters> kAlphabet = [] {
    std::array<std::int16_t, kLetters> found;
    found.fill(-1);
    std::size_t next = 0x100;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      found[itself ? byte : next++] = static_cast<std::int16_t>(byte);
    }
    return found;
  }();
  return kAlphabet;
}

// The byte that <0x0A> stands for, -1 for another text.
int byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char letter : token.substr(3, 2)) {
    const char small = static_cast<char>(letter | 0x20);
    if (letter >= '0' && letter <= '9') {
      value = value * 16 + (letter - '0');
    } else if (small >= 'a' && small <= 'f') {
      value = value * 16 + (small - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

// How many bytes of a character `text` begins with, at most as many as the character has: 0 where they begin none.
std::size_t begun_character(std::string_view text) {
  const auto byte = [&text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned low = 0x80, high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  std::size_t at = 1;
  for (; at < size && at < text.size() && byte(at) >= low && byte(at) <= high; ++at) {
    low = 0x80;
    high = 0xBF;
  }
  return at;
}

}  // namespace

bool bytes_of_token(std::string_view text, std::string &bytes) {
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t letter = next_code_point(text, at);
    if (letter >= kLetters || alphabet()[letter] < 0) return false;
    bytes += static_cast<char>(alphabet()[letter]);
  }
  return true;
}

std::string with_replacements(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::string_view rest = bytes.substr(at);
    const std::size_t good = utf8_prefix(rest);
    out.append(rest.substr(0, good));
    if (good == rest.size()) break;
    out.append(kReplacement);
    at += good + std::max<std::size_t>(1, begun_character(rest.substr(good)));
  }
  return out;
}

Decoder::Decoder(const Json &table) {
  if (!table.is_null()) {
    add(table);
    joins_with_blanks_ = false;
    parts_ = parts_of_steps();
  }
}

void Decoder::add(const Json &table) {
  const std::string &type = type_of(table);
  if (type == "Sequence") {
    for (const Json &each : table.at("decoders").array()) add(each);
  } else if (type == "ByteLevel") {
    steps_.push_back({Step::Kind::byte_level, "", ""});
  } else if (type == "ByteFallback") {
    steps_.push_back({Step::Kind::byte_tokens, "", ""});
  } else if (type == "Fuse") {
    steps_.push_back({Step::Kind::fuse, "", ""});
  } else if (type == "Replace") {
    const Replacement found(table, "decoder");
    steps_.push_back({Step::Kind::replace, found.what, found.by});
  } else if (type == "Strip") {
    const std::int64_t left = table.at("start").integer(), right = table.at("stop").integer();
    if (left < 0 || right < 0) fail(EK_MALFORMED_FILE, table.where(), ": its decoder strips less than nothing");
    steps_.push_back({Step::Kind::strip, text_of(table.at("content")), "", static_cast<std::size_t>(left),
                      static_cast<std::size_t>(right)});
  } else if (type == "Metaspace") {
    const Json *scheme = table.find("prepend_scheme");
    const bool never = scheme != nullptr ? scheme->string() == "never" : !flag(table, "add_prefix_space", true);
    steps_.push_back({Step::Kind::metaspace, character_of(table.at("replacement")), " ", never ? 0u : 1u, 0});
  } else {
    unknown_part(table, "decoder", type);
  }
  check_steps(table, "decoder", steps_.size());
}

void Decoder::apply(const Step &step, std::vector<std::string> &tokens, std::size_t before) {
  std::size_t nbytes = 0;  // of the tokens so far
  const auto replace = [&](std::string &token, std::string_view by) {
    if (token.find(step.what) != std::string::npos) token = replaced(token, step.what, by, before);
    nbytes += token.size();
    check_growth(before, nbytes);
  };
  switch (step.kind) {
    case Step::Kind::byte_level: {
      std::string whole, bytes;
      for (const std::string &token : tokens) whole += bytes_of_token(token, bytes) ? bytes : token;
      tokens = {with_replacements(whole)};
      return;
    }
    case Step::Kind::byte_tokens: {
      std::vector<std::string> found;
      std::string run;
      const auto close = [&] {
        if (run.empty()) return;
        if (utf8_prefix(run) == run.size()) {
          found.push_back(run);
        } else {
          found.insert(found.end(), run.size(), kReplacement);
        }
        run.clear();
      };
      for (std::string &token : tokens) {
        const int byte = byte_of(token);
        if (byte >= 0) {
          run += static_cast<char>(byte);
          continue;
        }
        close();
        found.push_back(std::move(token));
      }
      close();
      tokens = std::move(found);
      return;
    }
    case Step::Kind::fuse: {
      std::string whole;
      for (const std::string &token : tokens) whole += token;
      tokens = {std::move(whole)};
      return;
    }
    case Step::Kind::replace:
      for (std::string &token : tokens) replace(token, step.by);
      return;
    case Step::Kind::strip:
      for (std::string &token : tokens) {
        std::string_view rest = token;
        const auto begins = [&] { return !step.what.empty() && rest.substr(0, step.what.size()) == step.what; };
        for (std::size_t i = 0; i < step.left && begins(); ++i) rest.remove_prefix(step.what.size());
        const auto ends = [&] {
          return !step.what.empty() && rest.size() >= step.what.size() &&
                 rest.substr(rest.size() - step.what.size()) == step.what;
        };
        for (std::size_t i = 0; i < step.right && ends(); ++i) rest.remove_suffix(step.what.size());
        token = std::string(rest);
      }
      return;
    case Step::Kind::metaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        replace(tokens[i], i == 0 && step.left > 0 ? std::string_view() : step.by);
      }
      return;
  }
}

bool Decoder::is_byte(std::string_view token) const {
  const auto bytes = std::find_if(steps_.begin(), steps_.end(), [](const Step &step) {
    return step.kind == Step::Kind::byte_tokens;
  });
  if (bytes == steps_.end()) return false;
  if (bytes == steps_.begin()) return byte_of(token) >= 0;
  std::vector<std::string> seen{std::string(token)};
  for (auto step = steps_.begin(); step != bytes; ++step) apply(*step, seen, token.size());
  return byte_of(seen.front()) >= 0;
}

// Known are those of published tokenizers, and a few more: Replace, Strip and Metaspace of each token, one step that makes
// characters of bytes, and where tokens are joined nothing behind it that looks at more than the beginning.
Decoder::Parts Decoder::parts_of_steps() const {
  Parts found = Parts::anywhere;
  bool joined = false, of_bytes = false, letters = false, first_differs = false;
  for (const Step &step : steps_) {
    switch (step.kind) {
      case Step::Kind::fuse:
        joined = true;
        break;
      case Step::Kind::byte_level:
      case Step::Kind::byte_tokens:
        if (joined || of_bytes || first_differs) return Parts::none;
        of_bytes = true;
        joined = letters = step.kind == Step::Kind::byte_level;
        break;
      case Step::Kind::replace:
        if (joined) return Parts::none;
        break;
      case Step::Kind::metaspace:
        if (joined) return Parts::none;
        first_differs = true;
        found = Parts::behind;
        break;
      case Step::Kind::strip: {
        // What is left of a text does not begin with it, nor with half of it.
        std::size_t end = 0;
        const bool one = !step.what.empty() && (next_code_point(step.what, end), end == step.what.size());
        if (!joined) break;
        if (letters || step.right > 0 || !one) return Parts::none;
        found = Parts::behind;
        break;
      }
    }
  }
  return found;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  const auto size_of = [&tokens] {
    std::size_t nbytes = 0;
    for (const std::string &token : tokens) nbytes += token.size();
    return nbytes;
  };
  const std::size_t before = size_of();
  for (const Step &step : steps_) {
    apply(step, tokens, before);
    check_growth(before, size_of());
  }
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && joins_with_blanks_) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace edgekit
