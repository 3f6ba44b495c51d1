#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

jlong open(JNIEnv *env, jclass, jbyteArray bundle) {
  return guarded(env, [&] {
    ek_text *text = nullptr;
    check(env, ek_text_open(chosen_bundle(env, bundle).c_str(), &text));
    return handle(text);
  });
}

void close(JNIEnv *, jclass, jlong text) { ek_text_close(handle<ek_text>(text)); }

jlong find(JNIEnv *env, jclass, jlong text, jbyteArray token) {
  return guarded(env, [&] {
    std::int64_t id = -1;
    check(env, ek_text_find(handle<ek_text>(text), bytes(env, token).c_str(), &id));
    return static_cast<jlong>(id);
  });
}

jlong count(JNIEnv *env, jclass, jlong text) {
  return guarded(env, [&] {
    std::int64_t found = 0;
    check(env, ek_text_count(handle<ek_text>(text), &found));
    return static_cast<jlong>(found);
  });
}

// The ids that `encode(utf8, bytes, ids, capacity, count)` gives.
template <typename Encode>
jintArray ids_of(JNIEnv *env, jbyteArray utf8, Encode &&encode) {
  const std::string given = bytes(env, utf8);
  std::vector<std::int64_t> ids(given.size() + 16);  // a token is a byte or more, mostly
  std::int64_t count = 0;
  const auto encoded = [&] {
    return encode(given.data(), given.size(), ids.data(), static_cast<std::int64_t>(ids.size()), &count);
  };
  ek_status status = encoded();
  if (status == EK_BUFFER_TOO_SMALL) {
    ids.resize(static_cast<std::size_t>(count));
    status = encoded();
  }
  check(env, status);
  return to_java(env, ids.data(), count);
}

jintArray encode(JNIEnv *env, jclass, jlong text, jbyteArray utf8, jboolean add_special) {
  return guarded(env, [&] {
    return ids_of(env, utf8, [&](const char *given, std::uint64_t size, std::int64_t *ids, std::int64_t room,
                                 std::int64_t *count) {
      return ek_text_encode(handle<ek_text>(text), given, size, add_special, ids, room, count);
    });
  });
}

jintArray encode_behind(JNIEnv *env, jclass, jlong text, jbyteArray utf8) {
  return guarded(env, [&] {
    return ids_of(env, utf8, [&](const char *given, std::uint64_t size, std::int64_t *ids, std::int64_t room,
                                 std::int64_t *count) {
      return ek_text_encode_behind(handle<ek_text>(text), given, size, ids, room, count);
    });
  });
}

jbyteArray decode(JNIEnv *env, jclass, jlong text, jintArray ids, jboolean skip_special) {
  return guarded(env, [&] {
    const auto given = tokens(env, ids);
    return to_java(env, filled(env, [&](char *buffer, std::uint64_t capacity, std::uint64_t *size) {
      return ek_text_decode(handle<ek_text>(text), given.data(), static_cast<std::int64_t>(given.size()), skip_special,
                            buffer, capacity, size);
    }));
  });
}

jbyteArray chat(JNIEnv *env, jclass, jlong text, jobjectArray roles, jobjectArray contents) {
  return guarded(env, [&] {
    const auto role = all_bytes(env, roles), content = all_bytes(env, contents);
    std::vector<ek_text_message> messages;
    for (std::size_t index = 0; index < role.size(); ++index)
      messages.push_back({role[index].c_str(), content[index].data(), content[index].size()});
    return to_java(env, filled(env, [&](char *buffer, std::uint64_t capacity, std::uint64_t *size) {
      return ek_text_chat(handle<ek_text>(text), messages.data(), static_cast<std::int64_t>(messages.size()), buffer,
                          capacity, size);
    }));
  });
}

jlong stream_open(JNIEnv *env, jclass, jlong text, jboolean skip_special) {
  return guarded(env, [&] {
    ek_text_stream *stream = nullptr;
    check(env, ek_text_stream_open(handle<ek_text>(text), skip_special, &stream));
    return handle(stream);
  });
}

void stream_close(JNIEnv *, jclass, jlong stream) { ek_text_stream_close(handle<ek_text_stream>(stream)); }

jbyteArray stream_push(JNIEnv *env, jclass, jlong stream, jintArray ids) {
  return guarded(env, [&] {
    auto *own = handle<ek_text_stream>(stream);
    if (ids == nullptr) {
      check(env, ek_text_stream_finish(own));
    } else {
      const auto given = tokens(env, ids);
      check(env, ek_text_stream_push(own, given.data(), static_cast<std::int64_t>(given.size())));
    }
    return to_java(env, filled(env, [&](char *buffer, std::uint64_t capacity, std::uint64_t *size) {
      return ek_text_stream_take(own, buffer, capacity, size);
    }));
  });
}

}  // namespace

std::vector<JNINativeMethod> text_methods() {
  return {method("textOpen", "([B)J", open),
          method("textClose", "(J)V", close),
          method("textFind", "(J[B)J", find),
          method("textCount", "(J)J", count),
          method("textEncode", "(J[BZ)[I", encode),
          method("textEncodeBehind", "(J[B)[I", encode_behind),
          method("textDecode", "(J[IZ)[B", decode),
          method("textChat", "(J[[B[[B)[B", chat),
          method("streamOpen", "(JZ)J", stream_open),
          method("streamClose", "(J)V", stream_close),
          method("streamPush", "(J[I)[B", stream_push)};
}

}  // namespace edgekit
