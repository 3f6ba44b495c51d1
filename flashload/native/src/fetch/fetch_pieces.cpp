// What of a bundle is here, and is what it should be.
#include <algorithm>
#include <cstddef>

#include "fetch/fetch.h"
#include "printable.h"
#include "xxh3.h"

namespace edgekit {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;
// Between two looks at what else there is to do.
constexpr std::uint64_t kWorkBytes = std::uint64_t{32} << 20;
// Of one piece, from every source.
constexpr int kMostDamagedPiece = 3;

// Of bytes that are read part by part; `sha256` may be null.
template <typename Read>
std::uint64_t digest_of(std::uint64_t size, Sha256 *sha256, Read &&read) {
  Xxh3 digest;
  std::vector<std::uint8_t> part(static_cast<std::size_t>(std::min(size, kPartBytes)));
  for (std::uint64_t at = 0; at < size; at += part.size()) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(size - at, part.size()));
    read(part.data(), count, at);
    digest.update(part.data(), count);
    if (sha256 != nullptr) sha256->update(part.data(), count);
  }
  return digest.digest();
}

}  // namespace

std::size_t Fetch::piece_at(const File &file, std::uint64_t offset) {
  const auto behind = std::upper_bound(file.pieces.begin(), file.pieces.end(), offset,
                                       [](std::uint64_t at, const Piece &piece) { return at < piece.of.range.begin; });
  return static_cast<std::size_t>(behind - file.pieces.begin()) - 1;  // the first begins at 0
}

void Fetch::open_file(File &file) {
  file.file = std::make_shared<ArrivingFile>(staging_.place(file.name), file.size);
  file.opened = true;
  if (file.size == 0) {
    file.file->sync();
    close_file(file, Sha256().hex());
    return;
  }
  Piece &first = file.pieces.emplace_back();
  first.of.range = {0, file.header == 0 ? file.size : file.header};
  first.of.xxh3 = file.xxh3;
  look_for_pieces(file, 0);
}

// What nothing is here of is missing; of the others `work` finds out.
void Fetch::look_for_pieces(File &file, std::size_t first) {
  file.written = file.file->written();
  for (std::size_t i = first; i < file.pieces.size(); ++i) {
    Piece &piece = file.pieces[i];
    const PieceOfFile &of = piece.of;
    if (!of.has_digest) file.written.remove(of.range);
    const bool may_be_here =
        of.has_digest && (file.written.overlaps(of.range) || kept_.find(of.range.bytes(), of.xxh3) != nullptr);
    if (!may_be_here) want(file, piece);
  }
}

bool Fetch::work(Lock &lock) {
  if (working_) return false;
  working_ = true;  // after an error it stays so: nothing is looked at any more
  std::uint64_t done = 0;
  for (std::size_t i = wanting_; i < files_.size() && done < kWorkBytes; ++i) {
    File &file = files_[i];
    if (!file.opened) break;
    for (; file.unknown < file.pieces.size() && done < kWorkBytes; ++file.unknown) {
      Piece &piece = file.pieces[file.unknown];
      if (piece.state != PieceState::unknown) continue;
      done += piece.of.range.bytes();
      examine(file, piece, lock);
      if (file.done) break;
    }
    if (!file.done && done < kWorkBytes && roll_hash(file, kWorkBytes, lock)) done += kWorkBytes;
  }
  working_ = false;
  written_.notify_all();
  return done > 0;
}

void Fetch::examine(File &file, Piece &piece, Lock &lock) {
  const PieceOfFile &of = piece.of;
  const bool written = file.written.holds(of.range);
  const KeptPiece *kept = kept_.find(of.range.bytes(), of.xxh3);
  const std::shared_ptr<ArrivingFile> own = file.file;
  Sha256 sha256;
  Sha256 *whole_file = file.header == 0 ? &sha256 : nullptr;
  bool found = false, copied = false;
  lock.unlock();
  if (written) {
    found = digest_of(of.range.bytes(), whole_file, [&](void *out, std::size_t size, std::uint64_t at) {
              own->read(out, size, of.range.begin + at);
            }) == of.xxh3;
  }
  if (!found && kept != nullptr) {
    sha256 = Sha256();
    try {
      copied = digest_of(of.range.bytes(), whole_file, [&](void *out, std::size_t size, std::uint64_t at) {
                 kept_.read(*kept, at, out, size);
                 own->write(out, size, of.range.begin + at);
               }) == of.xxh3;
    } catch (const Error &error) {
      if (error.status() == EK_WRITE_FAILED) throw;  // else it comes anew
    }
  }
  if ((found || copied) && whole_file != nullptr) own->sync();
  lock.lock();
  if (found || copied) {
    (found ? progress_.found : progress_.copied) += of.range.bytes();
    file.written.remove(of.range);
    settle(file, piece, true, whole_file == nullptr ? "" : sha256.hex());
    return;
  }
  // All of it was there, and it is not it; or the copy has replaced what there was.
  if (written || kept != nullptr) file.written.remove(of.range);
  want(file, piece);
}

void Fetch::want(File &file, Piece &piece) {
  piece.state = PieceState::missing;
  file.wanted.add(piece.of.range);
  file.written.visit(piece.of.range, [&](ByteRange part) {
    file.wanted.remove(part);
    file.arrived.add(part);
    progress_.found += part.bytes();
    piece.has_found = true;
  });
}

void Fetch::compare_arrived(File &file, Piece &piece, Lock &lock) {
  const PieceOfFile &of = piece.of;
  const std::shared_ptr<ArrivingFile> own = file.file;
  Sha256 sha256;
  Sha256 *whole_file = file.header == 0 ? &sha256 : nullptr;
  bool same = true;
  lock.unlock();
  if (of.has_digest) {
    // What the disk has, and not what went by.
    same = digest_of(of.range.bytes(), whole_file, [&](void *out, std::size_t size, std::uint64_t at) {
             own->read(out, size, of.range.begin + at);
           }) == of.xxh3;
  }
  if (same && whole_file != nullptr) own->sync();
  lock.lock();
  const std::uint64_t bytes = of.range.bytes();
  settle(file, piece, same, whole_file == nullptr ? "" : sha256.hex());
  if (!file.done) roll_hash(file, 2 * bytes + kWorkBytes / 4, lock);
}

void Fetch::settle(File &file, Piece &piece, bool same, const std::string &sha256) {
  file.arrived.remove(piece.of.range);
  if (!same) {
    take_damaged(file, piece);
    return;
  }
  piece.state = PieceState::whole;
  progress_.whole += piece.of.range.bytes();
  if (file.header == 0) {
    close_file(file, sha256);
    return;
  }
  if (piece.of.range.begin != 0) return;
  std::string start(static_cast<std::size_t>(file.header), '\0');
  file.file->read(start.data(), start.size(), 0);
  for (PieceOfFile &of : pieces_behind_header(start, file.size, file.remote)) file.pieces.emplace_back().of = std::move(of);
  look_for_pieces(file, 1);
}

void Fetch::take_damaged(File &file, Piece &piece) {
  const std::string what = piece.of.run.empty() ? file.remote : "run " + in_quotes(piece.of.run) + " of " + file.remote;
  if (!piece.has_found) ++progress_.damaged;
  ++piece.damaged;
  piece.state = PieceState::missing;
  const bool of_one = (piece.from & (piece.from - 1)) == 0;
  if (of_one && !piece.has_found) {
    std::size_t source = 0;
    while ((piece.from >> source & 1) == 0) ++source;
    sources_.damaged(source, "gave other bytes of " + what + " than its manifest lists");
  }
  if (piece.damaged >= kMostDamagedPiece * static_cast<int>(std::max<std::size_t>(sources_.usable(), 1))) {
    fail(EK_CHECKSUM_MISMATCH, what, ": came ", piece.damaged, " times with other bytes than the manifest lists (",
         sources_.name(0), sources_.count() > 1 ? " and others" : "",
         "): the bundle there is damaged, or was replaced meanwhile; it has to be put there again");
  }
  Again again;
  again.file = &file;
  again.piece = &piece;
  again.avoided = piece.has_found ? 0 : piece.from;
  again.lacking.add(piece.of.range);
  again_.push_back(std::move(again));
  piece.from = 0;
  piece.has_found = false;
}

bool Fetch::roll_hash(File &file, std::uint64_t most, Lock &lock) {
  if (file.header == 0 || file.hashing || file.done) return false;
  while (file.whole_pieces < file.pieces.size() && file.pieces[file.whole_pieces].state == PieceState::whole) ++file.whole_pieces;
  const std::uint64_t whole = file.whole_pieces == 0 ? 0 : file.pieces[file.whole_pieces - 1].of.range.end;
  if (whole == file.hashed) return false;
  const std::uint64_t end = std::min(whole, file.hashed + most);
  file.hashing = true;
  lock.unlock();
  // An error in here ends the fetch, and `hashing` is never looked at again.
  std::vector<std::uint8_t> part(static_cast<std::size_t>(std::min(end - file.hashed, kPartBytes)));
  while (file.hashed < end) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(end - file.hashed, part.size()));
    file.file->read(part.data(), count, file.hashed);
    file.hash.update(part.data(), count);
    file.hashed += count;
  }
  if (end == file.size) file.file->sync();
  lock.lock();
  file.hashing = false;
  if (end == file.size) close_file(file, file.hash.hex());
  return true;
}

void Fetch::close_file(File &file, const std::string &sha256) {
  if (sha256 != file.sha256) {
    file.file->empty();
    fail(EK_CHECKSUM_MISMATCH, file.remote, ": has SHA-256 ", sha256, ", its manifest lists ", file.sha256,
         ", though its other digests agree: it was changed on purpose, or the manifest is wrong; take the bundle from "
         "somebody else");
  }
  file.done = true;
  file.file.reset();
  file.pieces.clear();
}

}  // namespace edgekit
