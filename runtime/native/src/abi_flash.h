// The flash file behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_FLASH_H
#define EDGEKIT_ABI_FLASH_H

#include <memory>

#include "edgekit.h"
#include "flash_file.h"
#include "owner_process.h"

struct ek_flash_file {
  std::unique_ptr<edgekit::FlashFile> file;
  edgekit::OwnerProcess process{};
};

#endif  // EDGEKIT_ABI_FLASH_H
