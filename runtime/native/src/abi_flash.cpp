// The ek_flash_ functions of edgekit.h, and ek_process_bytes.
#include <cstdint>
#include <memory>

#include "abi_flash.h"
#include "abi_guard.h"
#include "edgekit.h"
#include "error.h"
#include "session/process.h"

using namespace edgekit;

namespace {

// Throws Error (EK_INVALID_ARGUMENT) for null, Error (EK_INVALID_STATE) in a child of fork().
FlashFile &opened(ek_flash_file *file) {
  if (file == nullptr) fail(EK_INVALID_ARGUMENT, "the flash file is null; open it with ek_flash_open");
  file->process.check("the flash file");
  return *file->file;
}

// Throws Error (EK_INVALID_ARGUMENT) for a name that is not there.
const Run &find_run(const FlashFile &file, const char *name) {
  if (name == nullptr) fail(EK_INVALID_ARGUMENT, file.path(), ": a run without a name was asked for");
  return file.layout().run(name);
}

}  // namespace

uint64_t ek_process_bytes(void) noexcept { return process_resident_bytes(); }

ek_status ek_flash_open(const char *path, ek_flash_file **file) noexcept {
  return guarded([&] {
    if (file == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the flash file; give its address");
    *file = nullptr;
    if (path == nullptr) fail(EK_INVALID_ARGUMENT, "the path of the flash file is null");
    *file = new ek_flash_file{std::make_unique<FlashFile>(path, FlashOptions{})};
  });
}

void ek_flash_close(ek_flash_file *file) noexcept {
  if (file != nullptr && file->process.here()) delete file;  // as ek_session_close
}

ek_status ek_flash_find_run(ek_flash_file *file, const char *run, uint64_t *bytes, int64_t *tensors) noexcept {
  return guarded([&] {
    const Run &found = find_run(opened(file), run);
    if (bytes != nullptr) *bytes = found.length;
    if (tensors != nullptr) *tensors = static_cast<int64_t>(found.tensors.size());
  });
}

ek_status ek_flash_get_tensor(ek_flash_file *file, const char *run, int64_t index, ek_flash_tensor *tensor) noexcept {
  return guarded([&] {
    const FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    if (index < 0 || static_cast<std::uint64_t>(index) >= found.tensors.size()) {
      fail(EK_INVALID_ARGUMENT, flash.path(), ": run ", found.name, " has ", found.tensors.size(),
           " tensors, number ", index, " was asked for");
    }
    const Tensor &own = found.tensors[static_cast<std::size_t>(index)];
    ek_flash_tensor made{};
    made.rank = static_cast<std::uint32_t>(own.shape.size());
    made.name = own.name.c_str();
    made.dtype = own.dtype.c_str();
    made.shape = own.shape.data();
    made.offset = own.offset;
    made.bytes = own.bytes;
    write_struct(tensor, made, "tensor");
  });
}

ek_status ek_flash_read_run(ek_flash_file *file, const char *run, void *buffer, uint64_t size) noexcept {
  return guarded([&] {
    FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    if (buffer == nullptr || size < found.length) {
      fail(EK_INVALID_ARGUMENT, flash.path(), ": run ", found.name, " has ", found.length, " bytes, the buffer ",
           buffer == nullptr ? 0 : size);
    }
    flash.read(found, static_cast<std::uint8_t *>(buffer));
  });
}

ek_status ek_flash_read_part(ek_flash_file *file, const char *run, uint64_t offset, uint64_t size,
                             void *out) noexcept {
  return guarded([&] {
    FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    if (offset > found.length || size > found.length - offset || (out == nullptr && size != 0)) {
      fail(EK_INVALID_ARGUMENT, flash.path(), ": run ", found.name, " has ", found.length, " bytes; ", size, " at ",
           offset, " were asked for", out == nullptr ? " without a place for them" : "");
    }
    flash.read_part(found, offset, static_cast<std::size_t>(size), out);
  });
}
