"""Low-rank adapters, which no family has yet, put into those that there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from edgekit.export.models import architecture, base
from edgekit.export.models.base import LayerSpec, WeightSpec, low_rank, vector
from support.checkpoints import write_checkpoint, write_weights


def use_adapters(patch: pytest.MonkeyPatch, rank: int, bias: bool = False) -> None:
    """Have all layers but the second add an adapter to their output of attention, one half of their gates and
    `down_proj`, where they have such; with a bias for the first.
    """
    made = base.Architecture.__init__

    def init(self: Any, *args: Any, layers: tuple[LayerSpec, ...], **more: Any) -> None:
        adapted = (layer if i == 1 else _adapted(layer, i, rank, bias) for i, layer in enumerate(layers))
        made(self, *args, layers=tuple(adapted), **more)

    patch.setattr(base.Architecture, "__init__", init)


def _adapted(layer: LayerSpec, index: int, rank: int, bias: bool) -> LayerSpec:
    known = {spec.name: spec for spec in layer.weights}
    own: list[WeightSpec] = []
    for name in ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
        if name in known:
            stored = f"adapters.{index}.{name}"
            own += low_rank(name, *known[name].shape, rank, stored + ".down.weight", stored + ".up.weight")
    if bias:
        rows = known["self_attn.o_proj"].shape[0]
        own.append(vector("self_attn.o_proj.bias", rows, f"adapters.{index}.o_proj.bias"))
    return dataclasses.replace(layer, kind=layer.kind + "_adapted", weights=(*layer.weights, *own))


def write_adapted_checkpoint(folder: Path, family: str, seed: int = 0, **overrides: Any) -> None:
    """A random checkpoint with what the adapters of `use_adapters` are read from."""
    config = write_checkpoint(folder, family, seed, **overrides)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, shape in sorted(architecture(config).stored_shapes().items()):
        if name not in tensors:  # as large as what they are added to
            tensors[name] = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    write_weights(folder, tensors)
