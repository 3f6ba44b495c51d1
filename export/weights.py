"""Weights in memory: all of a checkpoint in float32 under our names, and back to the stored names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from edgekit.export.models.base import Architecture, Part, WeightSpec


class TensorSource(Protocol):
    """A source of weights: a checkpoint. Arrays are float32."""

    def read(self, name: str) -> np.ndarray: ...
    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray: ...


def read_rows(source: TensorSource, spec: WeightSpec, start: int, stop: int) -> np.ndarray:
    """Float32 rows start..stop of a weight. A part of a table is read without the rest of it."""
    if stop - start != spec.shape[0]:
        return source.read_slice(spec.parts[0].tensor, start, stop)
    pieces = [_read(source, part) for part in spec.parts]
    joined = pieces[0] if len(pieces) == 1 else np.concatenate([np.atleast_1d(p) for p in pieces])
    return joined.reshape(spec.shape)


def _read(source: TensorSource, part: Part) -> np.ndarray:
    if part.index is not None:
        return source.read_slice(part.tensor, part.index, part.index + 1)[0]
    return source.read(part.tensor) if part.rows is None else source.read_slice(part.tensor, *part.rows)


def full_name(unit: str, spec: WeightSpec) -> str:
    """The name of a float weight in a reference model: unit, name, and `.weight` for matrices; experts are
    stacked by layer.
    """
    suffix = "" if spec.role == "float" else ".weight"
    if ".experts." in unit:
        layer = unit.split(".experts.")[0]
        return f"{layer}.experts.{spec.name}{suffix}"
    return spec.name + suffix if unit in ("embedding", "head", "final") else f"{unit}.{spec.name}{suffix}"


def load_float_weights(architecture: Architecture, source: TensorSource) -> dict[str, Tensor]:
    """All weights in float32, by `full_name`; for models that fit in memory (tests, the tiny models)."""
    out: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for unit, spec in architecture.weights():
        name, value = full_name(unit, spec), torch.from_numpy(read_rows(source, spec, 0, spec.shape[0]))
        if ".experts." in unit:
            stacks.setdefault(name, []).append(value)
        else:
            out[name] = value
    return out | {name: torch.stack(parts) for name, parts in stacks.items()}


def stored_tensors(architecture: Architecture, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `load_float_weights`: tensors under the checkpoint's own names."""
    out: dict[str, Tensor] = {}
    entries: dict[str, dict[int, Tensor]] = {}
    cuts: dict[str, dict[int, Tensor]] = {}
    for unit, spec in architecture.weights():
        value = weights[full_name(unit, spec)]
        if ".experts." in unit:
            value = value[int(unit.rsplit(".", 1)[1])]
        for part, piece in zip(spec.parts, value.chunk(len(spec.parts)), strict=True):
            if part.rows is not None:
                cuts.setdefault(part.tensor, {})[part.rows[0]] = piece
            elif part.index is None:
                out[part.tensor] = piece.contiguous()
            else:
                entries.setdefault(part.tensor, {})[part.index] = piece
    out |= {name: torch.cat([pieces[first] for first in sorted(pieces)]) for name, pieces in cuts.items()}
    return out | {name: torch.stack([e[i] for i in sorted(e)]) for name, e in entries.items()}
