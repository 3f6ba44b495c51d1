// XXH3, 64 bits, seed 0, default secret (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
#ifndef EDGEKIT_XXH3_H
#define EDGEKIT_XXH3_H

#include <cstddef>
#include <cstdint>

namespace edgekit {

std::uint64_t xxh3_64(const void *data, std::size_t size);

}  // namespace edgekit

#endif  // EDGEKIT_XXH3_H
