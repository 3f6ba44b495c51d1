"""The cut of layers with experts: both parts together are the layer, and what cannot be cut is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import write_checkpoint
from torch import Tensor, nn

from edgekit.export import ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import ExportError
from edgekit.export.formats.native.lowering import lower
from edgekit.export.mixture_cut import MixtureCut, dense_part, mixture_part
from edgekit.export.models import architecture, complete
from edgekit.export.models.base import Architecture, LayerSpec, linear, route
from edgekit.export.programs import Lengths, Program, code_placeholders, layer_program
from edgekit.export.quantize import Choice

#: Families with experts, in sizes that say what mixtures differ in.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llada_moe", {"num_experts": 21, "num_experts_per_tok": 3}), ("sdar_moe", {}), ("diffusion_gemma", {}),
    ("llada2_moe", {}), ("llada2_moe", {"expert_capacity": 5, "block_size": 8}),
]  # fmt: skip


def opened(folder: Path, family: str, **sizes: Any) -> Architecture:
    write_checkpoint(folder, family, **sizes)
    source = Checkpoint.open(folder)
    return architecture(complete(source.config, source.names))


def whole(arch: Architecture, layer: LayerSpec, lengths: Lengths | None = None) -> Program:
    own = {s.name: Choice(8, 0) for s in layer.weights if s.role != "float"}
    own |= {f"experts.{s.name}": Choice(8, 0) for each in layer.experts[:1] for s in each}
    return layer_program(layer.kind, arch, layer, own, code_placeholders, lengths)


def random_values(program: Program, known: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """A value for every input of a program: one that is known already, or a random one."""
    generator = torch.Generator().manual_seed(seed)
    nodes = [n for n in program.exported.graph.nodes if n.op == "placeholder"]
    for node, name in zip(nodes, program.inputs, strict=True):
        shape, dtype = node.meta["val"].shape, node.meta["val"].dtype
        if name in known:
            continue
        if dtype == torch.uint8:
            known[name] = torch.randint(0, 256, shape, generator=generator, dtype=dtype)
        elif dtype == torch.int64:
            known[name] = torch.ones(shape, dtype=dtype)
        else:
            size = 0.01 if name.endswith(".scales") else 1.0
            known[name] = size * torch.randn(shape, generator=generator)
    return known


def run(program: Program, values: dict[str, Tensor]) -> dict[str, Tensor]:
    inputs = {name: values[name] for name in program.inputs if not name.startswith("w.")}
    weights = {name[2:]: values[name] for name in program.inputs if name.startswith("w.")}
    with torch.no_grad():
        results = program.exported.module()(inputs, weights)
    return dict(zip(program.outputs, results, strict=True))


@pytest.mark.parametrize("family,sizes", CASES)
def test_both_parts_are_the_layer(tmp_path: Path, family: str, sizes: dict[str, Any]) -> None:
    arch = opened(tmp_path, family, **sizes)
    layers = {layer.kind: layer for layer in arch.layers if layer.experts}
    assert layers
    for seed, layer in enumerate(layers.values()):
        program = whole(arch, layer, Lengths(16, 24))
        values = random_values(program, {}, seed)
        expected = run(program, values)
        dense = run(dense_part(program), values)
        assert all(torch.equal(dense[name], expected[name]) for name in "kv")
        mixture = mixture_part(program)
        found = run(mixture, values | {name: dense[name] for name in dense if name.startswith("dense.")})
        assert torch.equal(found["y"], expected["y"])
        ops_of = [op["op"] for op in lower(MixtureCut.of(arch, layer).mixture)["ops"]]
        assert ops_of.count("linear") == 1, "the router"
        assert "attention" not in ops_of and ops_of.count("experts") == 1


@pytest.mark.parametrize("family,sizes", CASES)
def test_each_weight_has_its_part(tmp_path: Path, family: str, sizes: dict[str, Any]) -> None:
    arch = opened(tmp_path, family, **sizes)
    for layer in {layer.kind: layer for layer in arch.layers if layer.experts}.values():
        cut = MixtureCut.of(arch, layer)
        assert cut.dense | cut.own == {spec.name for spec in layer.weights}
        shared = [spec for spec in layer.weights if spec.name in cut.dense & cut.own]
        assert all(spec.role == "float" for spec in shared)
        routers = {spec.name for spec in layer.weights if spec.role == "router"}
        assert len(routers) == 1 and routers <= cut.own - cut.dense


class _Changed(nn.Module):
    """A layer with another end."""

    def __init__(self, module: nn.Module, change: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, inputs: Any, w: Any) -> Any:
        return self.change(*self.module(inputs, w), inputs, w)


#: Ends that layers do not have, and what is said of them.
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a product behind the experts": (
        lambda y, k, v, i, w: (linear(y, w, "self_attn.k_proj").repeat(1, 1, 2), k, v),
        "multiplies what the experts give",
    ),
    "keys of the experts": (
        lambda y, k, v, i, w: (y, k + y.sum(), v),
        "y, and not keys and values, must be what its experts give",
    ),
    "its tables": (lambda y, k, v, i, w: (y * i.cos[:, :1], k, v), "its mixture takes cos"),
    "another shape": (
        lambda y, k, v, i, w: (y + linear(i.x, w, "router").sum(-1, keepdim=True), k, v),
        "whose shape is not that of x",
    ),
    "a second mixture": (
        lambda y, k, v, i, w: (y + _mixed(i.x, w).view_as(y), k, v),
        "has 2 mixtures of experts and 2 routers, not one",
    ),
}  # fmt: skip


def _mixed(x: Tensor, w: Any) -> Tensor:
    flat = x.flatten(0, 1)
    index, weight = route(linear(flat, w, "router", act_bits=16), 2)
    stacks = [w["experts.gate_up.codes"], None, w["experts.gate_up.scales"]]
    stacks += [w["experts.down.codes"], None, w["experts.down.scales"]]
    mixed: Tensor = ops.experts(flat, index, weight, *stacks, "silu")
    return mixed


@pytest.mark.parametrize("change,said", REFUSED.values(), ids=list(REFUSED))
def test_layers_that_cannot_be_cut(tmp_path: Path, change: Callable[..., Any], said: str) -> None:
    arch = opened(tmp_path, "llada_moe")
    layer = replace(arch.layers[0], module=_Changed(arch.layers[0].module, change))
    with pytest.raises(ExportError, match=said):
        MixtureCut.of(arch, layer)


def test_layers_without_experts(tmp_path: Path) -> None:
    arch = opened(tmp_path, "llada")
    with pytest.raises(ExportError, match="has 0 mixtures of experts and 0 routers, not one"):
        dense_part(whole(arch, arch.layers[0]))
