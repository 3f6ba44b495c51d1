// What a handle of a bench points at.
#ifndef EDGEKIT_JNI_BENCH_H
#define EDGEKIT_JNI_BENCH_H

#include <jni.h>

#include "edgekit.h"

namespace edgekit {

struct JavaBench {
  ek_bench *bench = nullptr;
  JavaVM *machine = nullptr;
  jobject meter = nullptr;  // a DoubleSupplier; null: those that the library knows
};

}  // namespace edgekit

#endif  // EDGEKIT_JNI_BENCH_H
