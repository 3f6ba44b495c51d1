"""One package of a bundle by itself, for checks: functions are called by name on arrays by role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import TOKENS, Function, Port
from edgekit.runtime.engines.base import Executor, output_of

#: The additive mask value that hides a key, as sessions have it: float16 holds it.
MASKED = np.float32(-3e4)


class PackageFunctions:
    """A package that is open.

    Raises:
        BundleError: a file of it is missing or damaged. EngineFailed: the executor cannot open it.
    """

    def __init__(self, bundle: Bundle, name: str, executor: Executor) -> None:
        assert bundle.packages is not None, "the caller looked"
        self.entry = bundle.packages[name]
        self.layers = [layer for layer in bundle.model.layers if layer.run == name]
        for file in self.entry.files:
            bundle.folder.check(file)
        self._model = executor.open(Path(bundle.path, self.entry.path), ())

    def shortest(self) -> Function:
        return min(self.entry.functions, key=lambda f: (f.t, f.p))

    def call(self, function: Function, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a function on arrays by role, each at most as large as declared; the rest is filled with zeros.
        Returns float32 and int64 arrays by role.

        Raises:
            EngineFailed: the executor failed, or gave something else than the manifest declares.
        """
        feed = {port.name: _padded(arrays[role], port) for role, port in function.inputs.items()}
        found = self._model.call(function.name, feed)
        out = {}
        for role, port in function.outputs.items():
            array = output_of(found, port.name, port.shape, f"{self.entry.path}: function {function.name}")
            out[role] = array.astype(np.int64 if role in TOKENS else np.float32, copy=False)
        return out

    def __enter__(self) -> PackageFunctions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.close()


def _padded(array: np.ndarray, port: Port) -> np.ndarray:
    out = np.zeros(port.shape, port.dtype)
    out[tuple(slice(0, size) for size in array.shape)] = array
    return out
