"""Engines: one module each, named as on the command line; `create` picks the one a bundle's format asks
for.
"""

from __future__ import annotations

import importlib.util

from edgekit.flashload import _native
from edgekit.flashload.names import unknown
from edgekit.runtime import coreai_version
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle_choice import ENGINES
from edgekit.runtime.engines.base import Engine, Executor
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


def create(bundle: Bundle, threads: int) -> Engine:
    """The engine for a bundle whose weights lie in the flash file.

    Raises:
        UnsupportedBundle: a format without an engine here. EngineUnavailable: its packages are missing.
    """
    name = bundle.manifest.programs.get("format")
    if name == "onnx":
        from edgekit.runtime.engines.onnx import OnnxEngine

        return OnnxEngine(bundle.folder, bundle.manifest, threads)
    if name == "mlx":
        from edgekit.runtime.engines.mlx import MlxEngine

        return MlxEngine(bundle.folder, bundle.manifest, threads)
    raise UnsupportedBundle(f"{bundle.path}: {unknown('format', name, ENGINES)}")


def create_for_packages(bundle: Bundle, executor: Executor | None = None) -> PackageEngine:
    """The engine for a bundle whose weights lie in packages, over the executor of its format, or over
    `executor`: a check may bring its own.

    Raises:
        EngineUnavailable: the format's runtime is missing, or there is none for this system.
        UnsupportedBundle: the packages were written by a version that the format's runtime does not read.
    """
    if executor is None:
        if bundle.manifest.programs.get("format") == "coreml":
            from edgekit.runtime.engines.coreml import CoremlExecutor

            executor = CoremlExecutor()
        else:
            from edgekit.runtime.engines.coreai import CoreaiExecutor

            executor = CoreaiExecutor()
            written_by = "" if bundle.packages is None else bundle.packages.written_by
            if complaint := coreai_version.bundle_complaint(written_by):
                raise UnsupportedBundle(f"{bundle.path}: {complaint}")
    return PackageEngine(bundle, executor)
