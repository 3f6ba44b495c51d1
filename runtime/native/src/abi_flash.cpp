// The ek_flash_ functions of edgekit.h, and ek_process_bytes.
#include <cstdint>
#include <memory>
#include <vector>

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

// Throws Error (EK_INVALID_ARGUMENT) for a number that is not there.
template <typename Item>
const Item &numbered(const FlashFile &file, const Run &run, const std::vector<Item> &items, std::int64_t index,
                     const char *what) {
  if (index < 0 || static_cast<std::uint64_t>(index) >= items.size()) {
    fail(EK_INVALID_ARGUMENT, file.path(), ": run ", run.name, " has ", items.size(), " ", what, ", number ", index,
         " was asked for");
  }
  return items[static_cast<std::size_t>(index)];
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

ek_status ek_flash_get_info(ek_flash_file *file, ek_flash_info *info) noexcept {
  return guarded([&] {
    const FlashFile &flash = opened(file);
    const FlashLayout &layout = flash.layout();
    ek_flash_info made{};
    made.packed = layout.packed;
    made.path = flash.path().c_str();
    made.io_mode = flash.io_mode().c_str();
    made.plan = layout.plan.c_str();
    made.bytes = layout.size;
    made.header_bytes = layout.data_start;
    made.runs = static_cast<std::int64_t>(layout.runs.size());
    write_struct(info, made, "info");
  });
}

ek_status ek_flash_get_run(ek_flash_file *file, int64_t index, ek_flash_run *run) noexcept {
  return guarded([&] {
    const FlashFile &flash = opened(file);
    const std::vector<Run> &runs = flash.layout().runs;
    if (index < 0 || static_cast<std::uint64_t>(index) >= runs.size()) {
      fail(EK_INVALID_ARGUMENT, flash.path(), ": has ", runs.size(), " runs, number ", index, " was asked for");
    }
    const Run &own = runs[static_cast<std::size_t>(index)];
    ek_flash_run made{};
    made.name = own.name.c_str();
    made.offset = own.offset;
    made.bytes = own.length;
    made.tensors = static_cast<std::int64_t>(own.tensors.size());
    made.parts = static_cast<std::int64_t>(own.parts().size());
    write_struct(run, made, "run");
  });
}

ek_status ek_flash_get_part(ek_flash_file *file, const char *run, int64_t index, ek_flash_part *part) noexcept {
  return guarded([&] {
    const FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    const FlashSegment own = numbered(flash, found, found.parts(), index, "parts");
    ek_flash_part made{};
    made.offset = own.offset;
    made.place = own.place;
    made.bytes = own.bytes;
    made.xxh3 = own.xxh3;
    write_struct(part, made, "part");
  });
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
    const Tensor &own = numbered(flash, found, found.tensors, index, "tensors");
    write_struct(tensor, flash_tensor_of(own), "tensor");
  });
}

ek_status ek_flash_get_tensor_name(ek_flash_file *file, const char *run, int64_t index, const char **name) noexcept {
  return guarded([&] {
    const FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    if (name == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the tensor's name");
    *name = numbered(flash, found, found.tensors, index, "tensors").full_name.c_str();
  });
}

ek_status ek_flash_verify_run(ek_flash_file *file, const char *run) noexcept {
  return guarded([&] {
    FlashFile &flash = opened(file);
    flash.verify(find_run(flash, run));
  });
}

ek_status ek_flash_read_run(ek_flash_file *file, const char *run, void *buffer, uint64_t size) noexcept {
  return guarded([&] {
    FlashFile &flash = opened(file);
    const Run &found = find_run(flash, run);
    if (buffer == nullptr || size < found.length) {
      fail(EK_INVALID_ARGUMENT, flash.path(), ": run ", found.name, " needs a buffer of ", found.length, " bytes, got ",
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
