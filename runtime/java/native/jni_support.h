// What all functions of the JNI library share: Java's arrays, and errors as exceptions of Java.
#ifndef EDGEKIT_JNI_SUPPORT_H
#define EDGEKIT_JNI_SUPPORT_H

#include <jni.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "edgekit.h"

namespace edgekit {

// An exception of Java is pending: the way back to it.
struct Pending {};

// Found when the library is loaded: a thread that native code started would not find them.
struct JavaClasses {
  jclass failure, info, statistics, generation;
  jmethodID new_failure, new_info, new_statistics, new_generation;
  jmethodID draft, committed, joules;
};
extern JavaClasses classes;

// Throws Pending where `env` has an exception.
void check_java(JNIEnv *env);

// Throws Pending, with an EdgeKitException for anything but EK_OK.
void check(JNIEnv *env, ek_status status);

[[noreturn]] void raise(JNIEnv *env, const char *type, const char *message);

// Runs `body`, which may throw, and gives its value; 0 or null where Java has an exception now.
template <typename Body>
auto guarded(JNIEnv *env, Body &&body) noexcept -> decltype(body()) {
  using Result = decltype(body());
  try {
    return body();
  } catch (const Pending &) {
  } catch (const std::bad_alloc &) {
    jclass type = env->FindClass("java/lang/OutOfMemoryError");
    if (type != nullptr) env->ThrowNew(type, "the system has no memory left; give the session a smaller memory budget");
  } catch (const std::exception &error) {
    jclass type = env->FindClass("java/lang/InternalError");
    if (type != nullptr) env->ThrowNew(type, error.what());
  }
  return Result();
}

template <typename Pointer>
Pointer *handle(jlong value) {
  return reinterpret_cast<Pointer *>(static_cast<std::intptr_t>(value));
}

inline jlong handle(void *pointer) { return static_cast<jlong>(reinterpret_cast<std::intptr_t>(pointer)); }

// Throws Pending, with NullPointerException for null.
std::string bytes(JNIEnv *env, jbyteArray array);
std::vector<std::string> all_bytes(JNIEnv *env, jobjectArray arrays);
std::vector<std::int64_t> tokens(JNIEnv *env, jintArray array);

// Java has a text end with a NUL; null stays null.
class OptionalText {
 public:
  OptionalText(JNIEnv *env, jbyteArray text) : is_there_(text != nullptr) {
    if (is_there_) text_ = bytes(env, text);
  }
  const char *get() const noexcept { return is_there_ ? text_.c_str() : nullptr; }

 private:
  bool is_there_;
  std::string text_;
};

// The folder of the bundle that sessions open for a path: of a folder with several bundles the first that they run. Throws
// Pending.
std::string chosen_bundle(JNIEnv *env, jbyteArray path);

jbyteArray to_java(JNIEnv *env, std::string_view bytes);

// An array of so many arrays of bytes, all null, and one of them.
jobjectArray arrays_of_bytes(JNIEnv *env, std::size_t count);
void put(JNIEnv *env, jobjectArray arrays, std::size_t at, std::string_view bytes);

jintArray to_java(JNIEnv *env, const std::int64_t *ids, std::int64_t count);

// The bytes that `call(buffer, capacity, &size)` gives, which with a null buffer says how many there are.
template <typename Call>
std::string filled(JNIEnv *env, Call &&call) {
  std::uint64_t size = 0;
  check(env, call(nullptr, std::uint64_t{0}, &size));
  std::string made(size, '\0');
  if (size != 0) check(env, call(made.data(), size, &size));
  return made;
}

}  // namespace edgekit

#endif  // EDGEKIT_JNI_SUPPORT_H
