#include "packages/plugged_executor.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "packages/package_engine.h"
#include "utf8.h"

namespace edgekit {

// Room for what an executor says of a failure.
class PluggedExecutor::Told {
 public:
  static constexpr std::uint64_t kSize = 1024;
  char *data() { return text_; }

  // Behind a colon, or nothing.
  std::string line() const {
    std::string text(text_, std::find(text_, text_ + kSize, '\0'));
    text.resize(utf8_prefix(text));
    return text.empty() ? text : ": " + text;
  }

 private:
  char text_[kSize] = "";
};

class PluggedExecutor::Opened final : public OpenPackage {
 public:
  Opened(const PluggedExecutor &executor, const Package &package, void *opened)
      : executor_(executor), package_(package), opened_(opened) {}
  ~Opened() override { executor_.table_.close(executor_.table_.user, opened_); }

  void call(const PackageFunction &function, const std::vector<void *> &inputs, const std::vector<void *> &outputs) override {
    const std::vector<ek_package_array> taken = arrays(function.inputs, inputs), given = arrays(function.outputs, outputs);
    const ek_executor &table = executor_.table_;
    Told told;
    executor_.done(table.call(table.user, opened_, function.name.c_str(), taken.data(), static_cast<std::int64_t>(taken.size()),
                              given.data(), static_cast<std::int64_t>(given.size()), told.data(), Told::kSize),
                   "function " + function.name + " of package " + package_.name, told);
  }

 private:
  static std::vector<ek_package_array> arrays(const std::vector<Port> &ports, const std::vector<void *> &data) {
    std::vector<ek_package_array> out;
    for (std::size_t i = 0; i < ports.size(); ++i) {
      ek_package_array array{};
      array.name = ports[i].name.c_str();
      array.dtype = name_of(ports[i].type);
      array.shape = ports[i].shape.data();
      array.rank = static_cast<std::int64_t>(ports[i].shape.size());
      array.data = data[i];
      array.bytes = ports[i].bytes();
      out.push_back(array);
    }
    return out;
  }

  const PluggedExecutor &executor_;
  const Package &package_;
  void *const opened_;
};

PluggedExecutor::PluggedExecutor(std::string folder, const ek_executor &table)
    : folder_(std::move(folder)),
      table_(table),
      name_(table.name == nullptr || *table.name == '\0' ? "an unnamed executor" : table.name) {
  if (table.open == nullptr || table.call == nullptr || table.close == nullptr) {
    fail(EK_INVALID_ARGUMENT, "the table of ", name_, " has no function open, call or close: it needs all three");
  }
}

std::unique_ptr<OpenPackage> PluggedExecutor::open(const Package &package,
                                                   const std::vector<const PackageFunction *> &expected) {
  std::vector<const char *> functions;
  for (const PackageFunction *each : expected) functions.push_back(each->name.c_str());
  const std::string path = folder_ + "/" + package.path;
  void *opened = nullptr;
  Told told;
  done(table_.open(table_.user, package.name.c_str(), path.c_str(), functions.data(),
                   static_cast<std::int64_t>(functions.size()), &opened, told.data(), Told::kSize),
       "opening package " + package.name, told);
  try {
    return std::make_unique<Opened>(*this, package, opened);
  } catch (...) {
    table_.close(table_.user, opened);
    throw;
  }
}

void PluggedExecutor::done(std::int32_t answer, const std::string &doing, const Told &told) const {
  if (answer != EK_ENGINE_DONE) fail(EK_ENGINE_FAILED, folder_, ": ", name_, " failed in ", doing, told.line());
}

std::unique_ptr<Engine> plugged_packages(Bundle &bundle, int threads, const ek_executor &table) {
  if (!bundle.packaged()) {
    fail(EK_UNSUPPORTED_BUNDLE, bundle.path(), ": bundles of format ", bundle.format(), " have no packages for the executor \"",
         table.name == nullptr ? "" : table.name, "\"");
  }
  return std::make_unique<PackageEngine>(bundle, bundle.take_programs(), threads, [&bundle, table](const PackagePrograms &) {
    return std::make_unique<PluggedExecutor>(bundle.path(), table);
  });
}

std::unique_ptr<Engine> planned_packages(Bundle &bundle, int threads) {
  return std::make_unique<PackageEngine>(
      bundle, bundle.take_programs(), threads, [&bundle](const PackagePrograms &) -> std::unique_ptr<PackageExecutor> {
        fail(EK_INTERNAL, bundle.path(), ": an engine for a plan was opened; please report it");
      });
}

}  // namespace edgekit
