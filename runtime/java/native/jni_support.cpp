#include "jni_support.h"

#include <limits>

namespace edgekit {

JavaClasses classes;

namespace {

// Java counts elements by 32 bits.
jsize java_size(JNIEnv *env, std::uint64_t size) {
  if (size > static_cast<std::uint64_t>(std::numeric_limits<jsize>::max()))
    raise(env, "java/lang/IllegalArgumentException", "the result has more elements than an array of Java");
  return static_cast<jsize>(size);
}

}  // namespace

void check_java(JNIEnv *env) {
  if (env->ExceptionCheck() == JNI_TRUE) throw Pending();
}

void raise(JNIEnv *env, const char *type, const char *message) {
  jclass found = env->FindClass(type);
  if (found != nullptr) env->ThrowNew(found, message);
  throw Pending();
}

void check(JNIEnv *env, ek_status status) {
  if (status == EK_OK) return;
  const char *last = ek_last_error();
  const char *message = *last != '\0' ? last : ek_status_message(status);
  const auto needed = static_cast<jlong>(ek_last_error_bytes());
  jbyteArray text = to_java(env, message);
  auto error = static_cast<jthrowable>(
      env->NewObject(classes.failure, classes.new_failure, text, static_cast<jint>(status), needed));
  if (error != nullptr) env->Throw(error);
  throw Pending();
}

std::string bytes(JNIEnv *env, jbyteArray array) {
  if (array == nullptr) raise(env, "java/lang/NullPointerException", "a native function was given null");
  std::string made(static_cast<std::size_t>(env->GetArrayLength(array)), '\0');
  env->GetByteArrayRegion(array, 0, static_cast<jsize>(made.size()), reinterpret_cast<jbyte *>(made.data()));
  check_java(env);
  return made;
}

std::vector<std::string> all_bytes(JNIEnv *env, jobjectArray arrays) {
  if (arrays == nullptr) raise(env, "java/lang/NullPointerException", "a native function was given null");
  std::vector<std::string> made;
  for (jsize index = 0; index < env->GetArrayLength(arrays); ++index) {
    auto *each = static_cast<jbyteArray>(env->GetObjectArrayElement(arrays, index));
    made.push_back(bytes(env, each));
    env->DeleteLocalRef(each);
  }
  return made;
}

std::vector<std::int64_t> tokens(JNIEnv *env, jintArray array) {
  if (array == nullptr) raise(env, "java/lang/NullPointerException", "a native function was given null");
  std::vector<jint> given(static_cast<std::size_t>(env->GetArrayLength(array)));
  env->GetIntArrayRegion(array, 0, static_cast<jsize>(given.size()), given.data());
  check_java(env);
  return {given.begin(), given.end()};
}

std::string chosen_bundle(JNIEnv *env, jbyteArray path) {
  const std::string folder = bytes(env, path);
  return filled(env, [&](char *buffer, std::uint64_t capacity, std::uint64_t *size) {
    return ek_bundle_choose(folder.c_str(), nullptr, buffer, capacity, size);
  });
}

jbyteArray to_java(JNIEnv *env, std::string_view bytes) {
  const jsize size = java_size(env, bytes.size());
  jbyteArray made = env->NewByteArray(size);
  check_java(env);
  env->SetByteArrayRegion(made, 0, size, reinterpret_cast<const jbyte *>(bytes.data()));
  return made;
}

jobjectArray arrays_of_bytes(JNIEnv *env, std::size_t count) {
  jclass bytes = env->FindClass("[B");
  check_java(env);
  jobjectArray made = env->NewObjectArray(java_size(env, count), bytes, nullptr);
  check_java(env);
  return made;
}

void put(JNIEnv *env, jobjectArray arrays, std::size_t at, std::string_view bytes) {
  jbyteArray each = to_java(env, bytes);
  env->SetObjectArrayElement(arrays, static_cast<jsize>(at), each);
  env->DeleteLocalRef(each);
}

jintArray to_java(JNIEnv *env, const std::int64_t *ids, std::int64_t count) {
  std::vector<jint> narrow(ids, ids + count);
  const jsize size = java_size(env, narrow.size());
  jintArray made = env->NewIntArray(size);
  check_java(env);
  env->SetIntArrayRegion(made, 0, size, narrow.data());
  return made;
}

}  // namespace edgekit
