#include <algorithm>
#include <array>

#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

std::vector<const char *> pointers(const std::vector<std::string> &texts) {
  std::vector<const char *> made;
  for (const std::string &text : texts) made.push_back(text.c_str());
  return made;
}

// The formats that sessions run.
std::vector<const char *> of_sessions(JNIEnv *env) {
  std::int32_t count = 0;
  check(env, ek_session_formats(nullptr, 0, &count));
  std::vector<const char *> names(static_cast<std::size_t>(count));
  check(env, ek_session_formats(names.data(), count, &count));
  return names;
}

template <std::size_t Count>
void give(JNIEnv *env, jlongArray to, const std::array<jlong, Count> &numbers) {
  env->SetLongArrayRegion(to, 0, static_cast<jsize>(Count), numbers.data());
  check_java(env);
}

jlong open(JNIEnv *env, jclass, jbyteArray folder, jobjectArray sources, jbyteArray sha256, jobjectArray formats,
           jbyteArray system, jbyteArray version, jboolean compare, jlong request_bytes, jboolean keep_format) {
  return guarded(env, [&] {
    const auto source = all_bytes(env, sources);
    const auto format = formats == nullptr ? std::vector<std::string>() : all_bytes(env, formats);
    const auto source_pointers = pointers(source);
    const auto format_pointers = formats == nullptr ? of_sessions(env) : pointers(format);
    const OptionalText seal(env, sha256), name(env, system), number(env, version);
    ek_fetch_options options = EK_FETCH_OPTIONS_INIT;
    options.source_count = static_cast<std::int32_t>(source.size());
    options.sources = source_pointers.data();
    options.sha256 = seal.get();
    options.formats = format_pointers.data();
    options.format_count = static_cast<std::int32_t>(format_pointers.size());
    options.compare = compare;
    options.system = name.get();
    options.system_version = number.get();
    options.request_bytes = static_cast<std::uint64_t>(request_bytes);
    options.only_formats = formats != nullptr;
    options.keep_format = keep_format;
    ek_fetch *fetch = nullptr;
    check(env, ek_fetch_open(bytes(env, folder).c_str(), &options, &fetch));
    return handle(fetch);
  });
}

void close(JNIEnv *, jclass, jlong fetch) { ek_fetch_close(handle<ek_fetch>(fetch)); }

jbyteArray next(JNIEnv *env, jclass, jlong fetch, jlongArray numbers) {
  return guarded(env, [&]() -> jbyteArray {
    ek_fetch_request found = EK_FETCH_REQUEST_INIT;
    std::int32_t step = 0;
    check(env, ek_fetch_next(handle<ek_fetch>(fetch), &step, &found));
    give<9>(env, numbers,
            {static_cast<jlong>(step), static_cast<jlong>(found.source), static_cast<jlong>(found.id),
             static_cast<jlong>(found.offset), static_cast<jlong>(found.bytes), static_cast<jlong>(found.size),
             static_cast<jlong>(found.wait_milliseconds), static_cast<jlong>(found.patience_milliseconds),
             static_cast<jlong>(found.least_bytes_per_second)});
    return step == EK_FETCH_ASK ? to_java(env, found.name) : nullptr;
  });
}

void answer(JNIEnv *env, jclass, jlong fetch, jlong request, jint status, jbyteArray content_range) {
  guarded(env, [&] {
    const OptionalText range(env, content_range);
    check(env, ek_fetch_answer(handle<ek_fetch>(fetch), static_cast<std::uint64_t>(request), status, range.get()));
  });
}

// By way of a buffer of its own: the library writes to a disk meanwhile, and what pins an array of Java keeps its collector
// from running.
jboolean write(JNIEnv *env, jclass, jlong fetch, jlong request, jbyteArray data, jint offset, jint count) {
  return guarded(env, [&]() -> jboolean {
    std::array<jbyte, 64 * 1024> part;
    while (count > 0) {
      const jint size = std::min(count, static_cast<jint>(part.size()));
      env->GetByteArrayRegion(data, offset, size, part.data());
      check_java(env);
      const ek_status status = ek_fetch_write(handle<ek_fetch>(fetch), static_cast<std::uint64_t>(request), part.data(),
                                              static_cast<std::uint64_t>(size));
      if (status == EK_STOPPED) return JNI_FALSE;
      check(env, status);
      offset += size;
      count -= size;
    }
    return JNI_TRUE;
  });
}

void end(JNIEnv *env, jclass, jlong fetch, jlong request, jbyteArray why) {
  guarded(env, [&] {
    const OptionalText text(env, why);
    check(env, ek_fetch_end(handle<ek_fetch>(fetch), static_cast<std::uint64_t>(request), text.get()));
  });
}

void give_back(JNIEnv *env, jclass, jlong fetch, jlong request) {
  guarded(env, [&] { check(env, ek_fetch_return(handle<ek_fetch>(fetch), static_cast<std::uint64_t>(request))); });
}

jobjectArray info(JNIEnv *env, jclass, jlong fetch, jlongArray numbers) {
  return guarded(env, [&] {
    ek_fetch_info found = {};
    found.struct_size = sizeof found;
    check(env, ek_fetch_get_info(handle<ek_fetch>(fetch), &found));
    give<10>(env, numbers,
            {static_cast<jlong>(found.current), static_cast<jlong>(found.total_bytes),
             static_cast<jlong>(found.whole_bytes), static_cast<jlong>(found.arrived_bytes),
             static_cast<jlong>(found.fetched_bytes), static_cast<jlong>(found.copied_bytes),
             static_cast<jlong>(found.found_bytes), static_cast<jlong>(found.damaged),
             static_cast<jlong>(found.requests), static_cast<jlong>(found.kept_format)});
    jobjectArray texts = arrays_of_bytes(env, 2);
    put(env, texts, 0, found.arriving);
    if (found.chosen != nullptr) put(env, texts, 1, found.chosen);
    return texts;
  });
}

void finish(JNIEnv *env, jclass, jlong fetch) {
  guarded(env, [&] { check(env, ek_fetch_finish(handle<ek_fetch>(fetch))); });
}

void discard(JNIEnv *env, jclass, jlong fetch) {
  guarded(env, [&] { check(env, ek_fetch_discard(handle<ek_fetch>(fetch))); });
}

}  // namespace

std::vector<JNINativeMethod> fetch_methods() {
  return {method("fetchOpen", "([B[[B[B[[B[B[BZJZ)J", open),
          method("fetchClose", "(J)V", close),
          method("fetchNext", "(J[J)[B", next),
          method("fetchAnswer", "(JJI[B)V", answer),
          method("fetchWrite", "(JJ[BII)Z", write),
          method("fetchEnd", "(JJ[B)V", end),
          method("fetchReturn", "(JJ)V", give_back),
          method("fetchInfo", "(J[J)[[B", info),
          method("fetchFinish", "(J)V", finish),
          method("fetchDiscard", "(J)V", discard)};
}

}  // namespace edgekit
