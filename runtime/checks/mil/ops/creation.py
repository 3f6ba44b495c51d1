"""Tensors made from a few numbers, and masks."""

from __future__ import annotations

import math

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import IOS16, op
from edgekit.runtime.checks.mil.types import Array


@op("fill", moves=True)
def fill(shape: Array, value: Array | float = 0.0) -> Array:
    return np.full([int(size) for size in shape], value)


@op("fill_like", since=IOS16, moves=True)
def fill_like(ref_tensor: Array, value: Array | float = 0.0) -> Array:
    return np.full(ref_tensor.shape, value)


@op("range_1d")
def range_1d(start: Array, end: Array, step: Array) -> Array:
    count = max(0, math.ceil((float(end) - float(start)) / float(step)))
    return start + np.arange(count, dtype=start.dtype) * step


@op("one_hot", moves=True, note="an index outside of the vector gives only off_value")
def one_hot(
    indices: Array,
    one_hot_vector_size: Array,
    axis: Array | int = -1,
    on_value: Array | int = 1,
    off_value: Array | int = 0,
) -> Array:
    hot = indices[..., None] == np.arange(int(one_hot_vector_size))
    return np.where(np.moveaxis(hot, -1, int(axis)), on_value, off_value)


@op("band_part", moves=True)
def band_part(x: Array, lower: Array | int = -1, upper: Array | int = -1) -> Array:
    row, column = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    below, above = int(lower), int(upper)
    keep = ((below < 0) | (row - column <= below)) & ((above < 0) | (column - row <= above))
    return np.where(keep, x, np.zeros((), x.dtype))


@op("cumsum")
def cumsum(
    x: Array, axis: Array | int = 0, exclusive: Array | bool = False, reverse: Array | bool = False
) -> Array:
    at = int(axis)
    ordered = np.flip(x, at) if reverse else x
    total = np.cumsum(ordered, at, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, at)
        np.moveaxis(total, at, 0)[:1] = 0
    return np.flip(total, at) if reverse else total


@op("non_zero", moves=True)
def non_zero(x: Array) -> Array:
    return np.argwhere(x)
