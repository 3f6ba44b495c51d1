"""Core ML bundles for tests: exported in chunks, their functions run by the evaluator of packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import TILE_BYTES
from checkpoints import write_checkpoint

from edgekit.export.formats.packaging import Packaging
from edgekit.export.models.base import DENOISE, PREFILL
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.flashload import manifest as manifests
from edgekit.runtime.mil import Evaluator, Package

#: Additive value of what is not to be seen, which float16 has.
HIDDEN = -3e4
#: Few layers of each family, for what does not depend on them.
SMALL: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 3},
    "llada": {"n_layers": 3},
    "llada_moe": {"num_hidden_layers": 2},
    "dream": {"num_hidden_layers": 2},
}


def options(
    scheme: Scheme, precision: str | None = None, packaging: Packaging | None = None, **others: Any
) -> ExportOptions:
    return ExportOptions(
        "coreml", "ios", scheme, TILE_BYTES, precision=precision, packaging=packaging, **others
    )


def make_bundle(
    folder: Path, family: str, scheme: Scheme, precision: str, packaging: Packaging, **overrides: Any
) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    write_checkpoint(folder / "checkpoint", family, **overrides)
    export(folder / "checkpoint", folder / "bundle", options(scheme, precision, packaging))
    return folder / "bundle"


class Programs:
    """The functions of a bundle, evaluated; values go in and out by role."""

    def __init__(self, bundle: Path) -> None:
        self.manifest = manifests.load(bundle)
        self.entries = self.manifest.programs["packages"]
        self._packages = {name: Package(bundle / e["path"]) for name, e in self.entries.items()}

    def run(self, package: str, function: str, values: dict[str, Any], compute: Any) -> dict[str, np.ndarray]:
        """What a function gives for values by role, which must be all of its inputs."""
        entry = self.entries[package]["functions"][function]
        inputs = {}
        for feature in entry["inputs"]:
            value = np.asarray(values[feature["role"]])
            assert list(value.shape) == feature["shape"], feature
            inputs[feature["name"]] = value.astype(feature["dtype"])
        out = Evaluator(self._packages[package], function, compute=compute).run(inputs)
        described = {f["name"]: f for f in entry["outputs"]}
        assert out.keys() == described.keys()
        for name, array in out.items():
            assert list(array.shape) == described[name]["shape"]
        return {described[name]["role"]: array for name, array in out.items()}


def decibels(got: np.ndarray, expected: np.ndarray) -> float:
    """Peak signal to noise ratio."""
    error = np.sqrt(np.mean((got.astype(np.float64) - expected) ** 2))
    return float(20 * np.log10(np.abs(expected).max() / max(error, 1e-30)))


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal numbers that float16 has, so that both sides of a comparison begin alike."""
    return (scale * rng.standard_normal(shape)).astype(np.float16).astype(np.float32)


def torched(value: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(value))


def layer_values(rng: np.random.Generator, model: ReferenceModel, function: dict[str, Any]) -> dict[str, Any]:
    """Random inputs of a function of layers: tables of some positions, masks that hide a third of keys."""
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
                        array, expected[role], rtol=1e-4, atol=2e-5 * top, err_msg=what
                    )
                else:
                    sure = settled[0] if settled and role == "y" else slice(None)
                    assert not settled or settled[0].mean() > 0.7
                    found = decibels(array[0, sure], expected[role][0, sure])
                    assert found > least, f"{what}: {found:.1f} dB"
            checked += 1
    return checked
