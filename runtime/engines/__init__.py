"""Engines: one module each, named as on the command line; `create` picks the one a bundle's format asks
for.
"""

from __future__ import annotations

from edgekit.flashload.names import unknown
from edgekit.runtime import coreai_version
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engine_registry import ENGINES, running
from edgekit.runtime.engines.base import Engine, Executor
from edgekit.runtime.engines.packages import PackageEngine
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle


def check_available(name: str) -> None:
    """Refuse an engine of `ENGINES` whose library is not installed, or not made for this system. Reads no
    bundle.

    Raises:
        EngineUnavailable or NativeError: what is missing. BrokenPlugin: its distribution cannot give it.
    """
    row = ENGINES.find(name)
    if row is None:
        raise EngineUnavailable(unknown("engine", name, ENGINES))
    row.check_available()


def create(bundle: Bundle, threads: int) -> Engine:
    """The engine for a bundle whose weights lie in the flash file.

    Raises:
        UnsupportedBundle: a format without an engine here. EngineUnavailable: its packages are missing.
    """
    name = bundle.manifest.programs.get("format")
    row = running(name)
    if row is None or row.gives != "engine":
        raise UnsupportedBundle(f"{bundle.path}: {unknown('format', name, ENGINES)}")
    engine: Engine = row.load()(bundle.folder, bundle.manifest, threads)
    return engine


def create_for_packages(bundle: Bundle, executor: Executor | None = None) -> PackageEngine:
    """The engine for a bundle whose weights lie in packages, over the executor of its format, or over
    `executor`: a check may bring its own.

    Raises:
        EngineUnavailable: the format's runtime is missing, or there is none for this system.
        UnsupportedBundle: the packages were written by a version that the format's runtime does not read.
    """
    if executor is None:
        name = bundle.manifest.programs.get("format")
        row = running(name)
        if row is None or row.gives != "executor":
            raise UnsupportedBundle(f"{bundle.path}: {unknown('format', name, ENGINES)}")
        executor = row.load()()
        if row.name == "coreai":
            written_by = "" if bundle.packages is None else bundle.packages.written_by
            if complaint := coreai_version.bundle_complaint(written_by):
                raise UnsupportedBundle(f"{bundle.path}: {complaint}")
    return PackageEngine(bundle, executor)
