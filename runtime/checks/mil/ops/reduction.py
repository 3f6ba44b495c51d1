"""Reductions. Sums and means are taken in float32; no axes means all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.types import BY_NAME, Array

Reduction = Callable[[Array, "tuple[int, ...] | None"], Array]


def _log_sum_exp(x: Array, axes: tuple[int, ...] | None) -> Array:
    top = np.max(x, axis=axes, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0)
    return np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift


#: Each keeps the reduced axes.
_REDUCTIONS: Mapping[str, Reduction] = {
    "reduce_l1_norm": lambda x, axes: np.sum(np.abs(x), axis=axes, keepdims=True),
    "reduce_l2_norm": lambda x, axes: np.sqrt(np.sum(np.square(x), axis=axes, keepdims=True)),
    "reduce_log_sum": lambda x, axes: np.log(np.sum(x, axis=axes, keepdims=True)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda x, axes: np.max(x, axis=axes, keepdims=True),
    "reduce_mean": lambda x, axes: np.mean(x, axis=axes, keepdims=True),
    "reduce_min": lambda x, axes: np.min(x, axis=axes, keepdims=True),
    "reduce_prod": lambda x, axes: np.prod(x, axis=axes, keepdims=True),
    "reduce_sum": lambda x, axes: np.sum(x, axis=axes, keepdims=True),
    "reduce_sum_square": lambda x, axes: np.sum(np.square(x), axis=axes, keepdims=True),
}


def _reduction(function: Reduction) -> Callable[..., Array]:
    def run(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
        wanted = None if axes is None else tuple(int(a) for a in axes)
        result = function(x, wanted)
        return result if keep_dims else np.squeeze(result, axis=wanted)

    return run


for _name, _function in _REDUCTIONS.items():
    op(_name)(_reduction(_function))


def _index(function: Any, x: Array, axis: Array | int, keep_dims: Array | bool, output_dtype: str) -> Array:
    if output_dtype not in ("int32", "uint16"):
        raise ValueError(f"output_dtype '{output_dtype}' is neither int32 nor uint16")
    indices = function(x, axis=int(axis), keepdims=bool(keep_dims))
    return indices.astype(BY_NAME[output_dtype].numpy)


@op("reduce_argmax", note="of equal values the first")
def reduce_argmax(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    return _index(np.argmax, x, axis, keep_dims, output_dtype)


@op("reduce_argmin", note="of equal values the first")
def reduce_argmin(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    return _index(np.argmin, x, axis, keep_dims, output_dtype)
