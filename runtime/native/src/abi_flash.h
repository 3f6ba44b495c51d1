// The flash file behind the C ABI's opaque pointer.
#ifndef EDGEKIT_ABI_FLASH_H
#define EDGEKIT_ABI_FLASH_H

#include <memory>

#include "edgekit.h"
#include "flash_file.h"

struct ek_flash_file {
  std::unique_ptr<edgekit::FlashFile> file;
};

#endif  // EDGEKIT_ABI_FLASH_H
