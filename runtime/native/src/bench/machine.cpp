#include "bench/machine.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "cpu.h"
#include "session/process.h"
#include "utf8.h"

#if defined(_WIN32)
#include <windows.h>
#elif defined(__APPLE__)
#include <TargetConditionals.h>
#include <sys/sysctl.h>
#include <sys/utsname.h>
#else
#include <sys/utsname.h>
#if defined(__ANDROID__)
#include <sys/system_properties.h>
#endif
#endif

namespace edgekit {
namespace {

// Without blanks around it, and as UTF-8: nobody promises that firmware writes that.
std::string trimmed(const std::string &text) {
  const std::string blanks(" \t\r\n\0", 5);
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string::npos) return "";
  std::string out = text.substr(first, text.find_last_not_of(blanks) - first + 1);
  for (std::size_t at; (at = utf8_prefix(out)) < out.size();) out[at] = '?';
  return out;
}

#if defined(__APPLE__)

std::string system_text(const char *name) {
  char text[256] = "";
  std::size_t size = sizeof text - 1;
  return sysctlbyname(name, text, &size, nullptr, 0) == 0 ? trimmed(text) : "";
}

#elif defined(_WIN32)

std::string registry_text(const char *key, const char *name) {
  char text[256] = "";
  DWORD size = sizeof text - 1;
  const LSTATUS status = RegGetValueA(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_SZ, nullptr, text, &size);
  return status == ERROR_SUCCESS ? trimmed(text) : "";
}

#else

// What Linux calls a processor's name: on x86, and on ARM where it says anything.
std::string processor_in(const std::string &path) {
  std::ifstream file(path);
  std::string found[3];
  const char *names[3] = {"model name", "Model", "Hardware"};
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    for (int i = 0; i < 3; ++i) {
      if (trimmed(line.substr(0, colon)) == names[i]) found[i] = trimmed(line.substr(colon + 1));
    }
  }
  for (const std::string &each : found) {
    if (!each.empty()) return each;
  }
  return "";
}

std::string text_in(const std::string &path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return trimmed(text);
}

#endif

#if defined(__ANDROID__)

std::string property(const char *name) {
  char text[PROP_VALUE_MAX] = "";
  return __system_property_get(name, text) > 0 ? trimmed(text) : "";
}

#endif

}  // namespace

MachineFacts machine_facts([[maybe_unused]] const std::string &root) {
  MachineFacts out;
#if !defined(_WIN32)
  utsname names{};
  if (uname(&names) == 0) {
    out.system = names.sysname;
    out.release = names.release;
    out.architecture = names.machine;
  }
#endif
#if defined(__APPLE__)
  if (TARGET_OS_IPHONE) {
    out.system = "iOS";
    out.architecture = "arm64";  // there `machine` is the device
  }
  out.release = system_text("kern.osproductversion");
  out.processor = system_text("machdep.cpu.brand_string");
  // A phone's model is its machine, a Mac's has a name of its own.
  out.device = system_text(TARGET_OS_IPHONE ? "hw.machine" : "hw.model");
#elif defined(_WIN32)
  out.system = "Windows";
#if defined(_M_ARM64) || defined(__aarch64__)
  out.architecture = "ARM64";
#else
  out.architecture = "AMD64";
#endif
  out.release = registry_text("SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion", "CurrentBuildNumber");
  out.processor = registry_text("HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0", "ProcessorNameString");
#else
  out.processor = processor_in(root + "/proc/cpuinfo");
  out.device = text_in(root + "/proc/device-tree/model");
#if defined(__ANDROID__)
  out.system = "Android";
  out.release = property("ro.build.version.release");
  out.device = trimmed(property("ro.product.manufacturer") + " " + property("ro.product.model"));
  if (out.processor.empty()) out.processor = property("ro.soc.model");
#endif
#endif
  if (out.processor.empty()) out.processor = out.architecture;
  out.cores = usable_cores();
  out.memory_bytes = machine_memory(root);
  const std::uint64_t found = detect_cpu_features();
  for (std::size_t i = 0; i < cpu_feature_count(); ++i) {
    if ((found >> i & 1) != 0) out.cpu_features.emplace_back(cpu_feature_name(i));
  }
  return out;
}

}  // namespace edgekit
