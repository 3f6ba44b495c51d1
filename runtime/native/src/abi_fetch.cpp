// The ek_fetch_ functions of edgekit.h.
#include <cstdint>
#include <string>
#include <utility>

#include "abi_guard.h"
#include "abi_texts.h"
#include "edgekit.h"
#include "error.h"
#include "fetch/fetch.h"
#include "onnx/qnn_executor.h"

using namespace edgekit;

struct ek_fetch {
  ek_fetch(const std::string &folder, FetchOptions options) : fetch(folder, std::move(options)) {}
  Fetch fetch;
};

namespace {

// Throws Error (EK_INVALID_ARGUMENT) for null.
Fetch &opened(ek_fetch *fetch) {
  if (fetch == nullptr) fail(EK_INVALID_ARGUMENT, "the fetch is null; open it with ek_fetch_open");
  return fetch->fetch;
}

FetchOptions read_options(const ek_fetch_options *given) {
  const ek_fetch_options options = read_struct(given, ek_fetch_options EK_FETCH_OPTIONS_INIT, "ek_fetch_options");
  FetchOptions out;
  out.sources = texts(options.sources, options.source_count, "sources");
  out.runner.formats = texts(options.formats, options.format_count, "formats");
  out.runner.system = text_or_empty(options.system);
  out.runner.version = text_or_empty(options.system_version);
  out.runner.chip = qnn::chip();
  out.sha256 = text_or_empty(options.sha256);
  if (options.request_bytes != 0) out.request_bytes = options.request_bytes;
  out.compare = options.compare != 0;
  out.only_formats = options.only_formats != 0;
  out.keep_format = options.keep_format != 0;
  return out;
}

std::int32_t step_of(FetchStep step) {
  switch (step) {
    case FetchStep::ask:
      return EK_FETCH_ASK;
    case FetchStep::working:
      return EK_FETCH_WORKING;
    case FetchStep::wait:
      return EK_FETCH_WAIT;
    default:
      return EK_FETCH_READY;
  }
}

}  // namespace

ek_status ek_fetch_open(const char *folder, const ek_fetch_options *options, ek_fetch **fetch) noexcept {
  return guarded([&] {
    if (fetch == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the fetch; give its address");
    *fetch = nullptr;
    if (folder == nullptr) fail(EK_INVALID_ARGUMENT, "the folder is null");
    *fetch = new ek_fetch(folder, read_options(options));
  });
}

void ek_fetch_close(ek_fetch *fetch) noexcept { delete fetch; }

ek_status ek_fetch_next(ek_fetch *fetch, int32_t *step, ek_fetch_request *request) noexcept {
  return guarded([&] {
    Fetch &own = opened(fetch);
    if (step == nullptr || request == nullptr) fail(EK_INVALID_ARGUMENT, "there is no place for the step or its request");
    ek_fetch_request made EK_FETCH_REQUEST_INIT;
    write_struct(request, made, "ek_fetch_request");  // before anything is asked for
    FetchRequest found;
    *step = step_of(own.next(found));
    if (*step != EK_FETCH_ASK) return;
    made.source = static_cast<std::int32_t>(found.source);
    made.name = found.name;
    made.id = found.id;
    made.offset = found.range.begin;
    made.bytes = found.range.bytes();
    made.size = found.size;
    made.wait_milliseconds = found.wait_milliseconds;
    made.patience_milliseconds = found.patience_milliseconds;
    made.least_bytes_per_second = found.least_bytes_per_second;
    write_struct(request, made, "ek_fetch_request");
  });
}

ek_status ek_fetch_answer(ek_fetch *fetch, uint64_t id, int32_t http_status, const char *content_range) noexcept {
  return guarded([&] { opened(fetch).answer(id, http_status, text_or_empty(content_range)); });
}

ek_status ek_fetch_write(ek_fetch *fetch, uint64_t id, const void *data, uint64_t size) noexcept {
  return guarded([&] {
    Fetch &own = opened(fetch);
    if (data == nullptr && size != 0) fail(EK_INVALID_ARGUMENT, "the bytes of the request are null");
    if (!own.write(id, data, static_cast<std::size_t>(size))) fail(EK_STOPPED, "no more bytes of this request are needed");
  });
}

ek_status ek_fetch_end(ek_fetch *fetch, uint64_t id, const char *why) noexcept {
  return guarded([&] {
    Fetch &own = opened(fetch);
    if (why == nullptr) {
      own.end(id);
    } else {
      own.fail_request(id, *why == '\0' ? "gave no answer" : why);
    }
  });
}

ek_status ek_fetch_return(ek_fetch *fetch, uint64_t id) noexcept {
  return guarded([&] { opened(fetch).give_back(id); });
}

ek_status ek_fetch_get_info(ek_fetch *fetch, ek_fetch_info *info) noexcept {
  return guarded([&] {
    Fetch &own = opened(fetch);
    const FetchProgress found = own.progress();
    ek_fetch_info made{};
    made.current = found.current;
    made.total_bytes = found.total;
    made.whole_bytes = found.whole;
    made.arrived_bytes = found.arrived;
    made.fetched_bytes = found.fetched;
    made.copied_bytes = found.copied;
    made.found_bytes = found.found;
    made.damaged = found.damaged;
    made.requests = found.requests;
    made.arriving = own.staging().c_str();
    made.chosen = found.chosen;
    made.kept_format = found.kept_format;
    write_struct(info, made, "ek_fetch_info");
  });
}

ek_status ek_fetch_finish(ek_fetch *fetch) noexcept {
  return guarded([&] { opened(fetch).finish(); });
}

ek_status ek_fetch_discard(ek_fetch *fetch) noexcept {
  return guarded([&] { opened(fetch).discard(); });
}
