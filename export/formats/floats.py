"""Stored floats of a chosen precision: values of weights and scales, none of them lost without a word."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import PRECISIONS
from edgekit.export.quantize.codes import EMPTY

#: Types of floats by precision: safetensors' name and numpy's.
TYPES: dict[str, tuple[str, Any]] = dict(
    zip(PRECISIONS, (("F16", np.float16), ("F32", np.float32)), strict=True)
)
#: Float16 scales that differ by more than this from what they stand for lose what quantization has kept:
#: they are below the normal numbers (2^-14).
MOST_SCALE_ERROR = 1e-2


def numbers(name: str, values: np.ndarray, precision: str) -> np.ndarray:
    """Float32 values in the precision.

    Raises:
        ExportError: one of them is too large for it.
    """
    with np.errstate(over="ignore"):
        stored = values.astype(TYPES[precision][1])
    if not np.isfinite(stored).all():
        raise ExportError(
            f"{name}: holds {np.abs(values).max():.6g}, beyond float16; export with --precision float32"
        )
    return stored


def block_scales(name: str, scales: np.ndarray, precision: str) -> np.ndarray:
    """Float32 scales in the precision; those of empty rows may become zero.

    Raises:
        ExportError: a scale is too large or too small for it.
    """
    stored = numbers(name, scales, precision)
    largest = float(scales.max(initial=0.0))
    wrong = np.abs(stored.astype(np.float32) - scales)[scales > EMPTY].max(initial=0.0)
    if wrong > MOST_SCALE_ERROR * largest:
        raise ExportError(
            f"{name}: its scales are at most {largest:.3g}, too small for float16; "
            "export with --precision float32"
        )
    return stored
