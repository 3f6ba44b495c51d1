"""Core ML, by coremltools: on macOS alone. Devices run the same packages from Swift."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.runtime.engines.base import Arrays
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, one_line


class CoremlExecutor:
    """Opens and calls `.mlpackage` folders.

    Raises:
        EngineUnavailable: this is not macOS, or coremltools is missing.
    """

    name = "coreml"

    def __init__(self) -> None:
        if platform.system() != "Darwin":
            raise EngineUnavailable(
                "Core ML runs on macOS and iOS only; run the bundle there, or export one for this computer "
                "with --target host"
            )
        try:
            import coremltools
        except ImportError as error:
            raise EngineUnavailable(
                "the coreml engine needs coremltools: pip install 'edgekit[coreml]'"
            ) from error
        self._models = coremltools.models
        # A package is compiled once for all of its functions; the compiled form is read when they are loaded.
        self._compiled = tempfile.TemporaryDirectory(prefix="edgekit-coreml-")
        self._paths: dict[Path, str] = {}

    def open(self, path: Path, functions: Sequence[str]) -> _Model:
        """Raises EngineFailed."""
        if path not in self._paths:
            target = str(Path(self._compiled.name, f"{len(self._paths)}.mlmodelc"))
            try:
                self._paths[path] = self._models.utils.compile_model(str(path), target)
            except Exception as error:
                raise EngineFailed(f"{path}: Core ML cannot compile it: {one_line(error)}") from error
        model = _Model(self._models.CompiledMLModel, path, self._paths[path])
        for function in functions:
            model.load(function)
        return model


class _Model:
    """A compiled package; each of its functions is loaded at its first call."""

    def __init__(self, compiled_model: Any, path: Path, compiled: str) -> None:
        self._make, self._path, self._compiled = compiled_model, path, compiled
        self._functions: dict[str, Any] = {}

    def load(self, function: str) -> Any:
        """Raises EngineFailed."""
        if function not in self._functions:
            try:
                self._functions[function] = self._make(self._compiled, function_name=function)
            except Exception as error:
                raise EngineFailed(
                    f"{self._path}: Core ML cannot load function {function}: {one_line(error)}"
                ) from error
        return self._functions[function]

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        model = self.load(function)
        try:
            return dict(model.predict(dict(inputs)))
        except Exception as error:
            raise EngineFailed(
                f"{self._path}: Core ML failed in function {function}: {one_line(error)}"
            ) from error

    def close(self) -> None:
        self._functions.clear()
