"""Convolution over any number of spatial axes: windows as a matrix, times the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.rows import Rows, blocks, widened
from edgekit.runtime.checks.mil.types import Array


@op("conv", streams=("weight",), note="1-D to 3-D, groups, dilations, all kinds of padding")
def conv(
    x: Array,
    weight: Rows,
    bias: Array | None = None,
    strides: Array | None = None,
    pad_type: str = "valid",
    pad: Array | None = None,
    dilations: Array | None = None,
    groups: Array | int = 1,
) -> Array:
    """x [n, C, *D], weight [O, C/groups, *K] -> [n, O, *D']."""
    rank, groups = x.ndim - 2, int(groups)
    if len(weight.shape) != x.ndim or x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(f"x has shape {x.shape}, the weight {weight.shape} with {groups} groups")
    stride, dilation = _per_axis(strides, rank), _per_axis(dilations, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    padding = _padding(pad_type, pad, x.shape[2:], reach, stride)
    if any(p != (0, 0) for p in padding):
        x = np.pad(x, [(0, 0), (0, 0), *padding])
    patches, sizes = _patches(x, reach, stride, dilation)
    n, outputs = x.shape[0], weight.shape[0]
    if groups == 1:
        result = np.empty((n, outputs, patches.shape[-1]), x.dtype)
        for start, stop, filters in blocks(weight):
            result[:, start:stop] = filters.reshape(stop - start, -1) @ patches
    else:
        filters = widened(weight.all()).reshape(groups, outputs // groups, -1)
        result = (filters @ patches.reshape(n, groups, filters.shape[2], -1)).reshape(n, outputs, -1)
    if bias is not None:
        result = result + bias.reshape(-1, 1)
    return result.reshape(n, outputs, *sizes)


def _per_axis(values: Array | None, rank: int) -> list[int]:
    return [1] * rank if values is None else [int(v) for v in values]


def _padding(
    pad_type: str, pad: Array | None, sizes: Sequence[int], reach: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """(before, after) per spatial axis. "same" keeps ceil(size / stride), an odd element goes to the end;
    with "same_lower" to the beginning.
    """
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        if pad is None or pad.size != 2 * len(sizes):
            raise ValueError("pad_type 'custom' needs two values of pad for each spatial axis")
        return [(int(before), int(after)) for before, after in pad.reshape(-1, 2)]
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"unknown pad_type '{pad_type}'")
    result = []
    for size, r, s in zip(sizes, reach, stride, strict=True):
        total = max(0, (math.ceil(size / s) - 1) * s + r - size)
        less, more = total // 2, total - total // 2
        result.append((less, more) if pad_type == "same" else (more, less))
    return result


def _patches(
    x: Array, reach: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Array, tuple[int, ...]]:
    """The inputs of every output position [n, C * K, positions], and the sizes of the output."""
    rank = len(reach)
    if any(size < r for size, r in zip(x.shape[2:], reach, strict=True)):
        raise ValueError(f"the kernel reaches over {list(reach)} of {list(x.shape[2:])} elements")
    windows = sliding_window_view(x, tuple(reach), axis=tuple(range(2, x.ndim)))
    steps: tuple[Any, ...] = tuple(slice(None, None, step) for step in (*stride, *dilation))
    windows = windows[(..., *steps)]
    sizes = windows.shape[2 : 2 + rank]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    kernel = math.prod(windows.shape[2 + rank :])
    return windows.transpose(order).reshape(x.shape[0], x.shape[1] * kernel, math.prod(sizes)), sizes
