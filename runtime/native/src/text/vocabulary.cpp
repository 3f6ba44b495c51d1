#include "text/vocabulary.h"

namespace edgekit {

bool Vocabulary::put(Id id, std::string_view text) {
  if (id >= kMostIds || has(id)) return false;
  if (id >= places_.size()) places_.resize(std::size_t{id} + 1);
  places_[id] = {static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(text.size()), true};
  texts_.append(text);
  ++count_;
  return true;
}

bool Vocabulary::settle() {
  std::size_t slots = 4;
  while (slots < 2 * count_) slots *= 2;
  slots_.assign(slots, kNone);
  for (Id id = 0; id < size(); ++id) {
    if (!has(id)) continue;
    const std::size_t at = slot(text(id));
    if (slots_[at] != kNone) return false;
    slots_[at] = id;
  }
  return true;
}

// Where the text is, or would be.
std::size_t Vocabulary::slot(std::string_view wanted) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = key_.of(wanted) & mask;
  while (slots_[at] != kNone && text(slots_[at]) != wanted) at = (at + 1) & mask;
  return at;
}

Vocabulary::Id Vocabulary::find(std::string_view wanted) const noexcept {
  return slots_.empty() ? kNone : slots_[slot(wanted)];
}

}  // namespace edgekit
