// The ek_bundle_ and ek_folder_ functions of edgekit.h.
#include <cstdint>
#include <cstring>
#include <string>

#include "abi_flash.h"
#include "abi_guard.h"
#include "bundle_folder.h"
#include "edgekit.h"
#include "error.h"

using namespace edgekit;

struct ek_bundle {
  explicit ek_bundle(const std::string &path) : folder(path) { folder.take_root(); }
  BundleFolder folder;
};

namespace {

// These throw Error (EK_INVALID_ARGUMENT) for null.
BundleFolder &opened(ek_bundle *bundle) {
  if (bundle == nullptr) fail(EK_INVALID_ARGUMENT, "the bundle is null; open it with ek_bundle_open");
  return bundle->folder;
}

const char *given(const char *text, const char *what) {
  if (text == nullptr) fail(EK_INVALID_ARGUMENT, "the ", what, " is null");
  return text;
}

// Tells the size; whether there is a buffer to be filled.
bool has_room(void *buffer, uint64_t capacity, uint64_t needed, uint64_t *size) {
  if (size == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the size of the file");
  *size = needed;
  if (buffer == nullptr) return false;
  if (capacity < needed) fail(EK_BUFFER_TOO_SMALL, "the file has ", needed, " bytes, the buffer ", capacity);
  return true;
}

}  // namespace

ek_status ek_bundle_open(const char *path, ek_bundle **bundle) noexcept {
  return guarded([&] {
    if (bundle == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the bundle; give its address");
    *bundle = nullptr;
    *bundle = new ek_bundle(given(path, "path of the bundle"));
  });
}

void ek_bundle_close(ek_bundle *bundle) noexcept { delete bundle; }

ek_status ek_bundle_manifest(ek_bundle *bundle, const char **text, uint64_t *size) noexcept {
  return guarded([&] {
    const std::string &own = opened(bundle).text();
    if (text == nullptr || size == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the manifest or its size");
    *text = own.c_str();
    *size = own.size();
  });
}

ek_status ek_bundle_read_file(ek_bundle *bundle, const char *name, void *buffer, uint64_t capacity,
                              uint64_t *size) noexcept {
  return guarded([&] {
    const BundleFolder &folder = opened(bundle);
    const std::string file = given(name, "name of the file");
    if (has_room(buffer, capacity, folder.size_of(file), size)) folder.read(file, buffer);
  });
}

ek_status ek_bundle_check_file(ek_bundle *bundle, const char *name) noexcept {
  return guarded([&] { opened(bundle).check(given(name, "name of the file")); });
}

ek_status ek_bundle_open_weights(ek_bundle *bundle, ek_flash_file **file) noexcept {
  return guarded([&] {
    if (file == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the flash file; give its address");
    *file = nullptr;
    *file = new ek_flash_file{opened(bundle).open_weights(FlashOptions{})};
  });
}

ek_status ek_folder_read_file(const char *folder, const char *name, void *buffer, uint64_t capacity,
                              uint64_t *size) noexcept {
  return guarded([&] {
    if (size == nullptr || (buffer == nullptr && capacity != 0)) {
      fail(EK_INVALID_ARGUMENT, "there is no place for the file or its size");
    }
    const std::string text = read_folder_file(given(folder, "folder"), given(name, "name of the file"), capacity);
    *size = text.size();
    if (!text.empty()) std::memcpy(buffer, text.data(), text.size());
  });
}

ek_status ek_folder_check_file(const char *folder, const char *name, uint64_t size, uint64_t xxh3) noexcept {
  return guarded(
      [&] { check_folder_file(given(folder, "folder"), given(name, "name of the file"), size, xxh3); });
}
