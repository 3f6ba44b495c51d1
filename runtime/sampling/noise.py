"""The random numbers of the samplers, reproducible on every engine.

Every call of a method of PhiloxNoise is one *draw*. Draws are numbered 0, 1, 2, ... in the order of the
calls, and all values of a draw are a pure function of (seed, draw, index), so a vocabulary tile can be
produced on its own, in any order and on any machine.

PhiloxNoise, exactly:

* Stream. Philox4x64-10 (Salmon et al., SC 2011) with the 128-bit key (low word seed, high word draw). Block
  b = 0, 1, ... is the permutation of the 256-bit counter b + 1 (numpy's convention: the counter is increased
  before use) and gives the 64-bit words 4b .. 4b+3. Half h = 0, 1, ... is the low (h even) or high (h odd)
  32 bits of word h // 2.
* uniform(n)[i] = min(((word i >> 11) + 0.5) * 2^-53, 1 - 2^-53) in float64, never 0 or 1: from 1/2 on the sum
  rounds to even, which would give 1 for the last word.
* integers(high, n)[i] = (half i * high) >> 32 in 64-bit arithmetic, for 1 <= high <= 2^32.
* gumbel(positions, V) at (position, token) uses half i = token * positions + position. With m = half i >> 8
  it is -log(-log u) for u = (m + 0.5) * 2^-24, evaluated in float32 by the steps below. Each step is one IEEE
  operation rounded to nearest even; nothing may be fused (C++: -ffp-contract=off), so that every platform
  gets the same bits.

      n = 2*m + 1                         odd, 1 .. 2^25 - 1, u = n * 2^-25
      x = float32(n) * 2^-25
      (k, f) = split(x)
      if k == 0: f = -(float32(2^25 - n) * 2^-25)      exact u - 1, where float32(n) would lose the last bit
      e = -log_of(k, f)                   2^-25 .. 17.4
      gumbel = -log_of(split(e))

      split(x): b = bits of x as int32; k = (b - 0x3f3504f3) >> 23 (arithmetic);
                f = float32 with the bits b - (k << 23), minus 1      sqrt(1/2) - 1 <= f < sqrt(2) - 1
      log_of(k, f): r = c8; r = r*f + c7; ...; r = r*f + c0; r = (r*f)*f; r = r + f; r + float32(k)*ln2

  c0..c8 and ln2 are the float32 values below: the polynomial (log(1 + f) - f) / f^2 of degree 8 fitted for
  the least relative error of log(1 + f), 5.4e-9. `-log_of` only flips the sign bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.types import Floats, Ids

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


class PhiloxNoise:
    """Counter-based noise of a 64-bit seed; the module's docstring is its specification."""

    def __init__(self, seed: int) -> None:
        """Raises InvalidOption when the seed does not fit 64 bits."""
        if not 0 <= seed < 2**64:
            raise InvalidOption(f"seed {seed} is outside 0..2^64-1; use a smaller non-negative number")
        self.seed = seed
        self.draws = 0

    def integers(self, high: int, count: int) -> Ids:
        """count integers, uniform over 0..high-1, int64 [count]. Raises ValueError."""
        if not 1 <= high <= 2**32:
            raise ValueError(f"integers below {high}: the bound must be 1..2^32")
        halves = philox_halves(self.seed, self._next_draw(), 0, count).astype(np.uint64)
        return ((halves * np.uint64(high)) >> np.uint64(32)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """count numbers, uniform over the open interval (0, 1), float64 [count]."""
        return uniform_of_words(philox_halves(self.seed, self._next_draw(), 0, 2 * count).view("<u8"))

    def gumbel(self, positions: int, vocab_size: int) -> PhiloxGumbel:
        """Standard Gumbel noise for positions x vocab_size pairs, produced tile by tile."""
        return PhiloxGumbel(self.seed, self._next_draw(), positions, vocab_size)

    def _next_draw(self) -> int:
        self.draws += 1
        return self.draws - 1


@dataclass(frozen=True)
class PhiloxGumbel:
    """One Gumbel draw. An engine that generates its own noise reads the four numbers and never calls it."""

    seed: int
    draw: int
    positions: int
    vocab_size: int

    def __call__(self, start: int, stop: int) -> Floats:
        """float32 [positions, stop - start], the transposed view of a contiguous stretch of the stream."""
        if not 0 <= start <= stop <= self.vocab_size:
            raise ValueError(f"tokens {start}..{stop} are not within the vocabulary of {self.vocab_size}")
        count = (stop - start) * self.positions
        halves = philox_halves(self.seed, self.draw, start * self.positions, count)
        return gumbel_of_halves(halves).reshape(stop - start, self.positions).T


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
    """Standard Gumbel values of 32-bit random numbers, float32, by the steps of the module's docstring."""
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
