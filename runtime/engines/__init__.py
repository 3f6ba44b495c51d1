"""Engines: one module each, named as on the command line; `create` picks the one a bundle's format asks
for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import signature

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown, supported, unknown
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engine_registry import ENGINES, exporting, running
from edgekit.runtime.engines.base import Engine, Executor
from edgekit.runtime.engines.coreai import version as coreai_version
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle

#: Makes an engine for an opened bundle, such as its class.
MakeEngine = Callable[[Bundle], Engine]


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


def create(
    bundle: Bundle,
    threads: int,
    executor: Executor | None = None,
    name: str | None = None,
    planning: bool = False,
) -> Engine | Executor | None:
    """What runs a bundle in Python, of that `name` where its format has several engines: an engine, or what
    runs its packages; None where the core runs it by itself. `executor` runs packages in place of the
    format's own: a check may bring its own. For `planning` nothing is run, which needs no device, and
    packages need no executor.

    Raises:
        UnsupportedBundle: a format without an engine here, or packages written by a version that the format's
            runtime does not read.
        EngineUnavailable: its packages are missing, or there is none for this system.
    """
    written = bundle.manifest.format
    row = running(written, name)
    if executor is not None and bundle.packages is not None:
        return executor
    if row is None:
        raise UnsupportedBundle(
            f"{bundle.path}: no engine here runs bundles of format {shown(written)}; "
            f"{supported(written, (row.format for row in ENGINES.working()))}"
        )
    if row.packaged != (bundle.packages is not None):
        raise UnsupportedBundle(f"{bundle.path}: {unknown('format', written, ENGINES)}")
    if not planning:
        row.check_asked(name, bundle.path)
    if row.gives == "core":
        if row.factory and not planning:
            row.load()()
        return None
    if row.gives == "engine":
        engine: Engine = row.load()(bundle.folder, bundle.manifest, threads)
        if not planning:
            engine.prepare()
        return engine
    if planning:
        return None
    found: Executor = row.load()()
    if row.name == "coreai":
        written_by = "" if bundle.packages is None else bundle.packages.written_by
        if complaint := coreai_version.bundle_complaint(written_by):
            raise UnsupportedBundle(f"{bundle.path}: {complaint}")
    return found


def made_by(make: MakeEngine, bundle: Bundle) -> Engine:
    """The engine that a caller's class or function makes for a bundle.

    Raises InvalidRequest for what makes none, UnsupportedBundle where it is not for the bundle's format, and
    what `make` raises.
    """
    name = getattr(make, "__name__", type(make).__name__)
    if isinstance(make, Engine) or not callable(make):
        raise InvalidRequest(
            f"the engine is {shown(make)}; pass its class, or a function that makes one of a bundle"
        )
    with suppress(ValueError):  # some callables of C have no signature
        try:
            signature(make).bind(bundle)
        except TypeError:
            raise InvalidRequest(
                f"{name} cannot be called with a bundle; give it __init__(self, bundle)"
            ) from None
    _check_format(make, name, bundle)
    made = make(bundle)
    if not isinstance(made, Engine):
        raise InvalidRequest(
            f"{name} made {shown(made)}; an engine derives from edgekit.runtime.engines.base.Engine"
        )
    own = getattr(made, "name", None)
    if not isinstance(own, str) or not own or not own.isprintable():
        raise InvalidRequest(f"{name} made an engine whose name is {shown(own)}; give it one line of text")
    _check_format(made, name, bundle)
    for each in ("layers", "final", "head_logits"):
        if not callable(getattr(made, each)):
            raise InvalidRequest(f"{name}.{each} is {shown(getattr(made, each))}; make it a method")
    return made


def _check_format(given: object, name: str, bundle: Bundle) -> None:
    """Raises for an engine, or what makes one, that does not run the bundle's format: before it is made,
    where that tells, for it may rely on it.
    """
    wanted, written = getattr(given, "format", None), bundle.manifest.format
    if wanted in (None, written):
        return
    known = [row.format for row in ENGINES.working()]
    if wanted not in known:
        raise InvalidRequest(f"{name}.format: {unknown('format', wanted, known)}; None is for any")
    raise UnsupportedBundle(
        f"{bundle.path}: {name} runs {wanted} bundles, this one is {written}; export it with "
        f"{exporting(wanted)}"
    )


def to_plan(bundle: Bundle, threads: int = 1, name: str | None = None) -> Engine | None:
    """As `create`, for a plan of memory: it is made on any system. Raises as that does."""
    made = create(bundle, threads, None, name, planning=True)
    return made if isinstance(made, Engine) else None
