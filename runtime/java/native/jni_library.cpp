// What Java calls when it loads the library.
#include <initializer_list>

#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

jclass kept(JNIEnv *env, const char *name) {
  jclass local = env->FindClass(name);
  check_java(env);
  auto *global = static_cast<jclass>(env->NewGlobalRef(local));
  check_java(env);
  return global;
}

jmethodID found(JNIEnv *env, jclass type, const char *name, const char *signature) {
  jmethodID method = env->GetMethodID(type, name, signature);
  check_java(env);
  return method;
}

jbyteArray version(JNIEnv *env, jclass) {
  return guarded(env, [&] { return to_java(env, ek_version()); });
}

jlong process_bytes(JNIEnv *, jclass) { return static_cast<jlong>(ek_process_bytes()); }

void load(JNIEnv *env) {
  if (ek_abi_version() != EK_ABI_VERSION)
    raise(env, "java/lang/UnsatisfiedLinkError", "libedgekit_jni and libedgekit_core are of different releases");
  classes.failure = kept(env, "io/edgekit/EdgeKitException");
  classes.new_failure = found(env, classes.failure, "<init>", "([BIJ)V");
  classes.info = kept(env, "io/edgekit/SessionInfo");
  classes.new_info = found(env, classes.info, "<init>", "(IIIIJZ)V");
  classes.statistics = kept(env, "io/edgekit/SessionStatistics");
  classes.new_statistics = found(env, classes.statistics, "<init>", "(JJJJDDD)V");
  classes.generation = kept(env, "io/edgekit/GenerationStatistics");
  classes.new_generation = found(env, classes.generation, "<init>", "(IJJJJJJD)V");
  jclass sink = kept(env, "io/edgekit/Native$Sink");
  classes.draft = found(env, sink, "draft", "(JJJ[I[Z)Z");
  classes.committed = found(env, sink, "committed", "(JJ[ILio/edgekit/GenerationStatistics;)Z");
  classes.joules = found(env, kept(env, "java/util/function/DoubleSupplier"), "getAsDouble", "()D");
  jclass natives = kept(env, "io/edgekit/Native");
  const std::vector<JNINativeMethod> own = {method("version", "()[B", version),
                                            method("processBytes", "()J", process_bytes)};
  for (const auto &methods :
       {own, bundle_methods(), text_methods(), canvas_methods(), session_methods(), bench_methods(), fetch_methods()}) {
    if (env->RegisterNatives(natives, methods.data(), static_cast<jint>(methods.size())) != JNI_OK) throw Pending();
  }
}

}  // namespace
}  // namespace edgekit

extern "C" JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *machine, void *) {
  void *env = nullptr;
  if (machine->GetEnv(&env, JNI_VERSION_1_6) != JNI_OK) return JNI_ERR;
  auto *own = static_cast<JNIEnv *>(env);
  return edgekit::guarded(own, [&]() -> jint {
    edgekit::load(own);
    return JNI_VERSION_1_6;
  });
}
