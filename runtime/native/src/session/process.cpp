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
int quota_cores(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<long long>(quota / period + (quota % period != 0), INT_MAX));
}

int quota_of(const std::string &folder, bool unified) {
  long long quota = 0, period = 0;
  if (unified) {
    std::ifstream file(folder + "/cpu.max");  // "max 100000" fails to parse: no limit
    return file >> quota >> period ? quota_cores(quota, period) : 0;
  }
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period ? quota_cores(quota, period) : 0;
}

// The least quota of the group at `path` of a hierarchy and of the groups around it; 0 for none. A container sees its
// own group as the hierarchy's root, under a path that may be the host's.
int least_quota(const std::string &hierarchy, std::string path, bool unified) {
  int least = 0;
  for (;;) {
    if (path == "/") path.clear();
    const int cores = quota_of(hierarchy + path, unified);
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return least;
    path.erase(slash);
  }
}

}  // namespace

int group_cores(const std::string &root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  int least = 0;
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; the unified hierarchy lists no controllers.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    // Hierarchies of old are mounted under the names of their controllers, all of them or the one.
    std::vector<std::string> mounts{""};
    if (!unified) mounts = {"/cpu", "/" + controllers};
    for (const std::string &mount : mounts) {
      const int cores = least_quota(root + "/sys/fs/cgroup" + mount, path, unified);
      if (cores > 0 && (least == 0 || cores < least)) least = cores;
    }
  }
  return least;
}

std::uint64_t process_resident_bytes() {
#if defined(__linux__)
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  const long page = sysconf(_SC_PAGESIZE);
  return page > 0 ? resident * static_cast<std::uint64_t>(page) : 0;
#elif defined(__APPLE__)
  task_vm_info_data_t info;
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  const kern_return_t result =
      task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count);
  return result == KERN_SUCCESS ? info.phys_footprint : 0;
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
