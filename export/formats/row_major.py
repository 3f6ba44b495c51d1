"""Stored forms that all formats share: float vectors, 16-bit matrices and vocabulary tables, row by row.

    float vector      F32 as it is
    16 bits           .weight BF16 [N, K]
    table, 8 bits     .codes U8 [V, H] (q + 128), .scales F32 [V]

Rows of a table are looked up one by one, so no format has a layout of its own for them.
"""

from __future__ import annotations

import numpy as np
import torch

from edgekit.export.models.base import WeightSpec
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec

TABLE_ROLES = ("embedding", "head")


def specs(name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...] | None:
    """The stored tensors of a weight under the full `name`; None for a matrix of 4 or 8 bits."""
    if spec.role == "float":
        return (TensorSpec(name, "F32", spec.shape),)
    if choice.bits == 16:
        return (TensorSpec(name + ".weight", "BF16", spec.shape),)
    if spec.role in TABLE_ROLES:
        return (
            TensorSpec(name + ".codes", "U8", spec.shape),
            TensorSpec(name + ".scales", "F32", spec.shape[:1]),
        )
    return None


def arrays(name: str, role: str, q: Quantized) -> dict[str, np.ndarray] | None:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits."""
    if q.bits == 16:
        bits = q.weight.to(torch.bfloat16).contiguous().view(torch.int16)
        return {name + ".weight": bits.numpy().view(np.uint16)}
    if role in TABLE_ROLES:
        assert q.scales is not None
        return {name + ".codes": q.weight.numpy(), name + ".scales": q.scales.numpy()}
    return None
