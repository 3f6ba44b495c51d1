#include "portable_names.h"

#include <algorithm>
#include <iterator>

namespace edgekit {
namespace {

constexpr std::size_t kMostPartBytes = 255;
constexpr std::size_t kMostPathBytes = 1024;

bool is_plain(char letter) noexcept {
  return letter >= ' ' && letter <= '~' && std::string_view("<>:\"\\|?*").find(letter) == std::string_view::npos;
}

char small(char letter) noexcept { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter; }

bool is_word(std::string_view text, std::string_view small_word) noexcept {
  return text.size() == small_word.size() &&
         std::equal(text.begin(), text.end(), small_word.begin(), [](char one, char other) { return small(one) == other; });
}

// Windows takes such a name for a device in any folder, with anything behind a dot or a colon.
bool is_device(std::string_view part) noexcept {
  std::string_view stem = part.substr(0, part.find('.'));
  while (!stem.empty() && stem.back() == ' ') stem.remove_suffix(1);
  constexpr std::string_view kDevices[] = {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"};
  if (std::any_of(std::begin(kDevices), std::end(kDevices), [stem](std::string_view each) { return is_word(stem, each); })) {
    return true;
  }
  const bool is_port = stem.size() == 4 && (is_word(stem.substr(0, 3), "com") || is_word(stem.substr(0, 3), "lpt"));
  return is_port && stem[3] >= '0' && stem[3] <= '9';
}

std::string_view fault_of_part(std::string_view part) noexcept {
  if (part.empty() || part == "." || part == "..") return "it has empty parts or dots between its slashes";
  if (!std::all_of(part.begin(), part.end(), is_plain)) {
    return "it has other letters than those of ASCII, or one of <>:\"\\|?*";
  }
  if (part.back() == '.' || part.back() == ' ') return "a part of it ends with a dot or a blank";
  if (part.size() > kMostPartBytes) return "a part of it has more than 255 letters";
  return is_device(part) ? "Windows takes it for a device" : "";
}

}  // namespace

std::string_view portable_fault(std::string_view path) noexcept {
  if (path.size() > kMostPathBytes) return "it has more than 1024 letters";
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view fault = fault_of_part(path.substr(0, slash));
    if (!fault.empty() || slash == std::string_view::npos) return fault;
    path.remove_prefix(slash + 1);
  }
}

std::string small_letters(std::string_view text) {
  std::string made(text);
  std::transform(made.begin(), made.end(), made.begin(), small);
  return made;
}

std::string PortableNames::add(const std::string &path) {
  std::string_view rest = path;
  std::size_t folder = 0;
  while (true) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    const bool is_file = slash == std::string_view::npos;
    const auto [place, is_new] = places_.try_emplace({folder, small_letters(part)}, parts_.size() + 1);
    folder = place->second;
    if (is_new) {
      parts_.push_back({std::string(part), path, is_file});
    } else {
      const Part &before = parts_[folder - 1];
      if (is_file || before.is_file || before.name != part) return before.first;
    }
    if (is_file) return "";
    rest.remove_prefix(slash + 1);
  }
}

}  // namespace edgekit
