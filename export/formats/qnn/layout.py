"""Stored forms of weights in packages for the NPU: arrays as `weights.bin` holds them.

    float vector      F32 as it is
    matrix, 8 bits    .codes I8 [K, N] (q), .scales F32 [N]
    matrix, 4 bits    .codes U8 [K * N / 2]: q [K, N] in two's complement, the first of two in the low nibble,
                      .group_scales U8 [K/G, N], .scales F32 [N]
    both              .given_scale, .made_scale F32 and .given_zero, .made_zero U16, one number each: those of
                      the 16-bit codes of what is multiplied, and of the product
    table, 8 bits     .codes U8 [V, H] (q + 128), .scales F32 [V]; see `row_major`

The weight of 4 bits is `scales * group_scales * q`, which Qualcomm calls LPBQ: the NPU multiplies with the
quantizer's own integers. It takes a matrix as [K, N] alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgekit.export.calibrate.ranges import ProductRange, Range
from edgekit.export.formats import row_major
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.row_major import TABLE_ROLES
from edgekit.export.models.base import WeightSpec
from edgekit.export.ops import unpack_codes
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec
from edgekit.runtime.checks.mil.types import BY_NAME

#: Groups that the NPU's compiler was seen to take.
GROUP_SIZES = (32, 64)
#: Ranges were seen on some texts; others reach further.
MARGIN = 1.25
_CODES = 65535
#: Scales are of these steps within a power of two, so that what a machine adds in another order is not seen.
_STEPS = 16
_TYPES = {"U8": "uint8", "I8": "int8", "F32": "fp32", "U16": "uint16"}


@dataclass(frozen=True)
class ActivationCodes:
    """The 16-bit codes of an array: it is `scale * (code - zero)`."""

    scale: float
    zero: int

    @classmethod
    def covering(cls, seen: Range) -> ActivationCodes:
        """Codes for a range, zero, and a margin."""
        low, high = min(seen.low, 0.0) * MARGIN, max(seen.high, 0.0) * MARGIN
        mantissa, exponent = math.frexp(max(high - low, 1e-6) / _CODES)
        scale = math.ldexp(math.ceil(mantissa * _STEPS * 2) / (_STEPS * 2), exponent)
        return cls(scale, min(_CODES, round(-low / scale)))


def on_npu(spec: WeightSpec) -> bool:
    """Whether a weight is a matrix that the NPU multiplies with."""
    return spec.role != "float" and spec.role not in TABLE_ROLES


def specs(name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`."""
    if not on_npu(spec):
        shared = row_major.specs(name, spec, choice)
        assert shared is not None
        return shared
    rows, columns = spec.shape
    codes = [TensorSpec(name + ".codes", "I8", (columns, rows))]
    if choice.bits == 4:
        codes = [
            TensorSpec(name + ".codes", "U8", (columns * rows // 2,)),
            TensorSpec(name + ".group_scales", "U8", (columns // choice.group_size, rows)),
        ]
    return (
        *codes,
        TensorSpec(name + ".scales", "F32", (rows,)),
        *(TensorSpec(f"{name}.{of}_scale", "F32", ()) for of in ("given", "made")),
        *(TensorSpec(f"{name}.{of}_zero", "U16", ()) for of in ("given", "made")),
    )


def constants(name: str, spec: WeightSpec, choice: Choice) -> tuple[Constant, ...]:
    """The constants that a weight is in a program, in the order of `specs`."""

    def constant(stored: TensorSpec) -> Constant:
        if on_npu(spec) and choice.bits == 4 and stored.name.endswith(".codes"):
            return Constant(stored.name, BY_NAME["int4"], (spec.shape[1], spec.shape[0]))
        return Constant(stored.name, BY_NAME[_TYPES[stored.dtype]], stored.shape)

    return tuple(map(constant, specs(name, spec, choice)))


def arrays(name: str, role: str, q: Quantized, seen: ProductRange | None) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; of a matrix for the NPU the ranges are
    given.
    """
    if (shared := row_major.arrays(name, role, q)) is not None:
        return shared
    assert q.scales is not None and seen is not None
    codes = unpack_codes(q.weight, q.bits).T.contiguous().numpy()  # [K, N]
    stored = {name + ".codes": codes}
    if q.group_scales is not None:
        pairs = codes.view(np.uint8).reshape(-1, 2)
        stored = {
            name + ".codes": (pairs[:, 0] & 15) | (pairs[:, 1] << 4),
            name + ".group_scales": q.group_scales.T.contiguous().numpy(),
        }
    given, made = ActivationCodes.covering(seen.given), ActivationCodes.covering(seen.made)
    return stored | {
        name + ".scales": q.scales.numpy(),
        name + ".given_scale": np.array(given.scale, np.float32),
        name + ".made_scale": np.array(made.scale, np.float32),
        name + ".given_zero": np.array(given.zero, np.uint16),
        name + ".made_zero": np.array(made.zero, np.uint16),
    }
