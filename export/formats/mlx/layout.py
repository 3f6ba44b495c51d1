"""Stored forms of weights in an MLX bundle: layout `mlx-2`, as mlx-lm converts checkpoints.

    matrix or table, 4 or 8 bits   .weight U32 [N, K * bits / 32], .scales and .biases [N, K / G]
    matrix or table, 16 bits       .weight BF16 [N, K]
    float vector                   F32 as it is

A value is `scales * code + biases` (MLX's affine mode), the codes being those of `edgekit.export.ops`: its
bytes, four to a word, low byte first. They are offset binary, so biases = -8 * scales in 4 bits and -128 *
scales in 8. In 4 bits scales[n, j] = scale[n] * group_scale[n, j] and G is the group size of the scheme. In
8 bits the scale of the channel stands in every group, of the largest size that divides K.

The tensors of a run have names of ours, `layers.3.mlp.down_proj.weight` in every family, so that a program
finds them without knowing the family; `names` says what they are in the file. Each expert is a run of its
own that streams, `layers.3.experts.7.gate_proj`; the halves of a gate_up matrix are stored apart. Tables are
cut into tiles, `embedding.0`, `embedding.1`..., which are rows of one table in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgekit.export.errors import QuantizationError
from edgekit.export.formats import row_major
from edgekit.export.formats.floats import TYPES, block_scales, numbers
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice, Quantized, Scheme, check_experts_alike, matrix_name
from edgekit.flashload.format import TensorSpec

#: Group sizes that MLX has kernels for, the largest first: fewer scales to read.
GROUP_SIZES = (128, 64, 32)


@dataclass(frozen=True)
class Form:
    """The stored form of a matrix. `bits` 16 is a bfloat16 weight, without groups (`group_size` 0)."""

    bits: int
    group_size: int


def form(spec: WeightSpec, choice: Choice) -> Form:
    """The stored form of a weight that `choices` allow."""
    if choice.bits == 16:
        return Form(16, 0)
    return Form(choice.bits, choice.group_size if choice.bits == 4 else channel_group(spec.shape[1]))


def channel_group(columns: int) -> int:
    """The groups over which the scale of a channel is repeated; 0 if no size divides the columns."""
    return next((size for size in GROUP_SIZES if columns % size == 0), 0)


def storable(architecture: Architecture, scheme: Scheme, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The choices that this layout can store: a matrix whose columns no group divides stays float, noted.

    Raises:
        QuantizationError: the scheme's group size is none of MLX's, or the experts of a layer differ in
            bits, while one program serves them all.
    """
    out = dict(choices)
    for unit, spec in architecture.weights():
        if spec.role == "float":
            continue
        name = matrix_name(unit, spec)
        choice = choices[name]
        asked = choice.group_size == scheme.group_size
        if choice.bits == 4 and asked and choice.group_size not in GROUP_SIZES:
            raise QuantizationError(
                f"format mlx stores 4-bit weights in groups of 32, 64 or 128, not {scheme.group_size}; "
                "set --group-size"
            )
        fits = choice.group_size in GROUP_SIZES if choice.bits == 4 else channel_group(spec.shape[1])
        if choice.bits != 16 and not fits:
            why = (
                f"{spec.shape[1]} columns do not divide into groups of 32, which MLX needs: stored in 16 bits"
            )
            out[name] = Choice(16, 0, why)
    check_experts_alike(architecture, out, "mlx")
    _check_cuts_alike(architecture, out)
    return out


def _check_cuts_alike(architecture: Architecture, choices: Mapping[str, Choice]) -> None:
    """That matrices which are rows of one tensor of the checkpoint, and stay so here, have one form."""
    first: dict[str, str] = {}
    for unit, spec in architecture.weights():
        if spec.role == "float" or spec.parts[0].rows is None:
            continue
        name = matrix_name(unit, spec)
        other = first.setdefault(spec.parts[0].tensor, name)
        a, b = choices[name], choices[other]
        if (a.bits, a.group_size) != (b.bits, b.group_size):
            raise QuantizationError(
                f"{name}: has {a.bits} bits and {other} {b.bits}; format mlx stores both in one tensor; "
                "widen the override's pattern"
            )


def stored_names(name: str, role: str) -> tuple[str, ...]:
    """The names under which a matrix is stored: its own, or those of its halves."""
    unit, _, own = name.rpartition(".")
    if role != "experts":
        return (name,)
    return tuple(f"{unit}.{part}" for part in EXPERT_PARTS[own])


#: The matrices of an expert, by the name that quantization knows them under.
EXPERT_PARTS = {"gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",)}


def placeholders(spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
    """Untouched tensors for tracing, in the form that `edgekit.export.ops` knows; see `graph`."""
    if choice.bits == 16:
        return {spec.name + ".weight": torch.empty(spec.shape, dtype=torch.bfloat16)}
    return {
        spec.name + ".codes": torch.empty(spec.shape[0], spec.shape[1] * choice.bits // 8, dtype=torch.uint8),
        spec.name + ".scales": torch.empty(spec.shape[0]),
    }


def matrix_specs(name: str, rows: int, columns: int, stored: Form, precision: str) -> tuple[TensorSpec, ...]:
    """The tensors of one stored matrix [rows, columns]."""
    if stored.bits == 16:
        return (TensorSpec(name + ".weight", "BF16", (rows, columns)),)
    groups, kind = (rows, columns // stored.group_size), TYPES[precision][0]
    return (
        TensorSpec(name + ".weight", "U32", (rows, columns * stored.bits // 32)),
        TensorSpec(name + ".scales", kind, groups),
        TensorSpec(name + ".biases", kind, groups),
    )


def specs(name: str, spec: WeightSpec, choice: Choice, precision: str) -> tuple[TensorSpec, ...]:
    """The stored tensors of a weight, under the full `name`."""
    if spec.role == "float":
        return (TensorSpec(name, "F32", spec.shape),)
    parts = stored_names(name, spec.role)
    rows, columns = spec.shape[0] // len(parts), spec.shape[1]
    return tuple(t for p in parts for t in matrix_specs(p, rows, columns, form(spec, choice), precision))


def arrays(name: str, role: str, q: Quantized, precision: str) -> dict[str, np.ndarray]:
    """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits.

    Raises:
        ExportError: a scale or bias is too large or too small for the precision.
    """
    parts = stored_names(name, role)
    if q.bits == 16:
        whole = row_major.arrays(name, role, q)
        assert whole is not None
        return dict(_halves({".weight": whole[name + ".weight"]}, parts))
    scales = block_scales(name, group_scales(q).numpy(), precision)
    stored = {
        ".weight": q.weight.contiguous().numpy().view("<u4"),
        ".scales": scales,
        # Of the scales as they are stored: code 2^(bits - 1) stands for zero, exactly.
        ".biases": numbers(name, -(2.0 ** (q.bits - 1)) * scales.astype(np.float32), precision),
    }
    return dict(_halves(stored, parts))


def _halves(stored: Mapping[str, np.ndarray], parts: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of a matrix under the names of its parts."""
    for i, part in enumerate(parts):
        for suffix, array in stored.items():
            rows = array.shape[0] // len(parts)
            yield part + suffix, array[i * rows : (i + 1) * rows]


def group_scales(q: Quantized) -> Tensor:
    """The float32 scale of every group [N, K / G]."""
    assert q.scales is not None
    if q.group_scales is not None:
        return q.scales[:, None] * q.group_scales.float()
    columns = q.weight.shape[1]
    return q.scales[:, None].expand(-1, columns // channel_group(columns)).contiguous()
