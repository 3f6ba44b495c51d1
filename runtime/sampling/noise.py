"""The random numbers of the samplers, reproducible on every engine: specified and made in the native core
(`runtime/native/src/kernels/noise.h`).
"""

from __future__ import annotations

from ctypes import c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgekit.flashload import _native
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.ids import whole
from edgekit.runtime.sampling.options import MOST_SEED
from edgekit.runtime.sampling.types import Floats, Ids

_SIGNATURES: Final = {"ek_gumbel_noise": (c_uint64, c_uint64, c_int64, c_int64, c_int64, c_void_p)}


#: Numbers of a draw, at most.
_MOST_DRAWN: Final = 2**32


class PhiloxNoise:
    """Counter-based noise of a 64-bit seed, for procedures in Python. Every call of a method is one draw."""

    def __init__(self, seed: int) -> None:
        """Raises InvalidOption unless the seed is an integer of 64 bits without a sign."""
        self.seed = whole(seed, "seed", InvalidOption, MOST_SEED)
        self.draws = 0

    def integers(self, high: int, count: int) -> Ids:
        """count integers, uniform over 0..high-1, int64 [count]. Raises InvalidRequest for what is no bound
        of at most 2^32, or no count.
        """
        if whole(high, "the bound of integers", most=2**32) < 1:
            raise InvalidRequest("the bound of integers is 0; there are none below it")
        whole(count, "the count of integers", most=_MOST_DRAWN)
        halves = self._words((count + 1) // 2).view("<u4")[:count].astype(np.uint64)
        return ((halves * np.uint64(high)) >> np.uint64(32)).astype(np.int64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """count numbers, uniform over the open interval (0, 1), float64 [count]. Raises InvalidRequest for
        what is no count.
        """
        whole(count, "the count of numbers", most=_MOST_DRAWN)
        steps = (self._words(count) >> np.uint64(11)).astype(np.float64)
        return np.minimum((steps + 0.5) * 2.0**-53, 1 - 2.0**-53)

    def gumbel(self, positions: int, vocab_size: int) -> PhiloxGumbel:
        """Standard Gumbel noise for positions x vocab_size pairs, produced tile by tile. Raises
        InvalidRequest for what are no counts.
        """
        made = PhiloxGumbel(self.seed, self.draws, positions, vocab_size)
        self.draws += 1
        return made

    def _words(self, count: int) -> NDArray[np.uint64]:
        """The first words of the next draw."""
        key = np.array([self.seed, self._next_draw()], dtype=np.uint64)
        return np.random.Philox(key=key).random_raw(count).astype("<u8", copy=False)

    def _next_draw(self) -> int:
        self.draws += 1
        return self.draws - 1


@dataclass(frozen=True)
class PhiloxGumbel:
    """One Gumbel draw. An engine that generates its own noise reads the four numbers and never calls it.

    Raises InvalidOption and InvalidRequest for what are no such numbers.
    """

    seed: int
    draw: int
    positions: int
    vocab_size: int

    def __post_init__(self) -> None:
        whole(self.seed, "seed", InvalidOption, MOST_SEED)
        for name in ("draw", "positions", "vocab_size"):
            whole(getattr(self, name), name)

    def __call__(self, start: int, stop: int) -> Floats:
        """float32 [positions, stop - start], the transposed view of a contiguous stretch of the stream.
        Raises InvalidRequest for tokens outside the vocabulary.
        """
        whole(start, "start", most=self.vocab_size)
        if whole(stop, "stop", most=self.vocab_size) < start:
            raise InvalidRequest(f"tokens {start}..{stop} end before they begin")
        out = np.empty((stop - start, self.positions), np.float32)
        place = int(start), int(stop - start), int(self.positions)
        core = _native.functions(_SIGNATURES)
        _native.check(core.ek_gumbel_noise(self.seed, self.draw, *place, out.ctypes.data))
        return out.T
