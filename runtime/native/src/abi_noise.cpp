// ek_gumbel_noise of edgekit.h.
#include <cstdint>

#include "abi_guard.h"
#include "edgekit.h"
#include "error.h"
#include "kernels/noise.h"

using namespace edgekit;

ek_status ek_gumbel_noise(uint64_t seed, uint64_t draw, int64_t first_token, int64_t tokens, int64_t rows,
                          float *out) noexcept {
  return guarded([&] {
    // Places in the stream, of 4 bytes each, stay far below 2^63.
    constexpr std::int64_t kMostTokens = std::int64_t{1} << 32, kMostRows = std::int64_t{1} << 22;
    const auto check = [](const char *name, std::int64_t value, std::int64_t most) {
      if (value < 0 || value > most) {
        fail(EK_INVALID_ARGUMENT, "ek_gumbel_noise: ", name, " is ", value, "; it must be 0..", most);
      }
    };
    check("first_token", first_token, kMostTokens);
    check("tokens", tokens, kMostTokens - first_token);
    check("rows", rows, kMostRows);
    const std::int64_t count = tokens * rows;
    if (count == 0) return;
    if (out == nullptr) fail(EK_INVALID_ARGUMENT, "ek_gumbel_noise: out is null; give room for ", count, " floats");
    gumbel_noise(seed, draw, static_cast<std::uint64_t>(first_token * rows), count, out);
  });
}
