"""Slices, read and written."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import IOS18, op
from edgekit.runtime.checks.mil.types import Array


def _slices(
    shape: tuple[int, ...],
    begin: Array,
    end: Array,
    stride: Array | None,
    begin_mask: Array | None,
    end_mask: Array | None,
    squeeze_mask: Array | None,
) -> tuple[slice | int, ...]:
    """numpy's index. A masked begin or end is the array's own, in the direction of the stride."""
    rank = len(shape)
    if begin.shape != (rank,) or end.shape != (rank,):
        raise ValueError(f"begin and end need {rank} values each, have {begin.size} and {end.size}")
    steps = [1] * rank if stride is None else [int(s) for s in stride]
    no = [False] * rank
    open_begin, open_end, single = (
        no if mask is None else [bool(m) for m in mask] for mask in (begin_mask, end_mask, squeeze_mask)
    )
    result: list[slice | int] = []
    for axis in range(rank):
        first = None if open_begin[axis] else int(begin[axis])
        if single[axis]:
            result.append(first or 0)
        else:
            result.append(slice(first, None if open_end[axis] else int(end[axis]), steps[axis]))
    return tuple(result)


@op("slice_by_index", moves=True)
def slice_by_index(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    return x[_slices(x.shape, begin, end, stride, begin_mask, end_mask, squeeze_mask)]


@op("slice_update", since=IOS18, moves=True)
def slice_update(
    x: Array,
    update: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    index = _slices(x.shape, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    result = x.copy()
    if result[index].shape != update.shape:
        raise ValueError(f"the slice has shape {result[index].shape}, the update {update.shape}")
    result[index] = update
    return result


@op("slice_by_size", moves=True)
def slice_by_size(x: Array, begin: Array, size: Array) -> Array:
    """Sizes of -1 reach to the end; a negative begin counts from the end."""
    index = []
    for axis, (first, count) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
        start = first + x.shape[axis] if first < 0 else first
        stop = x.shape[axis] if count == -1 else start + count
        if not 0 <= start <= stop <= x.shape[axis]:
            raise ValueError(f"axis {axis} has {x.shape[axis]} elements, wanted are {start}..{stop}")
        index.append(slice(start, stop))
    return np.asarray(x[tuple(index)])
