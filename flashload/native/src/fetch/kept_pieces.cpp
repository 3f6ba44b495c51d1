#include "fetch/kept_pieces.h"

#include <filesystem>

#include "bundle_folder.h"
#include "error.h"
#include "fetch/pieces.h"
#include "xxh3.h"

namespace edgekit {

KeptPieces::KeptPieces(const std::string &folder) {
  try {
    const BundleFolder bundle(folder);
    const std::filesystem::path root = std::filesystem::u8path(folder);
    const auto path_of = [&root](const std::string &name) { return (root / std::filesystem::u8path(name)).u8string(); };
    for (const BundleFile &file : bundle.files()) add_file(path_of(file.name), file.size, file.xxh3);
    add_weights(path_of(bundle.weights().name), bundle.weights());
  } catch (const Error &) {
    // Nothing else is known of it.
  }
}

void KeptPieces::add_file(const std::string &path, std::uint64_t size, std::uint64_t xxh3) {
  places_.emplace(Key{size, xxh3}, KeptPiece{paths_.size(), 0});
  paths_.push_back(path);
}

void KeptPieces::add_weights(const std::string &path, const WeightsFile &weights) {
  BlockFile file(path, SystemFile::open(path), false);
  std::string start(static_cast<std::size_t>(weights.header.size), '\0');
  file.read(start.data(), start.size(), 0, true);
  if (xxh3_64(start.data(), start.size()) != weights.header.xxh3) return;
  for (const PieceOfFile &piece : pieces_behind_header(start, file.size(), path)) {
    if (piece.has_digest) places_.emplace(Key{piece.range.bytes(), piece.xxh3}, KeptPiece{paths_.size(), piece.range.begin});
  }
  places_.emplace(Key{weights.header.size, weights.header.xxh3}, KeptPiece{paths_.size(), 0});
  paths_.push_back(path);
}

const KeptPiece *KeptPieces::find(std::uint64_t size, std::uint64_t xxh3) const {
  const auto found = places_.find(Key{size, xxh3});
  return found == places_.end() ? nullptr : &found->second;
}

void KeptPieces::read(const KeptPiece &piece, std::uint64_t offset, void *out, std::size_t size) const {
  if (open_ == nullptr || open_file_ != piece.file) {
    const std::string &path = paths_[piece.file];
    open_ = std::make_unique<BlockFile>(path, SystemFile::open(path), false);
    open_file_ = piece.file;
  }
  open_->read(out, size, piece.offset + offset, true);
}

}  // namespace edgekit
