// The flash file behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_FLASH_H
#define EDGEKIT_ABI_FLASH_H

#include <cstdint>
#include <memory>

#include "edgekit.h"
#include "flash_file.h"
#include "owner_process.h"

struct ek_flash_file {
  std::unique_ptr<edgekit::FlashFile> file;
  edgekit::OwnerProcess process{};
};

namespace edgekit {

// What it points at belongs to the run.
inline ek_flash_tensor flash_tensor_of(const Tensor &own) {
  ek_flash_tensor made{};
  made.struct_size = sizeof made;
  made.rank = static_cast<std::uint32_t>(own.shape.size());
  made.name = own.name.c_str();
  made.dtype = own.dtype.c_str();
  made.shape = own.shape.data();
  made.offset = own.offset;
  made.bytes = own.bytes;
  return made;
}

}  // namespace edgekit

#endif  // EDGEKIT_ABI_FLASH_H
