// Flash files of format "2" (see flashload/packed.py): runs are made of rows of the tensors that the file names.
#ifndef EDGEKIT_FLASH_PACKED_H
#define EDGEKIT_FLASH_PACKED_H

#include <cstdint>
#include <string>
#include <vector>

#include "flash_layout.h"

namespace edgekit {

// A tensor of the header with its place among the data of the file, from `begin` to `end`.
struct FlashSpan {
  std::uint64_t begin = 0, end = 0;
  Tensor tensor;
};

// The runs and the size of a packed file: its tensors sorted by position, and the text of edgekit.runs. Throws Error
// (EK_MALFORMED_FILE, EK_TRUNCATED_FILE).
FlashLayout parse_packed(const std::string &runs_text, const std::vector<FlashSpan> &stored, std::uint64_t data_start,
                         std::uint64_t file_size, const std::string &where);

// Checks that a name can be part of messages. Throws Error (EK_MALFORMED_FILE).
void check_flash_name(const char *kind, const std::string &name, const std::string &where);

// A digest as headers have it, 16 lower-case hex digits. Throws Error (EK_MALFORMED_FILE).
std::uint64_t parse_flash_digest(const std::string &run, const std::string &text, const std::string &where);

}  // namespace edgekit

#endif  // EDGEKIT_FLASH_PACKED_H
