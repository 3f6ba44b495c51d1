"""Normalizations."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.types import Array


def _per_channel(values: Array | None, rank: int, otherwise: float) -> Array | float:
    """A vector over axis 1 of a tensor of that rank."""
    return otherwise if values is None else values.reshape(1, -1, *[1] * (rank - 2))


@op("layer_norm")
def layer_norm(
    x: Array,
    axes: Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Array | float = 1e-5,
) -> Array:
    normalized = tuple(range(x.ndim)) if axes is None else tuple(sorted(int(a) % x.ndim for a in axes))
    shape = [size if axis in normalized else 1 for axis, size in enumerate(x.shape)]
    centred = x - x.mean(axis=normalized, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=normalized, keepdims=True) + epsilon)
    if gamma is not None:
        result = result * gamma.reshape(shape)
    return result if beta is None else result + beta.reshape(shape)


@op("instance_norm")
def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Array | float = 1e-5
) -> Array:
    spatial = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=spatial, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=spatial, keepdims=True) + epsilon)
    return result * _per_channel(gamma, x.ndim, 1) + _per_channel(beta, x.ndim, 0)


@op("batch_norm")
def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Array | float = 1e-5,
) -> Array:
    centred = x - _per_channel(mean, x.ndim, 0)
    result = centred / np.sqrt(_per_channel(variance, x.ndim, 1) + epsilon)
    return result * _per_channel(gamma, x.ndim, 1) + _per_channel(beta, x.ndim, 0)


@op("l2_norm", note="over the last three axes")
def l2_norm(x: Array, epsilon: Array | float = 1e-6) -> Array:
    return x / np.sqrt(np.square(x).sum(axis=(-3, -2, -1), keepdims=True) + epsilon)
