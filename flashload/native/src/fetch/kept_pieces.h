// What of a bundle that is here already can stand for parts of another one: those with the same size and digest.
#ifndef EDGEKIT_KEPT_PIECES_H
#define EDGEKIT_KEPT_PIECES_H

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "block_file.h"
#include "manifest_reader.h"

namespace edgekit {

struct KeptPiece {
  std::size_t file = 0;
  std::uint64_t offset = 0;
};

class KeptPieces {
 public:
  KeptPieces() = default;
  // Of the bundle in a folder. What of it cannot be read, or is not what it lists, is left out.
  explicit KeptPieces(const std::string &folder);

  // Null where there is none.
  const KeptPiece *find(std::uint64_t size, std::uint64_t xxh3) const;
  // Bytes from `offset` of it; for one thread at a time. Throws Error (EK_READ_FAILED and others).
  void read(const KeptPiece &piece, std::uint64_t offset, void *out, std::size_t size) const;

 private:
  struct Key {
    std::uint64_t size, xxh3;
    bool operator==(const Key &other) const noexcept { return size == other.size && xxh3 == other.xxh3; }
  };
  struct Hash {
    std::size_t operator()(const Key &key) const noexcept { return static_cast<std::size_t>(key.xxh3 ^ key.size); }
  };
  void add_file(const std::string &path, std::uint64_t size, std::uint64_t xxh3);
  void add_weights(const std::string &path, const WeightsFile &weights);

  std::vector<std::string> paths_;
  mutable std::unique_ptr<BlockFile> open_;  // that of the last read: there may be more files than descriptors
  mutable std::size_t open_file_ = 0;
  std::unordered_map<Key, KeptPiece, Hash> places_;
};

}  // namespace edgekit

#endif  // EDGEKIT_KEPT_PIECES_H
