// What the system's own meters say about energy.
#ifndef EDGEKIT_BENCH_ENERGY_H
#define EDGEKIT_BENCH_ENERGY_H

#include <memory>
#include <string>
#include <vector>

namespace edgekit {

// A meter that counts up from any moment.
class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;
  virtual const char *name() const noexcept = 0;
  // So far; negative: it cannot be read any more. Meters that know power alone take it to have lasted since the last call,
  // so that they have to be asked often.
  virtual double joules() noexcept = 0;
};

// Those of this machine that this process may read: "rapl" (processor packages and their memory, Linux on x86), "rails"
// (INA3221 monitors of Jetson boards), "nvml" (NVIDIA GPUs, on Linux). `root` stands in front of /sys, for tests; `nvml` is the
// library to load.
std::vector<std::unique_ptr<EnergyMeter>> energy_meters(const std::string &root = "",
                                                        const std::string &nvml = "libnvidia-ml.so.1");

}  // namespace edgekit

#endif  // EDGEKIT_BENCH_ENERGY_H
