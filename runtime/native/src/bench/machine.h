// The machine, for reports that people send: no name of a user, host or folder.
#ifndef EDGEKIT_BENCH_MACHINE_H
#define EDGEKIT_BENCH_MACHINE_H

#include <cstdint>
#include <string>
#include <vector>

namespace edgekit {

struct MachineFacts {
  std::string system;        // "Linux", "Darwin", "Windows", "Android", "iOS"
  std::string release;       // of the system
  std::string architecture;  // as the system calls it: "x86_64", "aarch64", "arm64", "AMD64", ...
  std::string processor;     // its name, or the architecture where nobody tells
  std::string device;        // "iPhone17,1", "Mac16,10", "Raspberry Pi 5 Model B", ...; empty: nobody tells
  int cores = 1;             // that this process may keep busy
  std::uint64_t memory_bytes = 0;  // that it may use; 0: nobody tells
  std::vector<std::string> cpu_features;
};

// `root` stands in front of /proc and /sys, for tests.
MachineFacts machine_facts(const std::string &root = "");

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_MACHINE_H
