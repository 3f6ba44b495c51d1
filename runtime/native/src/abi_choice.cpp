// The functions of edgekit.h about several bundles of a model.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "abi_guard.h"
#include "abi_texts.h"
#include "bundle_choice.h"
#include "bundle_folder.h"
#include "edgekit.h"
#include "error.h"
#include "onnx/qnn_executor.h"
#include "session/session_formats.h"

using namespace edgekit;

namespace {

const char *given(const char *text, const char *what) {
  if (text == nullptr) fail(EK_INVALID_ARGUMENT, "the ", what, " is null");
  return text;
}

std::int32_t number_of(FolderKind kind) {
  switch (kind) {
    case FolderKind::bundle:
      return EK_FOLDER_BUNDLE;
    case FolderKind::set:
      return EK_FOLDER_BUNDLES;
    default:
      return EK_FOLDER_OTHER;
  }
}

BundleRunner runner_of(const ek_choose_options &options) {
  BundleRunner runner;
  if (options.formats == nullptr && options.format_count == 0) {
    for (const char *format : session_formats()) runner.formats.emplace_back(format);
  } else {
    runner.formats = texts(options.formats, options.format_count, "formats");
    if (runner.formats.empty()) fail(EK_INVALID_ARGUMENT, "there are no formats to choose by; give some, or null");
  }
  runner.system = text_or_empty(options.system);
  runner.version = text_or_empty(options.system_version);
  runner.chip = qnn::chip();
  return runner;
}

}  // namespace

ek_status ek_folder_look(const char *folder, int32_t *kind) noexcept {
  return guarded([&] {
    if (kind == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the kind of the folder; give its address");
    *kind = number_of(kind_of_folder(given(folder, "folder")));
  });
}

ek_status ek_session_formats(const char **names, int32_t capacity, int32_t *count) noexcept {
  return guarded([&] {
    if (count == nullptr || capacity < 0 || (names == nullptr && capacity > 0)) {
      fail(EK_INVALID_ARGUMENT, "there is no place for the formats or their number");
    }
    const std::vector<const char *> found = session_formats();
    *count = static_cast<std::int32_t>(found.size());
    for (std::size_t i = 0; i < std::min(found.size(), static_cast<std::size_t>(capacity)); ++i) names[i] = found[i];
  });
}

ek_status ek_bundle_choose(const char *folder, const ek_choose_options *options, char *buffer, uint64_t capacity,
                           uint64_t *size) noexcept {
  return guarded([&] {
    if (size == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the size of the path");
    const ek_choose_options own = read_struct(options, ek_choose_options EK_CHOOSE_OPTIONS_INIT, "ek_choose_options");
    if (own.reserved != 0) fail(EK_INVALID_ARGUMENT, "ek_choose_options: reserved must be 0, it is ", own.reserved);
    const SetState state = own.listed != 0 ? SetState::listed : SetState::whole;
    fill(choose_bundle(given(folder, "folder"), runner_of(own), state), "the path", buffer, capacity, *size);
  });
}

ek_status ek_bundle_list_check(const char *text, uint64_t size, const char *where) noexcept {
  return guarded([&] {
    parse_bundle_set({given(text, "text"), static_cast<std::size_t>(size)}, given(where, "name of the text"));
  });
}
