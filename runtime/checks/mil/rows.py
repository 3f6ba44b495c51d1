"""Constants that are read, or decompressed, a few rows at a time.

A row is one index of the first axis. A product with a large weight takes blocks of rows, so that the memory
it needs is a block and not the weight, which decompressed to float32 is eight times its 4-bit form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from edgekit.runtime.checks.mil.types import FP16, Array, DType

#: Bytes of a block of rows in float32: large enough for a matrix product to be efficient.
BLOCK_BYTES = 16 << 20


class Rows(Protocol):
    """A value whose rows are produced on demand.

    `by_rows` is False where a few rows cost as much as all of them: then `all` is the way to have them.
    Arrays have the numpy type of `dtype`, or float32 in place of float16 where nothing is to be rounded.
    """

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def by_rows(self) -> bool: ...

    def rows(self, start: int, stop: int) -> Array:
        """Rows start..stop, which lie within the shape."""
        ...

    def all(self) -> Array:
        """All of it; the only way to a scalar, which has no rows."""
        ...


class ArrayRows:
    """An array that is in memory anyway."""

    by_rows = True

    def __init__(self, array: Array, dtype: DType) -> None:
        self.array, self.dtype, self.shape = array, dtype, array.shape

    def rows(self, start: int, stop: int) -> Array:
        return self.array[start:stop]

    def all(self) -> Array:
        return self.array


class ComputedRows:
    """Rows that a function computes from rows of others, `sources`."""

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        rows: Callable[[int, int], Array],
        sources: Sequence[Rows | None],
    ) -> None:
        self.dtype, self.shape, self.rows = dtype, shape, rows
        self.by_rows = all(source is None or source.by_rows for source in sources)

    def all(self) -> Array:
        return self.rows(0, self.shape[0])


class WholeRows:
    """A value that a function computes, but only as a whole."""

    by_rows = False

    def __init__(self, dtype: DType, shape: tuple[int, ...], compute: Callable[[], Array]) -> None:
        self.dtype, self.shape, self.all = dtype, shape, compute

    def rows(self, start: int, stop: int) -> Array:
        return self.all()[start:stop]


def widened(array: Array) -> Array:
    """float16 as float32; anything else as it is."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def narrowed(array: Array, dtype: DType, rounds: bool) -> Array:
    """Floats as values of `dtype`; float32 in place of float16 unless `rounds`."""
    return array.astype(np.float32 if dtype is FP16 and not rounds else dtype.numpy, copy=False)


def blocks(weight: Rows) -> Iterator[tuple[int, int, Array]]:
    """(start, stop, rows start..stop with float16 widened), over all rows."""
    if not weight.by_rows:
        yield 0, weight.shape[0], widened(weight.all())
        return
    total, row_bytes = weight.shape[0], 4 * max(1, int(np.prod(weight.shape[1:])))
    step = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, total, step):
        stop = min(total, start + step)
        yield start, stop, widened(weight.rows(start, stop))
