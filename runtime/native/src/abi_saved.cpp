// The functions of edgekit.h about sequences in files.
#include <memory>
#include <string>
#include <string_view>

#include "abi_guard.h"
#include "abi_session.h"
#include "error.h"
#include "session/saved_sequence.h"

using namespace edgekit;

struct ek_saved {
  explicit ek_saved(const char *path) : own(path) {}
  SavedSequence own;
};

namespace {

const char *path_of(const char *path) {
  if (path == nullptr) fail(EK_INVALID_ARGUMENT, "the path is null");
  return path;
}

}  // namespace

ek_status ek_sequence_save(ek_session *session, ek_sequence *sequence, const char *path,
                           const ek_save_options *options) noexcept {
  return guarded([&] {
    const Entry own(session);
    const ek_save_options given = read_struct<ek_save_options>(options, EK_SAVE_OPTIONS_INIT, "ek_save_options");
    if (given.note == nullptr && given.note_bytes != 0) {
      fail(EK_INVALID_ARGUMENT, "note_bytes is ", given.note_bytes, ", but note is null");
    }
    if (given.note_bytes > EK_NOTE_MOST) {
      fail(EK_INVALID_ARGUMENT, "a note of ", given.note_bytes, " bytes; it can have ", EK_NOTE_MOST);
    }
    SaveOptions wanted;
    wanted.bits = given.bits;
    if (given.note != nullptr) wanted.note = {static_cast<const char *>(given.note), static_cast<std::size_t>(given.note_bytes)};
    SavedSequence::save(*own, sequence_of(session, sequence), path_of(path), wanted);
  });
}

ek_status ek_sequence_load(ek_session *session, ek_sequence *sequence, const char *path) noexcept {
  return guarded([&] {
    const Entry own(session);
    Sequence &to = sequence_of(session, sequence);
    SavedSequence(path_of(path)).load(*own, to);
  });
}

ek_status ek_saved_open(const char *path, ek_saved **saved) noexcept {
  return guarded([&] {
    if (saved == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for what is opened");
    *saved = nullptr;
    *saved = std::make_unique<ek_saved>(path_of(path)).release();
  });
}

ek_status ek_saved_get_info(ek_saved *saved, ek_saved_info *info) noexcept {
  return guarded([&] {
    if (saved == nullptr) fail(EK_INVALID_ARGUMENT, "the saved sequence is null");
    const SavedSequence &own = saved->own;
    ek_saved_info made{};
    made.bits = own.bits();
    made.bundle = own.bundle().c_str();
    made.engine = own.engine().c_str();
    made.ids = own.ids().data();
    made.count = static_cast<std::int64_t>(own.ids().size());
    made.pieces = own.pieces().data();
    made.piece_count = static_cast<std::int64_t>(own.pieces().size());
    made.uncached = own.uncached().data();
    made.uncached_count = static_cast<std::int64_t>(own.uncached().size());
    made.note = own.note().data();
    made.note_bytes = own.note().size();
    made.adapter = own.adapter();
    write_struct(info, made, "ek_saved_info");
  });
}

void ek_saved_close(ek_saved *saved) noexcept { delete saved; }
