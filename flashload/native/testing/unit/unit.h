// Tests that run as one native executable, for what sanitizers should see: EK_TEST(name) { EK_CHECK(condition); }
#ifndef EDGEKIT_TESTING_UNIT_H
#define EDGEKIT_TESTING_UNIT_H

#include <sstream>
#include <stdexcept>
#include <string>

namespace edgekit_testing {

using Function = void (*)();

// Called by EK_TEST before main; returns true so that a global can hold the result.
bool add_test(const char *name, Function function);

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace edgekit_testing

#define EK_TEST(name)                                                                        \
  static void ek_test_##name();                                                              \
  static const bool ek_added_##name = edgekit_testing::add_test(#name, ek_test_##name);      \
  static void ek_test_##name()

#define EK_CHECK(condition)                                                                  \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::ostringstream ek_text;                                                            \
      ek_text << __FILE__ << ":" << __LINE__ << ": " << #condition << " does not hold";      \
      throw edgekit_testing::Failed(ek_text.str());                                          \
    }                                                                                        \
  } while (false)

#endif  // EDGEKIT_TESTING_UNIT_H
