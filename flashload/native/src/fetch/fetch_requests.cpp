// What a fetch asks for, and what comes.
#include <algorithm>

#include "fetch/fetch.h"

namespace edgekit {
namespace {

// Bytes of a request that show a source which works.
constexpr std::uint64_t kMuch = 64 * 1024;

}  // namespace

std::optional<FetchRequest> Fetch::find_request() {
  if (std::optional<FetchRequest> again = find_again()) return again;
  while (wanting_ < files_.size() && files_[wanting_].done) ++wanting_;
  for (std::size_t i = wanting_; i < files_.size(); ++i) {
    File &file = files_[i];
    if (!file.opened) open_file(file);
    if (!file.wanted.empty()) {
      const std::optional<std::size_t> source = sources_.pick(0);
      if (!source) return std::nullopt;
      ByteRanges lacking;
      if (sources_.whole_only(*source)) {
        lacking = std::move(file.wanted);
        file.wanted.clear();
        // It may have learned about ranges since: then they begin with what is wanted.
        const ByteRange asked{lacking.first(UINT64_MAX).begin, lacking.end()};
        return open_request(&file, *source, asked, std::move(lacking), nullptr);
      }
      const ByteRange asked = file.wanted.first(options_.request_bytes);
      file.wanted.remove(asked);
      lacking.add(asked);
      return open_request(&file, *source, asked, std::move(lacking), nullptr);
    }
    // What is here already comes first, and a flash file's header before its runs.
    while (file.unknown < file.pieces.size() && file.pieces[file.unknown].state != PieceState::unknown) ++file.unknown;
    if (file.unknown < file.pieces.size()) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<FetchRequest> Fetch::find_again() {
  for (auto at = again_.begin(); at != again_.end(); ++at) {
    std::optional<std::size_t> source = at->source;
    if (source && sources_.is_dropped(*source)) {  // all of it from another one
      source.reset();
      at->lacking.add(at->piece->of.range);
      at->file->arrived.remove(at->piece->of.range);
      at->piece->from = 0;
    }
    if (!source) source = sources_.pick(at->avoided);
    if (!source) source = sources_.pick(0);
    if (!source || sources_.is_busy(*source)) continue;
    const Again chosen = std::move(*at);
    again_.erase(at);
    // In one request: what it lacks has no holes, as one source has given it from its beginning.
    const ByteRange asked = chosen.lacking.first(UINT64_MAX);
    return open_request(chosen.file, *source, asked, chosen.lacking, chosen.piece);
  }
  return std::nullopt;
}

FetchRequest Fetch::open_request(File *file, std::size_t source, ByteRange asked, ByteRanges lacking, Piece *again) {
  FetchRequest request;
  request.id = ++last_id_;
  request.source = source;
  request.range = asked;
  request.wait_milliseconds = sources_.wait_milliseconds(source);
  if (file == nullptr) {
    request.name = asked_names_.insert(index_name()).first->c_str();
  } else {
    request.name = file->remote.c_str();
    request.size = file->size;
  }
  Open &open = open_[request.id];
  open.file = file;
  open.source = source;
  open.asked = asked;
  open.at = asked.begin;
  open.lacking = std::move(lacking);
  open.again = again;
  sources_.asked(source);
  return request;
}

Fetch::Open *Fetch::find_open(std::uint64_t id, Lock &lock) {
  while (true) {
    const auto found = open_.find(id);
    if (found == open_.end()) return nullptr;
    if (!found->second.writing) return &found->second;
    written_.wait(lock);
  }
}

bool Fetch::take_bytes(std::uint64_t id, const char *data, std::size_t size, Lock &lock) {
  Open *const found = find_open(id, lock);
  if (found == nullptr) return false;
  Open &open = *found;
  progress_.fetched += size;
  if (open.file == nullptr) {
    const std::uint64_t most = index_ == Index::set ? kMaxBundleSetBytes : kMaxManifestBytes;
    if (open.text.size() + size > most) {
      const std::size_t source = open.source;
      const std::string why = "gave more than " + std::to_string(most) + " bytes for " + index_name();
      close(id, why);
      sources_.drop(source, why);
      return false;
    }
    open.text.append(data, size);
    return true;
  }
  return open.from_start ? take_from_start(id, data, size, lock) : take_of_file(id, data, size, lock);
}

// A request for a part was answered with the file from its beginning. This answer is used, for all that is wanted of the file;
// further ones would only bring its beginning again, so those that are open are given up, and no others asked for meanwhile.
void Fetch::take_as_whole(std::uint64_t id, Lock &lock) {
  const std::size_t source = open_.at(id).source;
  sources_.set_whole_only(source, true);
  Open &open = open_.at(id);
  open.from_start = true;
  open.asked = {0, open.file->size};
  open.at = 0;
  std::vector<std::uint64_t> others;
  for (const auto &[other, each] : open_) {
    const bool whole_file = each.file == nullptr || each.asked.bytes() == each.file->size;
    if (each.source == source && !whole_file && !each.is_part) others.push_back(other);
  }
  for (const std::uint64_t other : others) {
    if (find_open(other, lock) != nullptr) close(other, "");
  }
}

bool Fetch::take_from_start(std::uint64_t id, const char *data, std::size_t size, Lock &lock) {
  while (Open *const open = find_open(id, lock)) {
    File &file = *open->file;
    const std::uint64_t at = open->at;
    if (open->again == nullptr) {  // that piece alone comes from one source
      const ByteRange ahead{at, file.size};
      file.wanted.visit(ahead, [&](ByteRange part) { open->lacking.add(part); });
      file.wanted.remove(ahead);
      // What may be here already must not have gone by when it turns out that it is not.
      while (file.unknown < file.pieces.size() && file.pieces[file.unknown].state != PieceState::unknown) ++file.unknown;
      if (file.unknown < file.pieces.size() &&
          (open->lacking.empty() || file.pieces[file.unknown].of.range.begin < at + size)) {
        if (working_) {
          written_.wait(lock);
        } else {
          working_ = true;
          examine(file, file.pieces[file.unknown], lock);
          working_ = false;
          written_.notify_all();
        }
        require_no_failure();
        continue;
      }
    }
    if (open->lacking.empty()) {
      close(id, "");
      return false;
    }
    if (size == 0) return true;
    // Not beyond: of a flash file nobody knows what is wanted behind the header before that is whole.
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(size, open->lacking.end() - at));
    take_of_file(id, data, count, lock);
    data += count;
    size -= count;
  }
  return false;
}

bool Fetch::take_of_file(std::uint64_t id, const char *data, std::size_t size, Lock &lock) {
  Open &open = *find_open(id, lock);
  File &file = *open.file;
  const ByteRange come{open.at, open.at + std::min<std::uint64_t>(size, open.asked.end - open.at)};
  ByteRanges of_use;
  open.lacking.visit(come, [&of_use](ByteRange part) { of_use.add(part); });
  const std::shared_ptr<ArrivingFile> to = file.file;
  open.writing = true;
  lock.unlock();
  const auto written = [&] {
    lock.lock();
    open.writing = false;
    written_.notify_all();
  };
  try {
    of_use.visit(come, [&](ByteRange part) {
      to->write(data + (part.begin - come.begin), static_cast<std::size_t>(part.bytes()), part.begin);
    });
  } catch (...) {
    written();
    throw;
  }
  open.at = come.end;
  written();
  std::vector<Piece *> complete;
  of_use.visit(come, [&](ByteRange part) {
    open.lacking.remove(part);
    file.arrived.add(part);
    for (std::size_t i = piece_at(file, part.begin); i < file.pieces.size() && file.pieces[i].of.range.begin < part.end; ++i) {
      Piece &piece = file.pieces[i];
      piece.from |= SourceMask{1} << open.source;
      if (piece.state != PieceState::missing || !file.arrived.holds(piece.of.range)) continue;
      piece.state = PieceState::comparing;
      complete.push_back(&piece);
    }
  });
  open.gave += of_use.bytes();
  const bool over = open.lacking.empty();
  if (over || open.gave >= kMuch) sources_.gave(open.source);
  const bool goes_on = open.from_start;  // what is complete may show that more is wanted
  if (over && !goes_on) close(id, "");
  for (Piece *piece : complete) compare_arrived(file, *piece, lock);
  return !over;
}

void Fetch::close(std::uint64_t id, const std::string &why) {
  const auto found = open_.find(id);
  Open &open = found->second;
  sources_.ended(open.source);
  const bool lacks = open.file == nullptr || !open.lacking.empty();
  // One that gives, and is cut, is asked for the rest at once.
  if (lacks && !why.empty() && open.gave < kMuch) sources_.failed(open.source, why);
  if (open.file != nullptr && lacks) {
    if (open.again != nullptr) {
      Again again;
      again.file = open.file;
      again.piece = open.again;
      again.source = open.source;
      again.lacking = std::move(open.lacking);
      again_.push_back(std::move(again));
    } else {
      open.file->wanted.add(open.lacking);
    }
  }
  open_.erase(found);
}

}  // namespace edgekit
