// What of a file is compared at once: all of it, or of a flash file its header and each part of its runs.
#ifndef EDGEKIT_FETCH_PIECES_H
#define EDGEKIT_FETCH_PIECES_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fetch/byte_ranges.h"
#include "flash_layout.h"

namespace edgekit {

struct PieceOfFile {
  ByteRange range;
  bool has_digest = true;  // false: of bytes between runs, which the digest of the whole file alone covers
  std::uint64_t xxh3 = 0;
  std::string run;  // that it is of; empty: none
};

// Behind the header of a flash file, in the order of the file, without holes. `start` is its header, `size` that of the file.
// `where` names it in messages. Throws Error (EK_MALFORMED_FILE, EK_TRUNCATED_FILE, EK_UNSUPPORTED_VERSION).
std::vector<PieceOfFile> pieces_behind_header(std::string_view start, std::uint64_t size, const std::string &where);

}  // namespace edgekit

#endif  // EDGEKIT_FETCH_PIECES_H
