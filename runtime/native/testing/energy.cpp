// The meters of bench/energy.h, for tests in Python.
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/energy.h"
#include "edgekit.h"

using Meters = std::vector<std::unique_ptr<edgekit::EnergyMeter>>;

extern "C" {

// Those of a machine whose /sys lies below `root`, and of a library in place of NVIDIA's.
EK_API Meters *ekt_meters_open(const char *root, const char *nvml) {
  return new Meters(edgekit::energy_meters(root, nvml));
}

EK_API void ekt_meters_close(Meters *meters) { delete meters; }

// Null beyond the last one.
EK_API const char *ekt_meter_name(Meters *meters, std::int64_t index) {
  return index < static_cast<std::int64_t>(meters->size()) ? (*meters)[static_cast<std::size_t>(index)]->name() : nullptr;
}

EK_API double ekt_meter_joules(Meters *meters, std::int64_t index) {
  return (*meters)[static_cast<std::size_t>(index)]->joules();
}

}  // extern "C"
