"""Core AI bundles for tests: their functions run by Apple's runtime.

Importing this module imports coreai-core; tests that do so are skipped where it is missing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.package_bundles import Programs

pytest.importorskip("coreai", reason="coreai-core is not installed")

from coreai.authoring import AIModelAsset
from coreai.runtime import NDArray


def call(package: Path, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a function of an asset once; arrays by name."""

    async def run() -> dict[str, np.ndarray]:
        async with AIModelAsset.load(package).executable() as model:
            out = await model.load_function(function)({n: NDArray(a) for n, a in inputs.items()})
            return {name: np.array(value.numpy()) for name, value in out.items()}

    return asyncio.run(run())


class CoreaiPrograms(Programs):
    """The functions of a bundle in Apple's runtime; opened packages stay open."""

    def __init__(self, bundle: Path) -> None:
        super().__init__(bundle)
        self._loop, self._stack = asyncio.new_event_loop(), AsyncExitStack()
        self._models: dict[str, Any] = {}

    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        async def run() -> dict[str, np.ndarray]:
            if package not in self._models:
                asset = AIModelAsset.load(self.bundle / self.entries[package]["path"])
                self._models[package] = await self._stack.enter_async_context(asset.executable())
            function_ = self._models[package].load_function(function)
            out = await function_({n: NDArray(a) for n, a in inputs.items()})
            return {name: np.array(value.numpy()) for name, value in out.items()}

        return self._loop.run_until_complete(run())

    def __enter__(self) -> CoreaiPrograms:
        return self

    def __exit__(self, *_: object) -> None:
        self._models.clear()
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()
