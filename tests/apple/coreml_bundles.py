"""Core ML bundles for tests: their functions run by the evaluator of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support import package_bundles
from support.package_bundles import Programs

from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions
from edgekit.export.quantize import Scheme
from edgekit.runtime.checks.mil import Evaluator, Package

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
    return package_bundles.options("coreml", scheme, precision, packaging, **others)


def make_bundle(
    folder: Path, family: str, scheme: Scheme, precision: str, packaging: Packaging, **overrides: Any
) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    return package_bundles.make_bundle(folder, family, "coreml", scheme, precision, packaging, **overrides)


class CoremlPrograms(Programs):
    """The functions of a bundle, evaluated; see `Evaluator` for `compute`."""

    def __init__(self, bundle: Path, compute: Any = "declared") -> None:
        super().__init__(bundle)
        self._compute, self.widened = compute, compute == "float32"
        self._packages = {name: Package(bundle / e["path"]) for name, e in self.entries.items()}

    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(Evaluator(self._packages[package], function, compute=self._compute).run(inputs))
