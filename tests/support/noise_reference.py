"""The samplers' random numbers with numpy, by the specification in `kernels/noise.h`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import Floats

_LN2 = np.float32(float.fromhex("0x1.62e43p-1"))
_LOG_COEFFICIENTS = tuple(
    np.float32(float.fromhex(c))
    for c in (
        "-0x1.fffff8p-2",
        "0x1.55555p-2",
        "-0x1.000426p-2",
        "0x1.99a3f6p-3",
        "-0x1.542766p-3",
        "0x1.22715ep-3",
        "-0x1.0f3756p-3",
        "0x1.0849cp-3",
        "-0x1.38339ep-4",
    )
)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_HALVES_PER_BLOCK = 8
# The logs run through five arrays; pieces of this many values keep them in the second-level cache while the
# cost of starting each numpy operation stays small.
_CHUNK = 65536


def philox_halves(seed: int, draw: int, first: int, count: int) -> NDArray[np.uint32]:
    """The 32-bit halves first..first+count of the stream of (seed, draw), uint32 [count]."""
    block, skip = divmod(first, _HALVES_PER_BLOCK)
    generator = np.random.Philox(key=np.array([seed, draw], dtype=np.uint64), counter=block)
    words = generator.random_raw((skip + count + 1) // 2)
    return words.astype("<u8", copy=False).view("<u4")[skip : skip + count]


def uniform_of_words(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers of the open interval (0, 1) of 64-bit random numbers, float64."""
    return np.minimum(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, 1 - 2.0**-53)


def gumbel_of_halves(halves: NDArray[np.uint32]) -> Floats:
    """Standard Gumbel values of 32-bit random numbers, float32, by the steps of the specification."""
    out = np.empty(halves.shape[0], dtype=np.float32)
    size = min(_CHUNK, max(1, out.shape[0]))
    ints = np.empty(size, dtype=np.int32)
    shifted = np.empty(size, dtype=np.int32)
    floats = np.empty(size, dtype=np.float32)
    scratch = np.empty(size, dtype=np.float32)
    for start in range(0, out.shape[0], size):
        piece = halves[start : start + size]
        c = piece.shape[0]
        odd, k, f, t, e = ints[:c], shifted[:c], floats[:c], scratch[:c], out[start : start + c]
        np.right_shift(piece, 7, out=odd.view(np.uint32))
        odd |= 1
        np.multiply(odd, np.float32(2.0**-25), out=e, dtype=np.float32, casting="unsafe")
        _split(e, k, f)
        near_one = k == 0
        np.subtract(odd, 1 << 25, out=odd)
        np.multiply(odd, np.float32(2.0**-25), out=t, dtype=np.float32, casting="unsafe")
        np.copyto(f, t, where=near_one)
        _log_of(k, f, t, e)
        np.negative(e, out=e)
        _split(e, k, f)
        _log_of(k, f, t, e)
        np.negative(e, out=e)
    return out


def _split(x: Floats, k: NDArray[np.int32], f: Floats) -> None:
    """x = 2^k * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), for positive normal x."""
    bits = x.view(np.int32)
    np.subtract(bits, _SQRT_HALF_BITS, out=k)
    np.right_shift(k, 23, out=k)
    mantissa = f.view(np.int32)
    np.left_shift(k, 23, out=mantissa)
    np.subtract(bits, mantissa, out=mantissa)
    np.subtract(f, np.float32(1), out=f)


def _log_of(k: NDArray[np.int32], f: Floats, scratch: Floats, out: Floats) -> None:
    """out = log(2^k * (1 + f)); `scratch` is overwritten."""
    *rest, last = _LOG_COEFFICIENTS
    out[...] = last
    for coefficient in reversed(rest):
        out *= f
        out += coefficient
    out *= f
    out *= f
    out += f
    np.multiply(k, _LN2, out=scratch, dtype=np.float32, casting="unsafe")
    out += scratch
