// How fast a disk gives the bytes of a file, measured by reads with nothing computed beside them.
#ifndef EDGEKIT_DISK_PROBE_H
#define EDGEKIT_DISK_PROBE_H

#include <cstdint>
#include <string>

namespace edgekit {

struct DiskProbe {
  double bytes_per_second = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  bool direct = false;  // past the page cache
};

// Reads a file past the page cache for about `seconds`, from front to back and again, as threads do that do nothing
// else. Throws Error: EK_INVALID_ARGUMENT, and those of reading.
DiskProbe probe_disk(const std::string &path, double seconds);

// The same for one stretch of it, once, with so many threads and bytes a read. Throws Error; EK_OPEN_FAILED where the
// system has no way past its cache.
DiskProbe read_stretch(const std::string &path, int threads, std::uint64_t chunk_bytes, std::uint64_t offset,
                       std::uint64_t bytes);

}  // namespace edgekit

#endif  // EDGEKIT_DISK_PROBE_H
