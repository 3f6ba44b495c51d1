"""Matrix products. Products and sums are float32; a large constant operand is read and widened in blocks."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.checks.mil.ops.registry import op
from edgekit.runtime.checks.mil.rows import Rows, blocks, widened
from edgekit.runtime.checks.mil.types import Array


def product_with_rows(x: Array, weight: Rows) -> Array:
    """x [..., K] times the transpose of weight [N, K]: [..., N]."""
    if len(weight.shape) != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape}, the weight {weight.shape}")
    flat = x.reshape(-1, x.shape[-1])
    result = np.empty((flat.shape[0], weight.shape[0]), x.dtype)
    for start, stop, rows in blocks(weight):
        result[:, start:stop] = flat @ rows.T
    return result.reshape(*x.shape[:-1], weight.shape[0])


@op("linear", streams=("weight",))
def linear(x: Array, weight: Rows, bias: Array | None = None) -> Array:
    result = product_with_rows(x, weight)
    return result if bias is None else result + bias


def _transposed(array: Array, flag: Array | bool) -> Array:
    return np.swapaxes(array, -1, -2) if flag and array.ndim > 1 else array


@op("matmul", streams=("x", "y"))
def matmul(x: Rows, y: Rows, transpose_x: Array | bool = False, transpose_y: Array | bool = False) -> Array:
    """numpy's matmul; transposing has no effect on vectors."""
    left, right = _transposed(widened(x.all()), transpose_x), y.shape
    if len(right) == 2 and transpose_y:
        return product_with_rows(left, y)
    # A stack of matrices, such as the weights of experts, is taken a few at a time. Its first axis meets a
    # matrix of its own on the left, or the same one everywhere.
    own = left.ndim == len(right) and left.shape[0] == right[0]
    same = left.ndim < len(right) or (left.ndim == len(right) and left.shape[0] == 1)
    if len(right) < 3 or not (own or same):
        return np.matmul(left, _transposed(widened(y.all()), transpose_y))
    return np.concatenate([
        np.matmul(left[start:stop] if own else left, _transposed(stack, transpose_y))
        for start, stop, stack in blocks(y)
    ])  # fmt: skip


@op("einsum", lists=("values",), note="any equation of two operands; axes of size 1 broadcast")
def einsum(values: list[Array], equation: str) -> Array:
    left, _, target = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or len(values) != 2 or not target.isalpha():
        raise ValueError(f"equation '{equation}' is not one of two operands and a result")
    sizes: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        if len(term) != value.ndim:
            raise ValueError(f"operand '{term}' of '{equation}' has {value.ndim} axes")
        for axis, size in zip(term, value.shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 1))
    full = [np.broadcast_to(v, [sizes[axis] for axis in term]) for term, v in zip(terms, values, strict=True)]
    return np.einsum(f"{left}->{target}", *full, optimize=True)
