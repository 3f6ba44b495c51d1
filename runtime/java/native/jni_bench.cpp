#include <memory>

#include "jni_bench.h"
#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

// The library asks the meter from a thread of its own, which Java has to know for as long as it lives.
class KnownThread {
 public:
  ~KnownThread() {
    if (machine_ != nullptr) machine_->DetachCurrentThread();
  }

  JNIEnv *env(JavaVM *machine) {
    void *found = nullptr;
    if (machine->GetEnv(&found, JNI_VERSION_1_6) == JNI_OK) return static_cast<JNIEnv *>(found);
    JNIEnv *attached = nullptr;
#if defined(__ANDROID__)
    JNIEnv **place = &attached;
#else
    void **place = reinterpret_cast<void **>(&attached);
#endif
    if (machine->AttachCurrentThreadAsDaemon(place, nullptr) != JNI_OK) return nullptr;
    machine_ = machine;
    return attached;
  }

 private:
  JavaVM *machine_ = nullptr;
};

double joules(void *user_data) {
  thread_local KnownThread thread;
  const auto &own = *static_cast<const JavaBench *>(user_data);
  JNIEnv *env = thread.env(own.machine);
  if (env == nullptr) return -1;
  const double found = env->CallDoubleMethod(own.meter, classes.joules);
  if (env->ExceptionCheck() == JNI_FALSE) return found;
  env->ExceptionClear();
  return -1;
}

jlong open(JNIEnv *env, jclass, jlong session, jbyteArray about, jlong spans, jobject meter) {
  return guarded(env, [&] {
    const std::string text = bytes(env, about);
    auto made = std::make_unique<JavaBench>();
    ek_bench_options options = EK_BENCH_OPTIONS_INIT;
    options.spans = spans;
    options.about = text.c_str();
    if (meter != nullptr) {
      if (env->GetJavaVM(&made->machine) != JNI_OK)
        raise(env, "java/lang/InternalError", "Java does not tell its machine");
      made->meter = env->NewGlobalRef(meter);
      check_java(env);
      options.joules = joules;
      options.user_data = made.get();
    }
    const ek_status status = ek_bench_open(handle<ek_session>(session), &options, &made->bench);
    if (status != EK_OK && made->meter != nullptr) env->DeleteGlobalRef(made->meter);
    check(env, status);
    return handle(made.release());
  });
}

void close(JNIEnv *env, jclass, jlong bench) {
  auto *own = handle<JavaBench>(bench);
  ek_bench_close(own->bench);
  if (own->meter != nullptr) env->DeleteGlobalRef(own->meter);
  delete own;
}

void begin(JNIEnv *env, jclass, jlong bench, jbyteArray label, jlong prompt_tokens) {
  guarded(env, [&] {
    check(env, ek_bench_begin(handle<JavaBench>(bench)->bench, bytes(env, label).c_str(), prompt_tokens));
  });
}

void end(JNIEnv *env, jclass, jlong bench) {
  guarded(env, [&] { check(env, ek_bench_end(handle<JavaBench>(bench)->bench)); });
}

void drop(JNIEnv *env, jclass, jlong bench) {
  guarded(env, [&] { check(env, ek_bench_drop(handle<JavaBench>(bench)->bench)); });
}

jbyteArray report(JNIEnv *env, jclass, jlong bench) {
  return guarded(env, [&] {
    ek_bench *own = handle<JavaBench>(bench)->bench;
    std::uint64_t size = 0;
    check(env, ek_bench_get_report(own, nullptr, 0, &size));
    std::string text(size + 4096, '\0');  // numbers of the machine may be longer the second time
    check(env, ek_bench_get_report(own, text.data(), text.size(), &size));
    return to_java(env, std::string_view(text).substr(0, size));
  });
}

jbyteArray limits(JNIEnv *env, jclass, jbyteArray bundle, jdouble processor_seconds, jdouble disk_seconds) {
  return guarded(env, [&] {
    char text[EK_LIMITS_SIZE];
    std::uint64_t size = 0;
    check(env, ek_describe_limits(chosen_bundle(env, bundle).c_str(), processor_seconds, disk_seconds, text, sizeof text, &size));
    return to_java(env, {text, size});
  });
}

}  // namespace

std::vector<JNINativeMethod> bench_methods() {
  return {method("benchOpen", "(J[BJLjava/util/function/DoubleSupplier;)J", open),
          method("benchClose", "(J)V", close),
          method("benchBegin", "(J[BJ)V", begin),
          method("benchEnd", "(J)V", end),
          method("benchDrop", "(J)V", drop),
          method("benchReport", "(J)[B", report),
          method("limits", "([BDD)[B", limits)};
}

}  // namespace edgekit
