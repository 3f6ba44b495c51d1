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
        const ByteRange asked{0, lacking.end()};
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
    if (!source) continue;
    const Again chosen = std::move(*at);
    again_.erase(at);
    const bool whole = sources_.whole_only(*source);
    // In one request: what it lacks has no holes, as one source has given it from its beginning.
    const ByteRange asked = whole ? ByteRange{0, chosen.lacking.end()} : chosen.lacking.first(UINT64_MAX);
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
  written();
  open.at = come.end;
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
  if (over) close(id, "");
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
