#include "session/process.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

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

// Cores that a quota in microseconds per period amounts to, rounded up: half a core still runs one thread.
int quota_cores(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::max<long long>(1, (quota + period - 1) / period));
}

int quota_of(const std::string &folder, bool unified) {
  long long quota = 0, period = 0;
  if (unified) {
    std::ifstream file(folder + "/cpu.max");  // "max 100000" fails to parse: no quota
    return file >> quota >> period ? quota_cores(quota, period) : 0;
  }
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period ? quota_cores(quota, period) : 0;
}

// The least quota of the process's control group and the groups around it; 0 for none.
int group_cores() {
  std::ifstream groups("/proc/self/cgroup");
  int least = 0;
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; the unified hierarchy lists no controllers.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    std::string path = line.substr(second + 1);
    for (;;) {
      if (path == "/") path.clear();
      const int cores = quota_of(root + path, unified);
      if (cores > 0 && (least == 0 || cores < least)) least = cores;
      if (path.empty()) break;
      path.erase(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
  }
  return least;
}

#endif

}  // namespace

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
  int cores = std::max(1, allowed_cores());
  if (const int quota = group_cores(); quota > 0) cores = std::min(cores, quota);
  return cores;
#else
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#endif
}

}  // namespace edgekit
