#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

jlong open(JNIEnv *env, jclass, jbyteArray path) {
  return guarded(env, [&] {
    ek_bundle *bundle = nullptr;
    check(env, ek_bundle_open(chosen_bundle(env, path).c_str(), &bundle));
    return handle(bundle);
  });
}

jboolean exists(JNIEnv *env, jclass, jbyteArray path) {
  return guarded(env, [&]() -> jboolean {
    std::int32_t kind = EK_FOLDER_OTHER;
    check(env, ek_folder_look(bytes(env, path).c_str(), &kind));
    return kind == EK_FOLDER_OTHER ? JNI_FALSE : JNI_TRUE;
  });
}

void close(JNIEnv *, jclass, jlong bundle) { ek_bundle_close(handle<ek_bundle>(bundle)); }

jbyteArray manifest(JNIEnv *env, jclass, jlong bundle) {
  return guarded(env, [&] {
    const char *text = nullptr;
    std::uint64_t size = 0;
    check(env, ek_bundle_manifest(handle<ek_bundle>(bundle), &text, &size));
    return to_java(env, {text, size});
  });
}

jbyteArray read(JNIEnv *env, jclass, jlong bundle, jbyteArray name) {
  return guarded(env, [&] {
    const std::string wanted = bytes(env, name);
    return to_java(env, filled(env, [&](char *buffer, std::uint64_t capacity, std::uint64_t *size) {
      return ek_bundle_read_file(handle<ek_bundle>(bundle), wanted.c_str(), buffer, capacity, size);
    }));
  });
}

void check_file(JNIEnv *env, jclass, jlong bundle, jbyteArray name) {
  guarded(env, [&] { check(env, ek_bundle_check_file(handle<ek_bundle>(bundle), bytes(env, name).c_str())); });
}

}  // namespace

std::vector<JNINativeMethod> bundle_methods() {
  return {method("bundleOpen", "([B)J", open), method("bundleExists", "([B)Z", exists), method("bundleClose", "(J)V", close),
          method("bundleManifest", "(J)[B", manifest), method("bundleRead", "(J[B)[B", read),
          method("bundleCheck", "(J[B)V", check_file)};
}

}  // namespace edgekit
