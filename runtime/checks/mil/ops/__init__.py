"""Operations, one file per group. Importing this package fills the table in registry.py."""

from __future__ import annotations

from edgekit.runtime.checks.mil.ops import (
    activation,
    attention,
    compression,
    conv,
    creation,
    elementwise,
    gather,
    linear,
    normalization,
    quantization,
    reduction,
    shape,
    slicing,
    sorting,
    state,
)
from edgekit.runtime.checks.mil.ops.registry import Op, registered

__all__ = [
    "Op", "activation", "attention", "compression", "conv", "creation", "elementwise", "gather", "linear",
    "normalization", "quantization", "reduction", "registered", "shape", "slicing", "sorting", "state",
]  # fmt: skip
