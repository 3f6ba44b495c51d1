// edgekit_native_tests [part of a name]: runs the tests and says which failed.
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "unit.h"

namespace edgekit_testing {
namespace {

std::vector<std::pair<std::string, Function>> &tests() {
  static std::vector<std::pair<std::string, Function>> all;  // other files add to it before main
  return all;
}

}  // namespace

bool add_test(const char *name, Function function) {
  tests().emplace_back(name, function);
  return true;
}

int run(const std::string &part) {
  int failed = 0, ran = 0;
  for (const auto &[name, function] : tests()) {
    if (name.find(part) == std::string::npos) continue;
    ++ran;
    try {
      function();
      std::printf("ok      %s\n", name.c_str());
    } catch (const std::exception &error) {
      ++failed;
      std::printf("FAILED  %s: %s\n", name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed != 0 || ran == 0;
}

}  // namespace edgekit_testing

int main(int count, char **arguments) { return edgekit_testing::run(count > 1 ? arguments[1] : ""); }
