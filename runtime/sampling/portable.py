"""e^x, log x and sums with the same bits on every machine and in the C++ loops.

Tokens are chosen by comparing numbers that come from these. The functions of mathematical libraries differ in
the last place, and numpy adds in an order that depends on lengths and processors; so everything that is
compared is built from single IEEE operations rounded to nearest even, in the order written here, with nothing
fused (C++: -ffp-contract=off).

* exp(x), float32. w = max(x, -87) in float64; k = w * log2(e) rounded to nearest even; r = w - k * ln2;
  p = c9; p = p*r + c8; ...; p = p*r + c0 with cn = 1/n!; e^x = p * 2^k (exact) rounded to float32, 0 where
  x < -87. The relative error before the last rounding is below 1e-11.
* exp_wide(x), float64: the same for float64 x from -700 on, without the rounding to float32, 0 below -700.
* log(x), float64. x = 2^k * m with sqrt(1/2) <= m < sqrt(2); f = m - 1 (exact); s = f / (2 + f); z = s*s;
  p = d10; p = p*z + d9; ...; p = p*z + d1 with dn = 1/(2n + 1); t = 2*s; log x = k*ln2 + (t + t*(z*p)).
  Two units in the last place.
* total(x), float64: ((x0 + x1) + x2) + ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import Floats

Doubles = NDArray[np.float64]

_LOWEST = -87.0
_LOWEST_WIDE = -700.0
_LOG2_E = 1.4426950408889634
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_EXP_COEFFICIENTS = tuple(1 / math.factorial(n) for n in range(10))
_LOG_COEFFICIENTS = tuple(1 / (2 * n + 1) for n in range(1, 11))
# Half a dozen float64 arrays of this length stay in the second-level cache.
_PIECE = 16384


def exp(x: Floats) -> Floats:
    """e^x of float32 numbers up to 88 (-inf included, NaN not), float32 of the same shape."""
    out = np.empty(x.shape, dtype=np.float32)
    for source, target in _pieces(x, out):
        wide = np.maximum(source, np.float32(_LOWEST)).astype(np.float64)
        k = np.rint(wide * _LOG2_E)
        wide -= k * _LN2
        result = _polynomial(_EXP_COEFFICIENTS, wide)
        result *= ((k.astype(np.int64) + 1023) << 52).view(np.float64)
        result[source < np.float32(_LOWEST)] = 0
        target[...] = result
    return out


def exp_wide(x: Doubles) -> Doubles:
    """e^x of float64 numbers up to 700 (-inf included, NaN not), float64 of the same shape."""
    out = np.empty(x.shape, dtype=np.float64)
    for source, target in _pieces(x, out):
        wide = np.maximum(source, _LOWEST_WIDE)
        k = np.rint(wide * _LOG2_E)
        wide -= k * _LN2
        result = _polynomial(_EXP_COEFFICIENTS, wide)
        result *= ((k.astype(np.int64) + 1023) << 52).view(np.float64)
        result[source < _LOWEST_WIDE] = 0
        target[...] = result
    return out


def log(x: Doubles) -> Doubles:
    """The natural logarithm of positive normal float64 numbers, float64 of the same shape."""
    out = np.empty(x.shape, dtype=np.float64)
    for source, target in _pieces(x, out):
        m, k = np.frexp(source)
        low = m < _SQRT_HALF
        m[low] *= 2
        k -= low
        m -= 1
        s = m / (m + 2)
        z = s * s
        s *= 2
        z *= _polynomial(_LOG_COEFFICIENTS, z)
        np.add(k * _LN2, s + s * z, out=target)
    return out


def total(x: NDArray[np.floating[Any]]) -> Doubles:
    """The sum over the last axis, which must not be empty, in float64 and from left to right: x [..., N] to
    [...]."""
    rows = x.reshape(-1, x.shape[-1])
    # Row by row, because the running sums need as much memory as what they sum.
    sums = np.array([np.cumsum(row, dtype=np.float64)[-1] for row in rows], dtype=np.float64)
    return sums.reshape(x.shape[:-1])


def _polynomial(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    """Horner's scheme; coefficients of ascending powers."""
    *rest, last = coefficients
    result = np.full_like(x, last)
    for coefficient in reversed(rest):
        result *= x
        result += coefficient
    return result


def _pieces(x: NDArray[Any], out: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Short stretches of x and of `out`, which is contiguous."""
    source, target = x.reshape(-1), out.reshape(-1)
    for start in range(0, source.shape[0], _PIECE):
        yield source[start : start + _PIECE], target[start : start + _PIECE]
