// Numbers of 16 bits, as some systems' programs take them.
#ifndef EDGEKIT_PACKAGES_HALF_H
#define EDGEKIT_PACKAGES_HALF_H

#include <cstddef>

namespace edgekit {

// Turns `count` floats into float16 (IEEE 754 binary16) at the start of their own memory. To the nearest, ties to even;
// what is beyond becomes infinity.
void narrow_in_place(float *values, std::size_t count);

// The other way: `count` numbers of float16 at the start of memory for as many floats.
void widen_in_place(float *values, std::size_t count);

}  // namespace edgekit

#endif  // EDGEKIT_PACKAGES_HALF_H
