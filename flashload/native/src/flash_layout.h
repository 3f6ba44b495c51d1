// The header of a flash file (see flashload/format.py): what lies where, with everything checked that a read relies on.
// It is parsed here alone; Python writes headers and reads them through edgekit.h.
#ifndef EDGEKIT_FLASH_LAYOUT_H
#define EDGEKIT_FLASH_LAYOUT_H

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace edgekit {

constexpr std::uint64_t kRunAlignment = 16 * 1024;
constexpr std::uint64_t kTensorAlignment = 64;

struct Tensor {
  // Without the run's name and its dot when it starts with them; in full otherwise, and when nothing or the full name
  // of another tensor of the run would be left. Unique within the run.
  std::string name;
  // In the whole file: as its header has it; in a packed file the run's name, a dot, and `name`.
  std::string full_name;
  std::string dtype;  // as safetensors spells it
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // within the run
  std::uint64_t bytes = 0;
};

// Bytes of a run that follow each other: those from `offset` of the file on are those at `place` of the run. Both are
// at the same place within a page of kRunAlignment.
struct FlashSegment {
  std::uint64_t offset = 0, place = 0, bytes = 0;
  std::uint64_t xxh3 = 0;
};

// Tensors that are read together: `length` bytes of memory. Without `segments` they are as many bytes from `offset` of
// the file on, padding included, and `xxh3` is theirs.
struct Run {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t xxh3 = 0;
  std::vector<Tensor> tensors;
  std::vector<FlashSegment> segments;

  const Tensor *find(std::string_view tensor) const noexcept;  // null when there is none
  std::vector<FlashSegment> parts() const;                     // in the order of the tensors
};

struct FlashLayout {
  bool packed = false;    // tensors are aligned to their elements only, and runs lie in segments
  std::vector<Run> runs;  // in the order of the file; of a packed one, of its list
  std::uint64_t size = 0;
  std::uint64_t data_start = 0;  // where the header ends
  std::string plan;              // what the writer meant to write, see flashload/format.py; empty when it does not say
  std::string where;             // the path, for messages
  std::unordered_map<std::string, std::size_t> index;

  // Throws Error (EK_INVALID_ARGUMENT) for a name that is not there.
  const Run &run(const std::string &name) const;
};

// What the manifest says of the first bytes of the file, up to its first run.
struct HeaderDigest {
  std::uint64_t size = 0;
  std::uint64_t xxh3 = 0;
};

// Of 8 length bytes and the header.
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{32} << 20;

// 64 bits as 16 lower-case hex digits; false for other text. And back.
bool parse_hex64(std::string_view text, std::uint64_t &value) noexcept;
std::string hex64(std::uint64_t value);

// Length of the JSON header from the first bytes (64, or all of a shorter file). Throws Error (EK_MALFORMED_FILE,
// EK_TRUNCATED_FILE); `where` is the path, for messages.
std::uint64_t flash_header_length(std::string_view prefix, std::uint64_t file_size, const std::string &where);

// The layout of a header without its 8 length bytes. Throws Error (EK_MALFORMED_FILE, EK_TRUNCATED_FILE,
// EK_UNSUPPORTED_VERSION).
FlashLayout parse_flash_header(std::string_view header, std::uint64_t file_size, const std::string &where);

}  // namespace edgekit

#endif  // EDGEKIT_FLASH_LAYOUT_H
