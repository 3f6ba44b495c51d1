"""The Core ML bundle: every function of its packages against the reference holding the same codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import quantized_reference
from coreml_bundles import HIDDEN, Programs, decibels, make_bundle, options, random, torched

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.formats.packaging import Packaging
from edgekit.export.models.base import DENOISE, PREFILL
from edgekit.export.ops import dequantize
from edgekit.export.pipeline import export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel

pytest.importorskip("coremltools", reason="coremltools is not installed")

#: Small models with one layer of each kind; windows shorter than the prefix.
SMALL: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"intermediate_size": 64, "moe_intermediate_size": 32, "sliding_window": 33},
    "llada": {"n_layers": 3, "n_heads": 4, "n_kv_heads": 2},
    "llada_moe": {"num_hidden_layers": 3, "num_experts": 21, "num_experts_per_tok": 3},
    "dream": {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
}
LENGTHS = {"diffusion_gemma": (0, 48), "llada": (8, 13), "llada_moe": (11,), "dream": (7, 20)}
CASES = [
    ("diffusion_gemma", "mixed4", 3), ("diffusion_gemma", "bf16", 1), ("llada", "int4", 2),
    ("llada", "int8", 3), ("llada_moe", "mixed4", 2), ("llada_moe", "int8", 1), ("dream", "int4", 3),
    ("dream", "bf16", 2),
]  # fmt: skip


def layer_values(rng: np.random.Generator, model: ReferenceModel, function: dict[str, Any]) -> dict[str, Any]:
    """Random inputs of a function of layers: tables of some positions, masks that hide a third of the keys."""
    values: dict[str, Any] = {}
    for feature in function["inputs"]:
        role, shape = feature["role"], feature["shape"]
        name, _, which = role.partition(".")
        if name in ("cos", "sin"):
            positions = torch.arange(function["p"], function["p"] + function["t"])
            tables = model.architecture.ropes[which].tables(positions)
            values[role] = tables[name == "sin"].numpy().astype(feature["dtype"])
        elif name == "mask":
            mask = np.where(rng.random(shape) < 0.3, HIDDEN, 0.0)
            mask[:, -1] = 0.0
            values[role] = mask
        elif name == "phase":
            values[role] = np.array([rng.integers(DENOISE, PREFILL + 1)])
        else:
            values[role] = random(rng, *shape)
    return values


@torch.no_grad()
def layer_results(
    model: ReferenceModel, layers: list[int], values: dict[str, Any], x: np.ndarray
) -> dict[str, np.ndarray]:
    """What the reference's layers make of the same values."""
    out: dict[str, np.ndarray] = {}
    y = torched(x)
    for slot, i in enumerate(layers):
        layer = model.architecture.layers[i]
        none = torch.zeros(1, layer.kv_heads, 0, layer.head_dim)
        prefix = [
            torched(values[f"{n}.{slot}"]) if f"{n}.{slot}" in values else none
            for n in ("prefix_k", "prefix_v")
        ]
        cos, sin = (torched(values[f"{n}.{layer.rope}"]).float() for n in ("cos", "sin"))
        mask = torched(values[f"mask.{'full' if layer.window is None else layer.window}"]).float()
        phase = torch.from_numpy(values["phase"]) if "phase" in values else None
        y, k, v = layer.module(y, *prefix, cos, sin, mask, phase, model._unit(f"layers.{i}."))
        out |= {f"k.{slot}": k.numpy(), f"v.{slot}": v.numpy()}
    return out | {"y": y.numpy()}


def table_of(model: ReferenceModel, start: int, rows: int) -> torch.Tensor:
    table, scales = model._table("head" if model.architecture.head is not None else "embedding")
    return dequantize(table, None, scales)[start : start + rows]


@contextmanager
def routing() -> Iterator[list[np.ndarray]]:
    """For every mixture computed inside, which positions chose their experts by more than rounding could
    turn: where two are nearly equal, half precision may choose the other, and the result is another one.
    """
    topk, settled = torch.topk, list[np.ndarray]()

    def watched(probability: torch.Tensor, k: int) -> Any:
        first = probability.sort(-1, descending=True).values[:, : k + 1]
        settled.append((first[:, -1] < 0.98 * first[:, -2]).numpy())
        return topk(probability, k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", watched)
        yield settled


def check_layers(bundle: Path, model: ReferenceModel, seed: int, compute: str, least: float | None) -> int:
    """Compare all functions of all chunks; returns how many. Without `least` decibels, to 1e-3."""
    programs, rng, checked = Programs(bundle), np.random.default_rng(seed), 0
    for package, entry in programs.entries.items():
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        for name, function in entry["functions"].items():
            if function["kind"] != "layers":
                continue
            values = layer_values(rng, model, function)
            got = programs.run(package, name, values, compute)
            with routing() as settled:
                expected = layer_results(model, layers, values, values["x"])
            assert got.keys() == expected.keys()
            for role, array in got.items():
                what = f"{package} {name} {role}"
                if least is None:
                    top = np.abs(expected[role]).max()
                    np.testing.assert_allclose(
                        array, expected[role], rtol=1e-3, atol=1e-4 * top, err_msg=what
                    )
                else:
                    sure = settled[0] if settled and role == "y" else slice(None)
                    assert not settled or settled[0].mean() > 0.7
                    found = decibels(array[0, sure], expected[role][0, sure])
                    assert found > least, f"{what}: {found:.1f} dB"
            checked += 1
    return checked


@pytest.mark.parametrize(("family", "preset", "chunk"), CASES)
def test_layers_equal_the_reference(tmp_path: Path, family: str, preset: str, chunk: int) -> None:
    scheme = Scheme(preset, 32)
    packaging = Packaging(LENGTHS[family], layers_per_chunk=chunk)
    bundle = make_bundle(tmp_path, family, scheme, "float32", packaging, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    count = check_layers(bundle, model, 1, "declared", None)
    chunks = -(-len(model.architecture.layers) // chunk)
    assert count == chunks * len(LENGTHS[family])


@pytest.mark.parametrize("family", SMALL)
def test_float16_layers_are_close_to_the_reference(tmp_path: Path, family: str) -> None:
    """Layer by layer. What is not rounded, but for the stored scales, is closer still."""
    scheme = Scheme("mixed4", 32)
    packaging = Packaging(LENGTHS[family], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, scheme, "float16", packaging, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    check_layers(bundle, model, 1, "declared", 60)
    check_layers(bundle, model, 1, "float32", 65)
