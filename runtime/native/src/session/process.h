// What the operating system lets this process use, and what it uses (see runtime/process.py).
#ifndef EDGEKIT_SESSION_PROCESS_H
#define EDGEKIT_SESSION_PROCESS_H

#include <cstdint>
#include <string>

namespace edgekit {

// Physical memory of the process now; 0 where the system does not tell.
std::uint64_t process_resident_bytes();

// Physical memory of the process in bytes; 0 for what the system does not tell.
struct ProcessMemory {
  std::uint64_t resident = 0;   // what process_resident_bytes gives
  std::uint64_t anonymous = 0;  // of it, what no file stands behind
  std::uint64_t file = 0;       // of it, pages of files and shared ones
};
ProcessMemory process_memory();

// The most that `resident` has been; 0 where the system does not tell.
std::uint64_t process_peak_bytes();

// Physical memory of the machine in bytes, or less where the control groups of this process grant less; 0 where the
// system does not tell. `root` is as below.
std::uint64_t machine_memory(const std::string &root = "");

// Processor cores that this process may keep busy: those that it may run on, or fewer where a Linux control group
// grants less time. At least 1.
int usable_cores();

// Cores for which the control groups of this process grant time, rounded up; 0 for no limit. `root` stands in front of
// /proc and /sys, for tests.
int group_cores(const std::string &root = "");

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_PROCESS_H
