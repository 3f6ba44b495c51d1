"""`edgekit::` operators in ONNX for Qualcomm's NPU: float operators that it takes, and a placeholder for each
product with a stored matrix, which the graph replaces by one of codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgekit.export.formats.onnx import gpu_ops, ops

#: The placeholder of a product: (x, codes) of a matrix.
PRODUCT_DOMAIN, PRODUCT_NODE = "edgekit", "Product"


#: One operator: the squares of plain ones would leave the range of the NPU's floats, which have 16 bits.
_norm = ops.decompositions()[torch.ops.edgekit.rms_norm.default]


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    # Qualcomm's operator makes other numbers without a word of heads [1, heads, T, D] with few of both; and,
    # where it has a weight, of 16 positions before the products of an MLP.
    rows: Tensor = _norm(x.flatten(1, -2), None, eps)
    return (rows if weight is None else rows * weight).view(x.shape)


def _linear(
    x: Tensor,
    weight: Tensor,
    group_scales: Tensor | None,
    scales: Tensor | None,
    bias: Tensor | None,
    act_bits: int,
    down: Tensor | None = None,
    up: Tensor | None = None,
    adapter: Tensor | None = None,
) -> Tensor:
    shape = (*x.shape[:-1], weight.shape[0])
    y = ops.node(f"{PRODUCT_DOMAIN}::{PRODUCT_NODE}", (x, weight), {}, shape, x.dtype, 1)
    return ops.completed(y, x, bias, down, up, adapter)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions` of what runs on the NPU."""
    e = torch.ops.edgekit
    return gpu_ops.decompositions() | {e.rms_norm.default: _rms_norm, e.linear.default: _linear}
