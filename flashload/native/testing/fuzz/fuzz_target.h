// What a fuzz target gives to fuzz_driver.cpp besides libFuzzer's entry point.
#ifndef EDGEKIT_TESTING_FUZZ_TARGET_H
#define EDGEKIT_TESTING_FUZZ_TARGET_H

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// Unlike assert, in every build.
#define EK_REQUIRE(condition)                                                    \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)

namespace edgekit_testing {

// Inputs to begin with.
std::vector<std::string> fuzz_seeds();

// Of a message.
inline void require_one_line(const std::string &message) {
  EK_REQUIRE(!message.empty());
  for (const char letter : message) EK_REQUIRE(static_cast<unsigned char>(letter) >= 0x20);
}

}  // namespace edgekit_testing

#endif  // EDGEKIT_TESTING_FUZZ_TARGET_H
