#include "jni_bench.h"
#include "jni_methods.h"
#include "jni_support.h"

namespace edgekit {
namespace {

void npu_load(JNIEnv *env, jclass, jbyteArray onnxruntime, jbyteArray provider, jbyteArray backend, jbyteArray chip,
              jbyteArray soc_model) {
  guarded(env, [&] {
    const OptionalText library(env, onnxruntime), given_provider(env, provider), given_backend(env, backend);
    const OptionalText given_chip(env, chip), given_model(env, soc_model);
    ek_qnn_options options = {};
    options.struct_size = sizeof options;
    options.onnxruntime = library.get();
    options.provider = given_provider.get();
    options.backend = given_backend.get();
    options.chip = given_chip.get();
    options.soc_model = given_model.get();
    check(env, ek_qnn_load(&options));
  });
}

jlong open(JNIEnv *env, jclass, jbyteArray bundle, jlongArray members) {
  return guarded(env, [&] {
    jlong given[6];
    env->GetLongArrayRegion(members, 0, 6, given);
    check_java(env);
    ek_session_options options = EK_SESSION_OPTIONS_INIT;
    options.threads = static_cast<std::int32_t>(given[0]);
    options.memory_bytes = static_cast<std::uint64_t>(given[1]);
    options.resident_bytes = static_cast<std::uint64_t>(given[2]);  // -1 is UINT64_MAX
    options.positions = given[3];
    options.canvas = given[4];
    options.adapter = given[5];
    ek_session *session = nullptr;
    check(env, ek_session_open(chosen_bundle(env, bundle).c_str(), &options, &session));
    return handle(session);
  });
}

void close(JNIEnv *, jclass, jlong session) { ek_session_close(handle<ek_session>(session)); }

jobject info(JNIEnv *env, jclass, jlong session) {
  return guarded(env, [&] {
    ek_session_info found = {};
    found.struct_size = sizeof found;
    check(env, ek_session_get_info(handle<ek_session>(session), &found));
    jobject made = env->NewObject(classes.info, classes.new_info, static_cast<jint>(found.threads),
                                  static_cast<jint>(found.vocabulary), static_cast<jint>(found.prefix_length),
                                  static_cast<jint>(found.canvas_length), static_cast<jlong>(found.max_positions),
                                  static_cast<jboolean>(found.causal_prefix != 0));
    check_java(env);
    return made;
  });
}

jobject statistics(JNIEnv *env, jclass, jlong session) {
  return guarded(env, [&] {
    ek_session_statistics found = {};
    found.struct_size = sizeof found;
    check(env, ek_session_get_statistics(handle<ek_session>(session), &found));
    jobject made = env->NewObject(
        classes.statistics, classes.new_statistics, static_cast<jlong>(found.pinned_bytes),
        static_cast<jlong>(found.ring_bytes), static_cast<jlong>(found.streamed_bytes_per_step),
        static_cast<jlong>(found.bytes_read), found.io_seconds, found.io_wait_seconds, found.pass_seconds);
    check_java(env);
    return made;
  });
}

void reset(JNIEnv *env, jclass, jlong session) {
  guarded(env, [&] { check(env, ek_session_reset(handle<ek_session>(session))); });
}

void idle(JNIEnv *env, jclass, jlong session) {
  guarded(env, [&] { check(env, ek_session_idle(handle<ek_session>(session))); });
}

void limit_resident(JNIEnv *env, jclass, jlong session, jlong bytes) {
  guarded(env, [&] {
    check(env, ek_session_limit_resident(handle<ek_session>(session), static_cast<std::uint64_t>(bytes)));
  });
}

struct Sink {
  JNIEnv *env;
  jobject object;
  ek_bench *bench;    // null: it is not measured
  jlong forwards;     // denoising passes that end it; 0: none
};

jobject counters(JNIEnv *env, const ek_generation_statistics &found) {
  jobject made = env->NewObject(classes.generation, classes.new_generation, static_cast<jint>(found.finish_reason),
                                static_cast<jlong>(found.denoising_steps), static_cast<jlong>(found.forwards),
                                static_cast<jlong>(found.projections), static_cast<jlong>(found.prefills),
                                static_cast<jlong>(found.committed_tokens), static_cast<jlong>(found.canvases),
                                found.seconds);
  check_java(env);
  return made;
}

// Whether the listener wants more of it.
bool told(JNIEnv *env, jobject sink, const ek_event &event) {
  jintArray ids = to_java(env, event.ids, event.count);
  if (event.kind == EK_EVENT_COMMITTED)
    return env->CallBooleanMethod(sink, classes.committed, static_cast<jlong>(event.canvas_index),
                                  static_cast<jlong>(event.start), ids, counters(env, *event.statistics)) == JNI_TRUE;
  const auto count = static_cast<jsize>(event.count);
  jbooleanArray accepted = env->NewBooleanArray(count);
  check_java(env);
  const std::vector<jboolean> flags(event.accepted, event.accepted + event.count);
  env->SetBooleanArrayRegion(accepted, 0, count, flags.data());
  return env->CallBooleanMethod(sink, classes.draft, static_cast<jlong>(event.canvas_index),
                                static_cast<jlong>(event.step), static_cast<jlong>(event.start), ids,
                                accepted) == JNI_TRUE;
}

std::int32_t forward(const ek_event *event, void *user_data) {
  auto &sink = *static_cast<Sink *>(user_data);
  // At once: the generation's own end has another message.
  const bool counted = sink.bench == nullptr || guarded(sink.env, [&] {
    check(sink.env, ek_bench_tell(sink.bench, 0, event));
    return true;
  });
  if (!counted) return 1;
  if (event->kind != EK_EVENT_DRAFT && event->kind != EK_EVENT_COMMITTED) return 0;
  // A generation is one call of Java's: what it makes would live until its end.
  if (sink.env->PushLocalFrame(8) != JNI_OK) return 1;
  const bool goes_on = guarded(sink.env, [&] { return told(sink.env, sink.object, *event); });
  sink.env->PopLocalFrame(nullptr);
  const bool reached = sink.forwards > 0 && event->statistics->forwards >= sink.forwards;
  return goes_on && !reached && sink.env->ExceptionCheck() == JNI_FALSE ? 0 : 1;
}

jobject generate(JNIEnv *env, jclass, jlong session, jintArray prompt, jlong seed, jlong max_new_tokens, jlong steps,
                 jbyteArray options, jobject sink, jlong bench, jlong forwards) {
  return guarded(env, [&] {
    const auto ids = tokens(env, prompt);
    const std::string json = options == nullptr ? std::string() : bytes(env, options);
    ek_generate_options wanted = EK_GENERATE_OPTIONS_INIT;
    wanted.seed = static_cast<std::uint64_t>(seed);
    wanted.max_new_tokens = max_new_tokens;
    wanted.steps = steps;
    wanted.options = options == nullptr ? nullptr : json.c_str();
    ek_generation_statistics found = {};
    found.struct_size = sizeof found;
    Sink own = {env, sink, bench == 0 ? nullptr : handle<JavaBench>(bench)->bench, forwards};
    const ek_status status = ek_generate(handle<ek_session>(session), ids.data(), static_cast<std::int64_t>(ids.size()),
                                         &wanted, forward, &own, &found);
    check_java(env);  // of the listener or the bench: the reason for a stop
    if (status != EK_STOPPED) check(env, status);
    return counters(env, found);
  });
}

}  // namespace

std::vector<JNINativeMethod> session_methods() {
  return {method("npuLoad", "([B[B[B[B[B)V", npu_load),
          method("sessionOpen", "([B[J)J", open),
          method("sessionClose", "(J)V", close),
          method("sessionInfo", "(J)Lio/edgekit/SessionInfo;", info),
          method("sessionStatistics", "(J)Lio/edgekit/SessionStatistics;", statistics),
          method("sessionReset", "(J)V", reset),
          method("sessionIdle", "(J)V", idle),
          method("sessionLimitResident", "(JJ)V", limit_resident),
          method("generate", "(J[IJJJ[BLio/edgekit/Native$Sink;JJ)Lio/edgekit/GenerationStatistics;", generate)};
}

}  // namespace edgekit
