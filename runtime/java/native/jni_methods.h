// The native methods of io.edgekit.Native, by the file that has them.
#ifndef EDGEKIT_JNI_METHODS_H
#define EDGEKIT_JNI_METHODS_H

#include <jni.h>

#include <vector>

namespace edgekit {

std::vector<JNINativeMethod> bundle_methods();
std::vector<JNINativeMethod> text_methods();
std::vector<JNINativeMethod> canvas_methods();
std::vector<JNINativeMethod> session_methods();
std::vector<JNINativeMethod> bench_methods();
std::vector<JNINativeMethod> fetch_methods();

// A row of such a table: JNI.h wants char pointers that it does not write to.
template <typename Function>
JNINativeMethod method(const char *name, const char *signature, Function *function) {
  return {const_cast<char *>(name), const_cast<char *>(signature), reinterpret_cast<void *>(function)};
}

}  // namespace edgekit

#endif  // EDGEKIT_JNI_METHODS_H
