"""Elements taken and put by index.

Before iOS 17 an index may be negative and then counts from the end. From iOS 17 on a negative index is
outside of the tensor, and what a device does with an index outside is undefined unless validate_indices is
set. Here such an index is always an error: a program that relies on one has no defined result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import IOS17, Call, op
from edgekit.runtime.checks.mil.rows import Rows
from edgekit.runtime.checks.mil.types import Array


def _checked(indices: Array, size: int, opset: int) -> Array:
    """The indices as 0..size-1."""
    wide = indices.astype(np.int64)
    if opset < IOS17:
        wide = np.where(wide < 0, wide + size, wide)
    bad = (wide < 0) | (wide >= size)
    if bad.any():
        where = "outside" if opset < IOS17 else "outside (from iOS 17 on none counts from the end)"
        raise IndexError(f"index {indices[bad].flat[0]} is {where} of {size} elements")
    return wide


@op("gather", moves=True, streams=("x",), note="negative indices before iOS 17 only")
def gather(
    call: Call,
    x: Rows,
    indices: Array,
    axis: Array | int = 0,
    batch_dims: Array | int = 0,
    validate_indices: Array | bool = False,
) -> Array:
    rank, batch = len(x.shape), int(batch_dims)
    at = int(axis) % rank
    if at < batch or x.shape[:batch] != indices.shape[:batch]:
        raise ValueError(f"x {x.shape} and indices {indices.shape} do not share {batch} axes before {at}")
    wanted = _checked(indices, x.shape[at], call.opset)
    if at == 0:
        return _rows(x, wanted)
    array = x.all()
    if not batch:
        return np.take(array, wanted, at)
    shared = x.shape[:batch]
    parts = [np.take(array[i], wanted[i], at - batch) for i in np.ndindex(shared)]
    return np.stack(parts).reshape(*shared, *parts[0].shape)


def _rows(x: Rows, wanted: Array) -> Array:
    """Rows of a table by number, each stretch of the table read once: an embedding is larger than its use."""
    if not x.by_rows or not wanted.size:
        return x.all()[wanted]
    needed, place = np.unique(wanted, return_inverse=True)
    stretches = np.split(needed, np.flatnonzero(np.diff(needed) > 1) + 1)
    found = np.concatenate([x.rows(int(s[0]), int(s[-1]) + 1) for s in stretches])
    return found[place.reshape(wanted.shape)]


@op("gather_along_axis", moves=True, note="negative indices before iOS 17 only")
def gather_along_axis(
    call: Call, x: Array, indices: Array, axis: Array | int = 0, validate_indices: Array | bool = False
) -> Array:
    at = _axis_of(x, indices, axis)
    return np.take_along_axis(x, _checked(indices, x.shape[at], call.opset), at)


@op("gather_nd", moves=True, note="negative indices before iOS 17 only")
def gather_nd(
    call: Call,
    x: Array,
    indices: Array,
    batch_dims: Array | int = 0,
    validate_indices: Array | bool = False,
) -> Array:
    return x[_nd_index(indices, x.shape, int(batch_dims), call.opset)]


@op("scatter", note="negative indices before iOS 17 only")
def scatter(
    call: Call,
    data: Array,
    indices: Array,
    updates: Array,
    axis: Array | int = 0,
    mode: str = "add",
    validate_indices: Array | bool = False,
) -> Array:
    at = int(axis) % data.ndim
    if updates.shape != (*data.shape[:at], *indices.shape, *data.shape[at + 1 :]):
        raise ValueError(f"updates {updates.shape} do not fit data {data.shape}, indices {indices.shape}")
    result = data.copy()
    moved = [at + i for i in range(indices.ndim)]
    _put(
        np.moveaxis(result, at, 0),
        _checked(indices, data.shape[at], call.opset),
        np.moveaxis(updates, moved, range(indices.ndim)),
        mode,
    )
    return result


@op("scatter_along_axis", note="negative indices before iOS 17 only")
def scatter_along_axis(
    call: Call,
    data: Array,
    indices: Array,
    updates: Array,
    axis: Array | int = 0,
    mode: str = "add",
    validate_indices: Array | bool = False,
) -> Array:
    at = _axis_of(data, indices, axis)
    if updates.shape != indices.shape:
        raise ValueError(f"updates {updates.shape} and indices {indices.shape} differ")
    index: list[Any] = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
    index[at] = _checked(indices, data.shape[at], call.opset)
    result = data.copy()
    _put(result, tuple(index), updates, mode)
    return result


@op("scatter_nd", note="negative indices before iOS 17 only")
def scatter_nd(
    call: Call,
    data: Array,
    indices: Array,
    updates: Array,
    mode: str = "add",
    validate_indices: Array | bool = False,
) -> Array:
    index = _nd_index(indices, data.shape, 0, call.opset)
    if updates.shape != (*indices.shape[:-1], *data.shape[indices.shape[-1] :]):
        raise ValueError(f"updates {updates.shape} do not fit data {data.shape}, indices {indices.shape}")
    result = data.copy()
    _put(result, index, updates, mode)
    return result


def _axis_of(data: Array, indices: Array, axis: Array | int) -> int:
    """The axis, once both tensors agree in the other axes."""
    at = int(axis) % data.ndim
    if data.ndim != indices.ndim or any(
        i != at and a != b for i, (a, b) in enumerate(zip(data.shape, indices.shape, strict=True))
    ):
        raise ValueError(f"shapes {data.shape} and {indices.shape} differ outside of axis {at}")
    return at


def _nd_index(indices: Array, shape: tuple[int, ...], batch: int, opset: int) -> tuple[Array, ...]:
    """The last axis of `indices` is a place in the axes of `shape` after the shared first ones."""
    depth = indices.shape[-1]
    if batch + depth > len(shape) or indices.shape[:batch] != shape[:batch]:
        raise ValueError(f"indices {indices.shape} do not fit a tensor {shape} with {batch} shared axes")
    places = tuple(_checked(indices[..., i], shape[batch + i], opset) for i in range(depth))
    return (*np.ogrid[tuple(slice(size) for size in indices.shape[:-1])][:batch], *places)


_COMBINE: dict[str, Callable[[Array, Any, Array], None]] = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.true_divide.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _put(target: Array, index: Any, updates: Array, mode: str) -> None:
    """Combines in place, in the order of the updates where an index repeats."""
    if mode == "update":
        target[index] = updates
    elif mode not in _COMBINE:
        raise ValueError(f"unknown mode '{mode}'")
    elif mode == "div" and target.dtype.kind != "f":
        raise ValueError("mode 'div' is undocumented for integers")
    else:
        _COMBINE[mode](target, index, updates)
