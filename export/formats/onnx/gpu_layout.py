"""Stored forms of weights in a bundle for GPUs, and the program inputs that stand for them.

    matrix, 16 bits   .weight BF16 [N, K]
    matrix, 8 bits    .codes U8 [N, K] (q + 128), .scales F32 [N]
    matrix, 4 bits    .codes U8 [N, K/2], .group_scales U8 [N, K/G], .scales F32 [N]
    table             as `row_major` has it

Byte [n, i] of 4 bits holds q + 8 of column 2i in its low nibble and of column 2i + 1 in its high one: codes
are those of the quantizer, which MatMulNBits takes as they are. Programs take 16 bits as float32, tables as
they are stored, and all else as .codes U8 [N, K/B, bytes of B columns] and .scales F32 [N, K/B], for blocks
of B columns that share a scale (`gpu_blocks`). The engine multiplies the scales of groups and rows, and
repeats them for the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from edgekit.export.formats import row_major
from edgekit.export.formats.row_major import TABLE_ROLES
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice, Quantized, check_experts_alike, matrix_name
from edgekit.flashload.format import TensorSpec
from edgekit.runtime.engines.onnx.gpu_blocks import BLOCKS, block_of


def storable(architecture: Architecture, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The choices that this layout can store: a matrix whose rows no block divides stays float, noted.

    Raises:
        QuantizationError: the experts of a layer differ in bits, while one program serves them all.
    """
    out = dict(choices)
    for unit, spec in architecture.weights():
        if spec.role == "float" or spec.role in TABLE_ROLES:
            continue
        name = matrix_name(unit, spec)
        choice = choices[name]
        if choice.bits == 8 and block_of(spec.shape[1]) is None:
            why = f"{spec.shape[1]} columns do not divide into blocks of {min(BLOCKS)}: stored in 16 bits"
            out[name] = Choice(16, 0, why)
    check_experts_alike(architecture, out, "onnx-gpu")
    return out


def placeholders(spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
    """Untouched tensors with the shapes and types of the program inputs."""
    rows, columns = spec.shape
    if choice.bits == 16:
        return {spec.name + ".weight": torch.empty(rows, columns)}
    if spec.role in TABLE_ROLES:
        return {
            spec.name + ".codes": torch.empty(rows, columns, dtype=torch.uint8),
            spec.name + ".scales": torch.empty(rows),
        }
    block = block_of(choice.group_size if choice.bits == 4 else columns)
    assert block is not None, "groups are multiples of one, and of 8 bits the choice was looked at"
    blocks = columns // block
    return {
        spec.name + ".codes": torch.empty(rows, blocks, block * choice.bits // 8, dtype=torch.uint8),
        spec.name + ".scales": torch.empty(rows, blocks),
    }


def specs(name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`."""
    if (shared := row_major.specs(name, spec, choice)) is not None:
        return shared
    rows, columns = spec.shape
    scales = TensorSpec(name + ".scales", "F32", (rows,))
    codes = TensorSpec(name + ".codes", "U8", (rows, columns * choice.bits // 8))
    if choice.bits == 8:
        return (codes, scales)
    return (codes, scales, TensorSpec(name + ".group_scales", "U8", (rows, columns // choice.group_size)))


def arrays(name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits."""
    if (shared := row_major.arrays(name, role, q)) is not None:
        return shared
    return {stored: tensor.numpy() for stored, tensor in q.tensors(name).items()}
