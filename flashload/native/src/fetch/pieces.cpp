#include "fetch/pieces.h"

#include <algorithm>

#include "error.h"

namespace edgekit {

std::vector<PieceOfFile> pieces_behind_header(std::string_view start, std::uint64_t size, const std::string &where) {
  constexpr std::size_t kLengthBytes = 8;
  const std::uint64_t length = flash_header_length(start.substr(0, 64), size, where);
  if (length + kLengthBytes > start.size()) fail(EK_MALFORMED_FILE, where, ": its header is longer than the manifest says");
  const FlashLayout layout = parse_flash_header(start.substr(kLengthBytes, static_cast<std::size_t>(length)), size, where);
  std::vector<PieceOfFile> pieces;
  for (const Run &run : layout.runs) {
    for (const FlashSegment &part : run.parts()) {
      pieces.push_back({{part.offset, part.offset + part.bytes}, true, part.xxh3, run.name});
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const PieceOfFile &one, const PieceOfFile &other) { return one.range.begin < other.range.begin; });
  std::vector<PieceOfFile> whole;
  std::uint64_t at = start.size();
  const auto fill_until = [&](std::uint64_t end) {
    if (at < end) whole.push_back({{at, end}, false, 0, ""});
  };
  for (PieceOfFile &piece : pieces) {
    if (piece.range.empty()) continue;
    if (piece.range.begin < at || piece.range.end > size) {
      fail(EK_MALFORMED_FILE, where, ": runs lie in each other or outside of it; export the bundle again");
    }
    fill_until(piece.range.begin);
    at = piece.range.end;
    whole.push_back(std::move(piece));
  }
  fill_until(size);
  return whole;
}

}  // namespace edgekit
