"""Engines: one module each, named as on the command line; `create` picks the one a bundle's format asks
for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from edgekit.flashload import _native
from edgekit.flashload.names import unknown
from edgekit.runtime import coreai_version
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle_choice import ENGINES
from edgekit.runtime.engines.base import Engine, Executor, OpenModel
from edgekit.runtime.engines.packages import PackageEngine
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle

#: Those that take as many threads as they are given; the others' systems decide for themselves.
ENGINES_WITH_THREADS = ("native", "onnx")


#: The module without which an engine cannot be, where the engine itself is not cheap to ask.
_LIBRARIES = {"onnx": "onnxruntime", "mlx": "mlx.core"}


def check_available(name: str) -> None:
    """Refuse an engine of `ENGINES` whose library is not installed, or not made for this system. Reads no
    bundle.

    Raises:
        EngineUnavailable or NativeError: what is missing.
    """
    if name == "native":
        _native.load()
    elif name == "coreml":
        from edgekit.runtime.engines.coreml import CoremlExecutor

        CoremlExecutor()
    elif name == "coreai":
        from edgekit.runtime.engines.coreai import CoreaiExecutor

        CoreaiExecutor()
    elif not _installed(_LIBRARIES[name]):
        package = _LIBRARIES[name].partition(".")[0]
        raise EngineUnavailable(f"the {name} engine needs {package}: pip install 'edgekit[{name}]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def create(bundle: Bundle, threads: int, executor: Executor | None = None) -> Engine | None:
    """The engine in Python that runs a bundle; None for one that the core runs itself. `executor` runs
    packages in place of the format's own: a check may bring its own.

    Raises:
        UnsupportedBundle: a format without an engine here, or packages written by a version that the format's
            runtime does not read.
        EngineUnavailable: its packages are missing, or there is none for this system.
    """
    if bundle.packages is not None:
        return PackageEngine(bundle, executor or _executor(bundle))
    name = bundle.manifest.programs.get("format")
    if name == "native":
        return None
    if name == "onnx":
        from edgekit.runtime.engines.onnx import OnnxEngine

        return OnnxEngine(bundle.folder, bundle.manifest, threads)
    if name == "mlx":
        from edgekit.runtime.engines.mlx import MlxEngine

        return MlxEngine(bundle.folder, bundle.manifest, threads)
    raise UnsupportedBundle(f"{bundle.path}: {unknown('format', name, ENGINES)}")


def to_plan(bundle: Bundle, threads: int = 1) -> Engine | None:
    """As `create`, for a plan of memory: packages are planned for on any system. Raises as that does."""
    return create(bundle, threads, _NoExecutor() if bundle.packages is not None else None)


class _NoExecutor:
    name = "none"

    def open(self, path: Path, functions: Sequence[str]) -> OpenModel:
        raise EngineUnavailable(f"{path}: no runtime was asked for")


def _executor(bundle: Bundle) -> Executor:
    """The system's own, for a bundle of packages."""
    if bundle.manifest.programs.get("format") == "coreml":
        from edgekit.runtime.engines.coreml import CoremlExecutor

        return CoremlExecutor()
    from edgekit.runtime.engines.coreai import CoreaiExecutor

    executor = CoreaiExecutor()
    written_by = "" if bundle.packages is None else bundle.packages.written_by
    if complaint := coreai_version.bundle_complaint(written_by):
        raise UnsupportedBundle(f"{bundle.path}: {complaint}")
    return executor
