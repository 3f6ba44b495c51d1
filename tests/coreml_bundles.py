"""Core ML bundles for tests: their functions run by the evaluator of packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from package_bundles import Programs

from edgekit.runtime.mil import Evaluator, Package


class CoremlPrograms(Programs):
    """The functions of a bundle, evaluated; see `Evaluator` for `compute`."""

    def __init__(self, bundle: Path, compute: str = "declared") -> None:
        super().__init__(bundle)
        self._compute = compute
        self.declared_types = compute == "declared"
        self._packages = {name: Package(bundle / e["path"]) for name, e in self.entries.items()}

    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = Evaluator(self._packages[package], function, compute=self._compute).run(inputs)  # type: ignore[arg-type]
        return dict(out)
