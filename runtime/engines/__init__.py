"""Engines: one module each, named as on the command line; `create` picks the one a bundle's format asks
for.
"""

from __future__ import annotations

from pathlib import Path

from edgekit.flashload.manifest import Manifest
from edgekit.runtime.engines.base import Engine
from edgekit.runtime.errors import UnsupportedBundle

ENGINES = ("onnx", "mlx")


def create(folder: Path, manifest: Manifest, threads: int) -> Engine:
    """The engine for the bundle's format.

    Raises:
        UnsupportedBundle: a format without an engine here. EngineUnavailable: its packages are missing.
    """
    name = manifest.programs.get("format")
    if name == "onnx":
        from edgekit.runtime.engines.onnx import OnnxEngine

        return OnnxEngine(folder, manifest, threads)
    if name == "mlx":
        from edgekit.runtime.engines.mlx import MlxEngine

        return MlxEngine(folder, manifest, threads)
    raise UnsupportedBundle(f"{folder}: no engine here runs format {name!r}; known: {', '.join(ENGINES)}")
