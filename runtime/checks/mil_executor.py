"""Core ML packages by `checks.mil`, on any system: for checks, far too slow for anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgekit.runtime.checks.mil import Evaluator, MilError, Package
from edgekit.runtime.checks.mil.evaluate import Compute
from edgekit.runtime.engines.base import Arrays
from edgekit.runtime.errors import EngineFailed


class MilExecutor:
    """Evaluates `.mlpackage` folders; `compute` says how numbers are rounded, see `checks.mil`.
    Up to `cache_bytes` of each function's weights stay decompressed.
    """

    name = "mil"

    def __init__(self, compute: Compute = "declared", cache_bytes: int = 32 << 20) -> None:
        self._compute, self._cache_bytes = compute, cache_bytes

    def open(self, path: Path, functions: Sequence[str]) -> _Model:
        """Raises EngineFailed."""
        try:
            return _Model(Package(path), self._compute, self._cache_bytes)
        except MilError as error:
            raise EngineFailed(str(error)) from error


class _Model:
    def __init__(self, package: Package, compute: Compute, cache_bytes: int) -> None:
        self._package, self._compute, self._cache_bytes = package, compute, cache_bytes
        self._evaluators: dict[str, Evaluator] = {}

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        try:
            if function not in self._evaluators:
                self._evaluators[function] = Evaluator(
                    self._package, function, compute=self._compute, cache_bytes=self._cache_bytes
                )
            return self._evaluators[function].run(inputs)
        except MilError as error:
            raise EngineFailed(str(error)) from error

    def close(self) -> None:
        self._evaluators.clear()
