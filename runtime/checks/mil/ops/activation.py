"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.ops.special import erf
from edgekit.runtime.checks.mil.types import Array


def sigmoid_of(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    tail = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, tail) / (1 + tail)


def softmax_of(x: Array, axis: int) -> Array:
    """Softmax; a slice of only -inf is NaN, as the formula is."""
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def _per_channel(values: Array, rank: int) -> Array:
    """A vector over axis 1 of a tensor of that rank."""
    return values.reshape(1, -1, *[1] * (rank - 2))


@op("sigmoid")
def sigmoid(x: Array) -> Array:
    return sigmoid_of(x)


@op("silu")
def silu(x: Array) -> Array:
    return x * sigmoid_of(x)


@op("gelu", note="all three modes")
def gelu(x: Array, mode: str = "EXACT") -> Array:
    if mode == "EXACT":
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    if mode == "TANH_APPROXIMATION":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if mode == "SIGMOID_APPROXIMATION":
        return x * sigmoid_of(1.702 * x)
    raise ValueError(f"unknown mode '{mode}'")


@op("softmax")
def softmax(x: Array, axis: Array | int = -1) -> Array:
    return softmax_of(x, int(axis))


@op("relu")
def relu(x: Array) -> Array:
    return np.maximum(x, 0)


@op("relu6")
def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


@op("leaky_relu")
def leaky_relu(x: Array, alpha: Array) -> Array:
    return np.where(x >= 0, x, alpha * x)


@op("prelu")
def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, _per_channel(alpha, x.ndim) * x)


@op("clamped_relu")
def clamped_relu(x: Array, alpha: Array, beta: Array) -> Array:
    return np.minimum(beta, np.where(x >= 0, x, alpha * x))


@op("thresholded_relu")
def thresholded_relu(x: Array, alpha: Array) -> Array:
    return np.where(x >= alpha, x, 0)


@op("elu")
def elu(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@op("linear_activation")
def linear_activation(x: Array, alpha: Array, beta: Array) -> Array:
    return alpha * x + beta


@op("scaled_tanh")
def scaled_tanh(x: Array, alpha: Array, beta: Array) -> Array:
    return alpha * np.tanh(beta * x)


@op("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: Array, beta: Array) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


@op("softplus")
def softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


@op("softplus_parametric")
def softplus_parametric(x: Array, alpha: Array, beta: Array) -> Array:
    return _per_channel(alpha, x.ndim) * np.logaddexp(_per_channel(beta, x.ndim) * x, 0)


@op("softsign")
def softsign(x: Array) -> Array:
    return x / (1 + np.abs(x))
