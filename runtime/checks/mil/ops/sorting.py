"""Order of elements. Equal ones keep theirs, which Core ML leaves open; a NaN counts as the largest."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.types import BY_NAME, Array


def _order(x: Array, axis: int, ascending: bool) -> Array:
    if ascending:
        return np.argsort(x, axis, kind="stable")
    # Backwards twice: the negative of an unsigned or of the smallest integer would not sort the other way.
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - order


@op("argsort")
def argsort(x: Array, axis: Array | int = -1, ascending: Array | bool = False) -> Array:
    return _order(x, int(axis), bool(ascending))


@op("topk", note="always sorted; from iOS 17 on k may be -1 and indices uint16")
def topk(
    x: Array,
    k: Array | int = 1,
    axis: Array | int = -1,
    ascending: Array | bool = False,
    sort: Array | bool = True,
    return_indices: Array | bool = True,
    output_indices_dtype: str = "int32",
) -> tuple[Array, ...]:
    at = int(axis)
    count = x.shape[at] if int(k) == -1 else int(k)
    if not 0 < count <= x.shape[at]:
        raise ValueError(f"k is {count}, axis {at} has {x.shape[at]} elements")
    if output_indices_dtype not in ("int32", "uint16"):
        raise ValueError(f"output_indices_dtype '{output_indices_dtype}' is neither int32 nor uint16")
    indices = np.take(_order(x, at, bool(ascending)), np.arange(count), at)
    values = np.take_along_axis(x, indices, at)
    return (values, indices.astype(BY_NAME[output_indices_dtype].numpy)) if return_indices else (values,)
