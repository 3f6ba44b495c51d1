#include "text/bpe.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "utf8.h"

namespace edgekit {
namespace {

std::size_t table_size(std::size_t entries) {
  std::size_t slots = 4;
  while (slots <= 2 * entries) slots *= 2;
  return slots;
}

// Two symbols that can be joined: what was learned first goes first, then what stands first.
struct Candidate {
  std::uint32_t rank;
  std::int32_t at;
  Bpe::Id whole;
};

struct Later {
  bool operator()(const Candidate &a, const Candidate &b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

}  // namespace

std::string byte_token(unsigned byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

Bpe::Bpe(Vocabulary vocabulary, bool of_bytes, bool whole_words, Unknown unknown, std::size_t most_merges)
    : vocabulary_(std::move(vocabulary)),
      of_bytes_(of_bytes),
      whole_words_(whole_words),
      unknown_(unknown),
      merges_(table_size(most_merges)) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    byte_ids_[byte] = of_bytes ? vocabulary_.find({&letter, 1}) : vocabulary_.find(byte_token(byte));
  }
}

bool Bpe::add_merge(Id left, Id right, Id whole) {
  Merge &merge = merges_[slot(left, right)];
  if (merge.left != Vocabulary::kNone) return false;
  merge = {left, right, count_++, whole};
  return true;
}

bool Bpe::has_all_bytes() const noexcept {
  return std::find(byte_ids_.begin(), byte_ids_.end(), Vocabulary::kNone) == byte_ids_.end();
}

// Where the merge of the pair is, or would be.
std::size_t Bpe::slot(Id left, Id right) const noexcept {
  const std::size_t mask = merges_.size() - 1;
  std::size_t at = key_.of(left, right) & mask;
  while (merges_[at].left != Vocabulary::kNone && (merges_[at].left != left || merges_[at].right != right)) {
    at = (at + 1) & mask;
  }
  return at;
}

const Bpe::Merge *Bpe::find(Id left, Id right) const noexcept {
  const Merge &merge = merges_[slot(left, right)];
  return merge.left == Vocabulary::kNone ? nullptr : &merge;
}

void Bpe::encode(std::string_view word, std::vector<Id> &out) const {
  if (whole_words_ || word.size() == 1) {
    const Id whole = vocabulary_.find(word);
    if (whole != Vocabulary::kNone) {
      out.push_back(whole);
      return;
    }
  }
  std::vector<Symbol> symbols;
  begin(word, symbols);
  merge(symbols);
  for (const Symbol &symbol : symbols) {
    if (symbol.there) out.push_back(symbol.id);
  }
}

void Bpe::begin(std::string_view word, std::vector<Symbol> &symbols) const {
  const auto add = [&symbols](Id id) {
    const auto count = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, count - 1, count + 1, true});
  };
  symbols.reserve(word.size());
  bool unknown = false;  // one is to be added: the library does it in front of the next that is no byte token
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t start = at;
    Id id;
    if (of_bytes_) {
      id = byte_ids_[static_cast<unsigned char>(word[at++])];
    } else {
      next_code_point(word, at);
      id = vocabulary_.find(word.substr(start, at - start));
    }
    if (id != Vocabulary::kNone) {
      if (unknown) add(unknown_.id);
      unknown = false;
      add(id);
      continue;
    }
    const std::string_view bytes = word.substr(start, at - start);
    if (!of_bytes_ && unknown_.bytes && std::all_of(bytes.begin(), bytes.end(), [this](char byte) {
          return byte_ids_[static_cast<unsigned char>(byte)] != Vocabulary::kNone;
        })) {
      for (const char byte : bytes) add(byte_ids_[static_cast<unsigned char>(byte)]);
    } else if (unknown_.id != Vocabulary::kNone) {
      if (unknown && !unknown_.fused) add(unknown_.id);
      unknown = true;
    }
  }
  if (unknown) add(unknown_.id);
  if (!symbols.empty()) symbols.back().behind = -1;
}

void Bpe::merge(std::vector<Symbol> &symbols) const {
  std::vector<Candidate> heap;
  const auto consider = [&](std::int32_t at) {
    const Symbol &left = symbols[static_cast<std::size_t>(at)];
    const Merge *found = find(left.id, symbols[static_cast<std::size_t>(left.behind)].id);
    if (found != nullptr) heap.push_back({found->rank, at, found->whole});
    return found != nullptr;
  };
  for (std::size_t at = 0; at + 1 < symbols.size(); ++at) consider(static_cast<std::int32_t>(at));
  std::make_heap(heap.begin(), heap.end(), Later());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol &left = symbols[static_cast<std::size_t>(best.at)];
    if (!left.there || left.behind < 0) continue;
    Symbol &right = symbols[static_cast<std::size_t>(left.behind)];
    const Merge *now = find(left.id, right.id);
    if (now == nullptr || now->whole != best.whole) continue;  // one of them was joined since
    left.id = best.whole;
    left.behind = right.behind;
    right.there = false;
    if (left.behind >= 0) {
      symbols[static_cast<std::size_t>(left.behind)].before = best.at;
      if (consider(best.at)) std::push_heap(heap.begin(), heap.end(), Later());
    }
    if (left.before >= 0 && consider(left.before)) std::push_heap(heap.begin(), heap.end(), Later());
  }
}

}  // namespace edgekit
