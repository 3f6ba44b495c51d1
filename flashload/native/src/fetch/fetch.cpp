#include "fetch/fetch.h"

#include <algorithm>

#include "fetch/http_answer.h"
#include "portable_names.h"
#include "printable.h"

namespace edgekit {
namespace {

constexpr std::uint64_t kLeastRequest = 64 * 1024;

FetchOptions checked(FetchOptions options) {
  options.sha256 = small_letters(options.sha256);
  if (!options.sha256.empty() &&
      (options.sha256.size() != kSealDigits || options.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    fail(EK_INVALID_ARGUMENT, "the SHA-256 of a bundle has 64 hex digits: those that its manifest begins with, or of several "
                              "bundles that of ", kBundleSetName);
  }
  if (options.request_bytes < kLeastRequest) {
    fail(EK_INVALID_ARGUMENT, "requests are of ", kLeastRequest, " bytes or more, not ", options.request_bytes);
  }
  return options;
}

}  // namespace

Fetch::Fetch(const std::string &folder, FetchOptions options)
    : staging_(folder), staging_path_(staging_.path()), options_(checked(std::move(options))), sources_(options_.sources) {}

void Fetch::require_no_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

FetchStep Fetch::next(FetchRequest &request) {
  Lock lock(mutex_);
  require_no_failure();
  return ending(lock, [&] {
    sources_.require_one();
    if (index_ != Index::known) return next_of_index(request);
    if (std::optional<FetchRequest> found = find_request()) {
      request = *found;
      return FetchStep::ask;
    }
    if (work(lock)) return FetchStep::working;
    const bool all = std::all_of(files_.begin(), files_.end(), [](const File &file) { return file.done; });
    return all ? FetchStep::ready : FetchStep::wait;
  });
}

void Fetch::answer(std::uint64_t id, int status, std::string_view content_range) {
  Lock lock(mutex_);
  Open *const found = find_open(id, lock);
  if (found == nullptr) {
    if (id == 0 || id > last_id_) fail(EK_INVALID_ARGUMENT, "no request has the number ", id);
    return;  // it is over: its source gives files from their beginning alone, and another one takes that
  }
  Open &open = *found;
  const std::size_t source = open.source;
  const HttpAnswerFound answer =
      read_http_answer(status, content_range, open.asked, open.file == nullptr ? 0 : open.file->size);
  switch (answer.answer) {
    case HttpAnswer::part:
      sources_.set_whole_only(source, false);  // what it once answered with was no file
      open.is_part = true;
      return;
    case HttpAnswer::whole:
      if (open.file == nullptr) return;
      if (open.asked.begin != 0 || open.asked.end != open.file->size) take_as_whole(id, lock);
      return;
    case HttpAnswer::missing:
      if (open.file == nullptr) {
        index_lacks_ |= SourceMask{1} << source;
        close(id, "");
      } else {
        const std::string why = "lacks " + open.file->remote + ", which its manifest lists";
        close(id, why);
        sources_.drop(source, why);
      }
      break;
    case HttpAnswer::never:
      close(id, answer.why);
      sources_.drop(source, answer.why);
      break;
    case HttpAnswer::other: {
      // Asked again it would say the same.
      const std::string why = answer.why + " in " + open.file->remote +
                              ": the bundle there was replaced, or is not whole; it has to be put there again";
      close(id, why);
      sources_.drop(source, why);
      fail(EK_FETCH_FAILED, sources_.name(source), ": ", why);
    }
    case HttpAnswer::later:
      close(id, answer.why);
      break;
  }
  fail(EK_FETCH_FAILED, sources_.name(source), ": ", answer.why);
}

bool Fetch::write(std::uint64_t id, const void *data, std::size_t size) {
  Lock lock(mutex_);
  require_no_failure();
  return ending(lock, [&] { return take_bytes(id, static_cast<const char *>(data), size, lock); });
}

void Fetch::end(std::uint64_t id) {
  Lock lock(mutex_);
  const Open *const found = find_open(id, lock);
  if (found == nullptr) return;
  const Open &open = *found;
  if (open.file != nullptr) {
    close(id, "ended before byte " + std::to_string(open.lacking.end()) + " of " + open.file->remote);
    return;
  }
  const std::size_t source = open.source;
  const std::string text = open.text;
  close(id, "");
  require_no_failure();
  ending(lock, [&] { take_index(source, text); });
}

void Fetch::fail_request(std::uint64_t id, const std::string &why) {
  Lock lock(mutex_);
  if (find_open(id, lock) != nullptr) close(id, why);
}

FetchProgress Fetch::progress() {
  const Lock lock(mutex_);
  FetchProgress found = progress_;
  for (const File &file : files_) found.arrived += file.arrived.bytes();
  found.requests = static_cast<std::int64_t>(open_.size());
  if (!chosen_.empty()) found.chosen = chosen_.c_str();
  return found;
}

void Fetch::finish() {
  Lock lock(mutex_);
  require_no_failure();
  const bool all = std::all_of(files_.begin(), files_.end(), [](const File &file) { return file.done; });
  if (index_ != Index::known || !all || finished_) {
    fail(EK_INVALID_STATE, staging_.folder(), ": the bundle is ", finished_ ? "in its place already" : "not whole yet");
  }
  ending(lock, [&] {
    kept_ = KeptPieces();
    if (progress_.current) {
      staging_.discard();
    } else {
      for (const File &file : files_) {
        if (staging_.has_file(file.name, file.size)) continue;
        staging_.require_place(file.name);
        fail(EK_WRITE_FAILED, staging_path_, ": ", in_quotes(file.name),
             " was removed or changed by somebody else while the bundle arrived; fetch it again");
      }
      staging_.write(kManifestName, manifest_);
      staging_.switch_over([this](const std::string &name) { return names_.count(name) != 0; });
    }
    finished_ = true;
  });
}

void Fetch::give_back(std::uint64_t id) {
  Lock lock(mutex_);
  if (find_open(id, lock) != nullptr) close(id, "");
}

void Fetch::discard() {
  const Lock lock(mutex_);
  if (!failure_) {
    failure_ = std::make_exception_ptr(
        Error(EK_INVALID_STATE, staging_.folder() + ": what has arrived of the bundle was removed"));
  }
  staging_.discard();
}

}  // namespace edgekit
