"""Operations that arrange elements anew."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import IOS16, IOS17, Call, op
from edgekit.runtime.checks.mil.types import Array


@op("identity", moves=True)
def identity(x: Array) -> Array:
    return x


@op("shape", moves=True)
def shape(x: Array) -> Array:
    return np.array(x.shape, np.int32)


@op("reshape", moves=True, note="0 copies a dimension, from iOS 17 on counted from the end")
def reshape(call: Call, x: Array, shape: Array) -> Array:
    target = [int(size) for size in shape]
    if 0 in target and call.opset < IOS17 and len(target) != x.ndim:
        raise ValueError(f"shape {target} with zeros needs as many dimensions as x, which has {x.ndim}")
    for back in range(1, len(target) + 1):
        if target[-back] == 0:
            target[-back] = x.shape[-back] if back <= x.ndim else 1
    return x.reshape(target)


@op("reshape_like", since=IOS16, moves=True, lists=("ref_tensors", "begins", "ends", "end_masks"))
def reshape_like(
    x: Array, ref_tensors: list[Array], begins: list[Array], ends: list[Array], end_masks: list[Array]
) -> Array:
    target: list[int] = []
    for reference, begin, end, to_the_end in zip(ref_tensors, begins, ends, end_masks, strict=True):
        target += reference.shape[int(begin) : None if to_the_end else int(end)]
    return x.reshape(target)


@op("flatten2d", moves=True)
def flatten2d(x: Array, axis: Array | int = 1) -> Array:
    return x.reshape(math.prod(x.shape[: int(axis)]), -1)


@op("expand_dims", moves=True)
def expand_dims(x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axes))


@op("squeeze", moves=True, note="axes of another size than 1 stay")
def squeeze(x: Array, axes: Array | None = None) -> Array:
    wanted = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    return np.squeeze(x, tuple(a for a in wanted if x.shape[a] == 1))


@op("transpose", moves=True)
def transpose(x: Array, perm: Array) -> Array:
    return np.transpose(x, [int(axis) for axis in perm])


@op("concat", moves=True, lists=("values",))
def concat(values: list[Array], axis: Array, interleave: Array | bool = False) -> Array:
    if not values[0].ndim:
        return np.stack(values)
    if not interleave:
        return np.concatenate(values, int(axis))
    at = int(axis) % values[0].ndim
    stacked = np.stack(values, at + 1)
    return stacked.reshape(*stacked.shape[:at], -1, *stacked.shape[at + 2 :])


@op("stack", moves=True, lists=("values",))
def stack(values: list[Array], axis: Array) -> Array:
    return np.stack(values, int(axis))


@op("split", moves=True)
def split(
    x: Array, axis: Array, num_splits: Array | None = None, split_sizes: Array | None = None
) -> tuple[Array, ...]:
    at = int(axis)
    if split_sizes is None:
        if num_splits is None:
            raise ValueError("neither num_splits nor split_sizes is given")
        return tuple(np.split(x, int(num_splits), at))
    sizes = [int(size) for size in split_sizes]
    if sum(sizes) != x.shape[at]:
        raise ValueError(f"split_sizes {sizes} are not the {x.shape[at]} elements of axis {at}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], at))


@op("tile", moves=True)
def tile(x: Array, reps: Array) -> Array:
    return np.tile(x, tuple(int(r) for r in reps))


@op("reverse", moves=True)
def reverse(x: Array, axes: Array | None = None) -> Array:
    return np.flip(x, None if axes is None else tuple(int(a) for a in axes))


@op("pad", moves=True)
def pad(x: Array, pad: Array, mode: str = "constant", constant_val: Array | float = 0.0) -> Array:
    """`pad` has (before, after) for each of the last axes."""
    if pad.size % 2 or pad.size > 2 * x.ndim:
        raise ValueError(f"pad has {pad.size} values for {x.ndim} axes")
    widths = [(0, 0)] * (x.ndim - pad.size // 2) + [(int(a), int(b)) for a, b in pad.reshape(-1, 2)]
    if mode == "constant":
        return np.pad(x, widths, constant_values=constant_val)
    modes: dict[str, Any] = {"reflect": "reflect", "replicate": "edge"}
    if mode not in modes:
        raise ValueError(f"unknown mode '{mode}'")
    return np.pad(x, widths, modes[mode])


@op("sliding_windows", moves=True)
def sliding_windows(x: Array, axis: Array, size: Array, stride: Array | int = 1) -> Array:
    """[..., n, ...] -> [..., windows, size, ...]."""
    at = int(axis) % x.ndim
    windows = np.lib.stride_tricks.sliding_window_view(x, int(size), at)
    return np.moveaxis(windows[(slice(None),) * at + (slice(None, None, int(stride)),)], -1, at + 1)
