#include "session/process.h"

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>

#include <psapi.h>
#endif

namespace edgekit {
namespace {

#if defined(__linux__)

int allowed_cores() {
  // Machines with more than 1024 cores need a larger set than cpu_set_t.
  for (int cores = 1024; cores <= 65536; cores *= 4) {
    cpu_set_t *set = CPU_ALLOC(static_cast<std::size_t>(cores));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(cores));
    CPU_ZERO_S(size, set);
    const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

#endif

// Cores that microseconds per period amount to, rounded up: half a core still runs one thread. 0 for no limit.
std::uint64_t quota_cores(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<std::uint64_t>(std::min<long long>(quota / period + (quota % period != 0), INT_MAX));
}

std::uint64_t quota_of(const std::string &folder, bool unified) {
  long long quota = 0, period = 0;
  if (unified) {
    std::ifstream file(folder + "/cpu.max");  // "max 100000" fails to parse: no limit
    return file >> quota >> period ? quota_cores(quota, period) : 0;
  }
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period ? quota_cores(quota, period) : 0;
}

std::uint64_t memory_of(const std::string &folder, bool unified) {
  std::ifstream file(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  long long bytes = 0;  // "max" fails to parse: no limit
  return file >> bytes && bytes > 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

// What a group, whose folder is given, may have at most; 0 for no limit.
using LimitOf = std::uint64_t (*)(const std::string &folder, bool unified);

// The least limit of the group at `path` of a hierarchy and of the groups around it; 0 for none. A container sees its
// own group as the hierarchy's root, under a path that may be the host's.
std::uint64_t least_around(const std::string &hierarchy, std::string path, bool unified, LimitOf limit_of) {
  std::uint64_t least = 0;
  for (;;) {
    if (path == "/") path.clear();
    const std::uint64_t limit = limit_of(hierarchy + path, unified);
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return least;
    path.erase(slash);
  }
}

// The least limit that the control groups of this process set for a controller; 0 for none.
std::uint64_t group_limit(const std::string &root, const std::string &controller, LimitOf limit_of) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::uint64_t least = 0;
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; the unified hierarchy lists no controllers.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    // Hierarchies of old are mounted under the names of their controllers, all of them or the one.
    std::vector<std::string> mounts{""};
    if (!unified) mounts = {"/" + controller, "/" + controllers};
    for (const std::string &mount : mounts) {
      const std::uint64_t limit = least_around(root + "/sys/fs/cgroup" + mount, path, unified, limit_of);
      if (limit > 0 && (least == 0 || limit < least)) least = limit;
    }
  }
  return least;
}

#if defined(__APPLE__)

bool task_memory(task_vm_info_data_t &info) {
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  return task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) == KERN_SUCCESS;
}

#endif

#if !defined(__APPLE__) && !defined(_WIN32)

// What /proc/meminfo says, which containers may have of their own; 0 where there is none.
std::uint64_t physical_memory(const std::string &root) {
  std::ifstream file(root + "/proc/meminfo");
  std::uint64_t kilobytes = 0;
  for (std::string name; file >> name;) {
    if (name == "MemTotal:") return file >> kilobytes ? kilobytes * 1024 : 0;
  }
  return 0;
}

#endif

}  // namespace

int group_cores(const std::string &root) { return static_cast<int>(group_limit(root, "cpu", quota_of)); }

std::uint64_t machine_memory(const std::string &root) {
  std::uint64_t physical = 0;
#if defined(__APPLE__)
  std::size_t size = sizeof physical;
  if (sysctlbyname("hw.memsize", &physical, &size, nullptr, 0) != 0) physical = 0;
#elif defined(_WIN32)
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  if (GlobalMemoryStatusEx(&status)) physical = status.ullTotalPhys;
#else
  physical = physical_memory(root);
#endif
  const std::uint64_t granted = group_limit(root, "memory", memory_of);
  return granted > 0 && (physical == 0 || granted < physical) ? granted : physical;
}

std::uint64_t process_resident_bytes() { return process_memory().resident; }

ProcessMemory process_memory() {
  ProcessMemory out;
#if defined(__linux__)
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0, shared = 0;
  const long page = sysconf(_SC_PAGESIZE);
  if (page <= 0 || !(file >> size >> resident >> shared)) return out;
  out.resident = resident * static_cast<std::uint64_t>(page);
  out.file = std::min(out.resident, shared * static_cast<std::uint64_t>(page));
  out.anonymous = out.resident - out.file;
#elif defined(__APPLE__)
  task_vm_info_data_t info;
  if (!task_memory(info)) return out;
  // What is compressed counts as resident, pages of files do not.
  out.resident = out.anonymous = info.phys_footprint;
  out.file = info.external;
#elif defined(_WIN32)
  PROCESS_MEMORY_COUNTERS_EX counters{};
  if (!GetProcessMemoryInfo(GetCurrentProcess(), reinterpret_cast<PROCESS_MEMORY_COUNTERS *>(&counters), sizeof counters))
    return out;
  out.resident = counters.WorkingSetSize;
  out.anonymous = std::min<std::uint64_t>(counters.PrivateUsage, counters.WorkingSetSize);
  out.file = out.resident - out.anonymous;
#endif
  return out;
}

std::uint64_t process_peak_bytes() {
#if defined(__linux__)
  std::ifstream file("/proc/self/status");
  std::uint64_t kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == "VmHWM:") return file >> kilobytes ? kilobytes * 1024 : 0;
  }
  return 0;
#elif defined(__APPLE__)
  task_vm_info_data_t info;
  if (!task_memory(info)) return 0;
  return static_cast<std::uint64_t>(std::max<std::int64_t>(info.ledger_phys_footprint_peak, 0));
#elif defined(_WIN32)
  PROCESS_MEMORY_COUNTERS counters{};
  return GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters) ? counters.PeakWorkingSetSize : 0;
#else
  return 0;
#endif
}

int usable_cores() {
#if defined(__linux__)
  const int cores = std::max(1, allowed_cores());
  const int granted = group_cores();
  return granted > 0 ? std::min(cores, granted) : cores;
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

}  // namespace edgekit
