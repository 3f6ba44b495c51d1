"""Core ML bundles for tests: exported in chunks, their functions run by the evaluator of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from bundles import TILE_BYTES
from checkpoints import write_checkpoint

from edgekit.export.formats.packaging import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import manifest as manifests
from edgekit.runtime.mil import Evaluator, Package

#: Additive value of what is not to be seen, which float16 has.
HIDDEN = -3e4


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
