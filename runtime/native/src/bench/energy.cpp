#include "bench/energy.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "error.h"
#include "shared_library.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path &path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional<std::uint64_t>(number) : std::nullopt;
}

std::string word_in(const fs::path &path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

std::vector<fs::path> entries(const fs::path &folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    out.push_back(entry->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Linux's powercap: /sys/class/powercap/intel-rapl:0 is a package (AMD's too), intel-rapl:0:1 a part of it. Memory is
// counted outside of its package.
class Rapl final : public EnergyMeter {
 public:
  explicit Rapl(const std::string &root) {
    for (const fs::path &zone : entries(root + "/sys/class/powercap")) {
      if (zone.filename().string().rfind("intel-rapl:", 0) != 0) continue;
      const std::string name = word_in(zone / "name");
      if (name.rfind("package", 0) != 0 && name != "dram") continue;
      const auto range = number_in(zone / "max_energy_range_uj"), now = number_in(zone / "energy_uj");
      if (range && now) zones_.push_back({zone / "energy_uj", *range, *now});
    }
  }

  bool found() const { return !zones_.empty(); }
  const char *name() const noexcept override { return "rapl"; }

  double joules() noexcept override {
    try {
      for (Zone &zone : zones_) {
        const auto now = number_in(zone.path);
        if (!now) return -1;
        // It begins at 0 again behind its range.
        sum_ += *now >= zone.last ? *now - zone.last : zone.range - zone.last + *now;
        zone.last = *now;
      }
      return static_cast<double>(sum_) * 1e-6;
    } catch (...) {
      return -1;
    }
  }

 private:
  struct Zone {
    fs::path path;
    std::uint64_t range, last;
  };
  std::vector<Zone> zones_;
  std::uint64_t sum_ = 0;  // microjoules
};

// Jetson's INA3221 monitors: millivolts and milliamperes of each rail. VDD_IN is the whole module where there is one.
class Rails final : public EnergyMeter {
 public:
  explicit Rails(const std::string &root) {
    std::vector<Rail> all;
    for (const fs::path &monitor : entries(root + "/sys/class/hwmon")) {
      if (word_in(monitor / "name") != "ina3221") continue;
      for (const char channel : {'1', '2', '3'}) {
        const std::string in = std::string("in") + channel;
        const fs::path amperes = monitor / (std::string("curr") + channel + "_input");
        if (!number_in(monitor / (in + "_input")) || !number_in(amperes)) continue;
        all.push_back({monitor / (in + "_input"), amperes, word_in(monitor / (in + "_label"))});
      }
    }
    const auto whole = std::find_if(all.begin(), all.end(), [](const Rail &rail) { return rail.label == "VDD_IN"; });
    if (whole != all.end()) all = {*whole};
    rails_ = std::move(all);
  }

  bool found() const { return !rails_.empty(); }
  const char *name() const noexcept override { return "rails"; }

  double joules() noexcept override {
    try {
      std::uint64_t microwatts = 0;
      for (const Rail &rail : rails_) {
        const auto volts = number_in(rail.volts), amperes = number_in(rail.amperes);
        if (!volts || !amperes) return -1;
        microwatts += *volts * *amperes;
      }
      const auto now = std::chrono::steady_clock::now();
      if (last_) sum_ += static_cast<double>(microwatts) * 1e-6 * std::chrono::duration<double>(now - *last_).count();
      last_ = now;
      return sum_;
    } catch (...) {
      return -1;
    }
  }

 private:
  struct Rail {
    fs::path volts, amperes;
    std::string label;
  };
  std::vector<Rail> rails_;
  std::optional<std::chrono::steady_clock::time_point> last_;
  double sum_ = 0;
};

#if defined(__linux__)

// NVIDIA's management library: energy of each GPU since its driver was loaded, in millijoules (from Volta on).
class Nvml final : public EnergyMeter {
 public:
  explicit Nvml(const std::string &path) {
    void *library = nullptr;
    try {
      library = open_library(path);
    } catch (const Error &) {
      return;  // no driver
    }
    const auto start = reinterpret_cast<int (*)()>(symbol_of(library, "nvmlInit_v2"));
    const auto count = reinterpret_cast<int (*)(unsigned *)>(symbol_of(library, "nvmlDeviceGetCount_v2"));
    const auto device =
        reinterpret_cast<int (*)(unsigned, void **)>(symbol_of(library, "nvmlDeviceGetHandleByIndex_v2"));
    energy_ = reinterpret_cast<Energy>(symbol_of(library, "nvmlDeviceGetTotalEnergyConsumption"));
    if (start == nullptr || count == nullptr || device == nullptr || energy_ == nullptr || start() != 0) return;
    unsigned devices = 0;
    if (count(&devices) != 0) return;
    for (unsigned i = 0; i < devices; ++i) {
      void *found = nullptr;
      unsigned long long millijoules = 0;
      if (device(i, &found) == 0 && energy_(found, &millijoules) == 0) devices_.push_back(found);
    }
  }

  bool found() const { return !devices_.empty(); }
  const char *name() const noexcept override { return "nvml"; }

  double joules() noexcept override {
    unsigned long long sum = 0;
    for (void *device : devices_) {
      unsigned long long millijoules = 0;
      if (energy_(device, &millijoules) != 0) return -1;
      sum += millijoules;
    }
    return static_cast<double>(sum) * 1e-3;
  }

 private:
  using Energy = int (*)(void *, unsigned long long *);
  Energy energy_ = nullptr;
  std::vector<void *> devices_;
};

#endif

template <typename Meter>
void add(std::vector<std::unique_ptr<EnergyMeter>> &meters, std::unique_ptr<Meter> meter) {
  if (meter->found()) meters.push_back(std::move(meter));
}

}  // namespace

std::vector<std::unique_ptr<EnergyMeter>> energy_meters(const std::string &root, const std::string &nvml) {
  std::vector<std::unique_ptr<EnergyMeter>> out;
  add(out, std::make_unique<Rapl>(root));
  add(out, std::make_unique<Rails>(root));
#if defined(__linux__)  // elsewhere a library's bare name is looked for where anybody may put one
  add(out, std::make_unique<Nvml>(nvml));
#else
  (void)nvml;
#endif
  return out;
}

}  // namespace edgekit
