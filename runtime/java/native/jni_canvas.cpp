#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

constexpr std::size_t kMembers = 3;  // numbers of a cell in Java: place, token, state

// Throws Pending, with NullPointerException for null.
std::vector<ek_canvas_cell> cells_of(JNIEnv *env, jlongArray array) {
  if (array == nullptr) raise(env, "java/lang/NullPointerException", "a native function was given null");
  std::vector<jlong> numbers(static_cast<std::size_t>(env->GetArrayLength(array)));
  env->GetLongArrayRegion(array, 0, static_cast<jsize>(numbers.size()), numbers.data());
  check_java(env);
  std::vector<ek_canvas_cell> made;
  for (std::size_t at = 0; at + kMembers <= numbers.size(); at += kMembers) {
    made.push_back({numbers[at], numbers[at + 1], static_cast<std::int32_t>(numbers[at + 2]), 0});
  }
  return made;
}

jlongArray numbers_of(JNIEnv *env, const std::vector<ek_canvas_cell> &cells) {
  std::vector<jlong> numbers;
  for (const ek_canvas_cell &cell : cells) numbers.insert(numbers.end(), {cell.place, cell.token, cell.state});
  jlongArray made = env->NewLongArray(static_cast<jsize>(numbers.size()));
  check_java(env);
  env->SetLongArrayRegion(made, 0, static_cast<jsize>(numbers.size()), numbers.data());
  return made;
}

// Throws Pending, with IllegalArgumentException where there are not so many.
std::vector<std::uint8_t> flags_of(JNIEnv *env, jbooleanArray array, std::size_t count) {
  std::vector<jboolean> given(static_cast<std::size_t>(env->GetArrayLength(array)));
  if (given.size() != count) {
    raise(env, "java/lang/IllegalArgumentException", "a draft says of other tokens than it has which were accepted");
  }
  env->GetBooleanArrayRegion(array, 0, static_cast<jsize>(given.size()), given.data());
  check_java(env);
  return {given.begin(), given.end()};
}

jlongArray fold(JNIEnv *env, jclass, jlongArray cells, jint kind, jlong start, jintArray ids, jbooleanArray accepted,
                jlong mask) {
  return guarded(env, [&] {
    const auto before = cells_of(env, cells);
    const auto given = tokens(env, ids);
    const auto flags = accepted == nullptr ? std::vector<std::uint8_t>() : flags_of(env, accepted, given.size());
    ek_event event = {};
    event.struct_size = sizeof event;
    event.kind = kind;
    event.start = start;
    event.ids = given.data();
    event.count = static_cast<std::int64_t>(given.size());
    event.accepted = flags.data();
    std::vector<ek_canvas_cell> made(before.size() + given.size());
    std::int64_t count = 0;
    check(env, ek_canvas_fold(before.data(), static_cast<std::int64_t>(before.size()), &event, mask, made.data(),
                              static_cast<std::int64_t>(made.size()), &count));
    made.resize(static_cast<std::size_t>(count));
    return numbers_of(env, made);
  });
}

jobjectArray draw(JNIEnv *env, jclass, jlong text, jlongArray cells) {
  return guarded(env, [&] {
    const auto given = cells_of(env, cells);
    std::vector<ek_canvas_part> parts(given.size());
    std::string drawn(4096, '\0');  // enough for most canvases
    std::int64_t count = 0;
    const auto draw_into = [&](std::uint64_t *size) {
      return ek_canvas_draw(handle<ek_text>(text), given.data(), static_cast<std::int64_t>(given.size()), drawn.data(),
                            drawn.size(), size, parts.data(), static_cast<std::int64_t>(parts.size()), &count);
    };
    std::uint64_t size = 0;
    ek_status status = draw_into(&size);
    if (status == EK_BUFFER_TOO_SMALL) {
      drawn.resize(static_cast<std::size_t>(size));
      status = draw_into(&size);
    }
    check(env, status);
    jobjectArray made = arrays_of_bytes(env, static_cast<std::size_t>(count) + 1);
    std::string states;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < static_cast<std::size_t>(count); ++at) {
      const ek_canvas_part &part = parts[at];
      const auto bytes_of_part = static_cast<std::size_t>(part.bytes);
      states += static_cast<char>(part.state);
      put(env, made, at + 1, std::string_view(drawn).substr(begin, bytes_of_part));
      begin += bytes_of_part;
    }
    put(env, made, 0, states);
    return made;
  });
}

}  // namespace

std::vector<JNINativeMethod> canvas_methods() {
  return {method("canvasFold", "([JIJ[I[ZJ)[J", fold), method("canvasDraw", "(J[J)[[B", draw)};
}

}  // namespace edgekit
