"""Quantization of activations while the program runs."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import IOS17, op
from edgekit.runtime.checks.mil.types import BY_NAME, Array


def along(values: Array, rank: int, axis: Array | int | None) -> Array:
    """A scalar as it is; a vector over `axis` of a tensor of that rank."""
    if not values.ndim:
        return values
    if axis is None:
        raise ValueError("a vector of scales needs an axis")
    shape = [1] * rank
    shape[int(axis)] = -1
    return values.reshape(shape)


@op("quantize", since=IOS17)
def quantize(
    input: Array,
    scale: Array,
    output_dtype: str,
    zero_point: Array | None = None,
    axis: Array | None = None,
) -> Array:
    """clip(round(input / scale) + zero_point), halves to the even neighbour."""
    if output_dtype not in ("int8", "uint8"):
        raise ValueError(f"output_dtype '{output_dtype}' is neither int8 nor uint8")
    target = BY_NAME[output_dtype].numpy
    result = np.rint(input / along(scale, input.ndim, axis))
    if zero_point is not None:
        result = result + along(zero_point, input.ndim, axis).astype(np.float32)
    return np.clip(result, np.iinfo(target).min, np.iinfo(target).max).astype(target)


@op("dequantize", since=IOS17)
def dequantize(
    input: Array, scale: Array, zero_point: Array | None = None, axis: Array | None = None
) -> Array:
    """scale * (input - zero_point)."""
    values = input.astype(np.float32)
    if zero_point is not None:
        values -= along(zero_point, input.ndim, axis).astype(np.float32)
    return values * along(scale, input.ndim, axis)
