"""Stored forms of weights in packages of Core ML and Core AI: arrays as `weight.bin` and `main.mlirb` hold
them.

    float vector      F16 or F32 as the precision says
    matrix, 16 bits   .weight F16 or F32 [N, K]
    matrix, 8 bits    .codes I8 [N, K] (q), .scales F16 or F32 [N, 1]
    matrix, 4 bits    .codes U8 [N, K/2]: q in two's complement, the lower column in the low nibble,
                      .scales F16 or F32 [N, K/G]: scale of the row times scale of the group

The weight is `scales * q` for whole blocks, which both call a blockwise shift and scale. Both forms
of codes are those of `edgekit.export.ops` with the top bit of every code flipped. The embedding table is not
in a package but in the flash file, where single rows are read: see `row_major`. A tied table is stored there
and in the packages of the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekit.export.formats import row_major
from edgekit.export.formats.floats import TYPES, block_scales, numbers
from edgekit.export.models.base import WeightSpec
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec
from edgekit.runtime.checks.mil.types import BY_NAME, DType

#: MIL's names of the types of scales, floats and arithmetic, by precision.
_MIL_TYPES = {"float16": "fp16", "float32": "fp32"}
#: Flips the top bit of the codes in a byte: offset binary to two's complement and back.
FLIP = {4: 0x88, 8: 0x80}


@dataclass(frozen=True)
class Constant:
    """A constant of a program: MIL's type and the shape it has there; `name` as in `specs`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.count * self.dtype.bits // 8


def constants(name: str, spec: WeightSpec, choice: Choice, precision: str) -> tuple[Constant, ...]:
    """The constants that a weight is in a program, in the order of `specs`."""
    number = BY_NAME[_MIL_TYPES[precision]]
    if spec.role == "float":
        return (Constant(name, number, spec.shape),)
    if choice.bits == 16:
        return (Constant(name + ".weight", number, spec.shape),)
    rows, columns = spec.shape
    blocks = columns // choice.group_size if choice.bits == 4 else 1
    return (
        Constant(name + ".codes", BY_NAME[f"int{choice.bits}"], spec.shape),
        Constant(name + ".scales", number, (rows, blocks)),
    )


def specs(name: str, spec: WeightSpec, choice: Choice, precision: str) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`."""
    if spec.role == "embedding":
        shared = row_major.specs(name, spec, choice)
        assert shared is not None
        return shared
    stored = []
    for constant in constants(name, spec, choice, precision):
        bits = constant.dtype.bits
        dtype = {4: "U8", 8: "I8"}.get(bits, TYPES[precision][0])
        shape = (*constant.shape[:-1], constant.shape[-1] // 2) if bits == 4 else constant.shape
        stored.append(TensorSpec(constant.name, dtype, shape))
    return tuple(stored)


def arrays(name: str, role: str, q: Quantized, precision: str) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits.

    Raises:
        ExportError: a value is beyond what the precision can hold.
    """
    if role == "embedding":
        shared = row_major.arrays(name, role, q)
        assert shared is not None
        return shared
    if q.bits == 16:
        return {name + ".weight": numbers(name, q.weight.numpy(), precision)}
    assert q.scales is not None
    scales = q.scales[:, None]
    if q.group_scales is not None:
        scales = scales * q.group_scales.float()
    codes = q.weight.numpy() ^ np.uint8(FLIP[q.bits])
    return {
        name + ".codes": codes if q.bits == 4 else codes.view(np.int8),
        name + ".scales": block_scales(name, scales.numpy(), precision),
    }


def head_array(suffix: str, rows: np.ndarray, precision: str) -> np.ndarray:
    """Rows of a tied table as the head's packages store them, from those that the flash file stores: its
    `codes`, `scales` or `weight`.
    """
    if suffix == "weight":
        wide = (rows.astype(np.uint32) << 16).view(np.float32)
        return numbers("head", wide, precision)
    if suffix == "scales":
        return block_scales("head", rows[:, None], precision)
    return (rows ^ np.uint8(FLIP[8])).view(np.int8)
