"""Choosing the bundle of a set that this system runs; see `edgekit.flashload.bundle_set`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload.errors import BundleError
from edgekit.flashload.names import unknown
from edgekit.runtime.engine_registry import ENGINES, exporting
from edgekit.runtime.errors import UnsupportedBundle


def check_engine(engine: str | None) -> None:
    """Raises InvalidOption for a name that no engine has; None stands for any."""
    if engine is not None and not (isinstance(engine, str) and engine in ENGINES):
        from edgekit.runtime.sampling.errors import InvalidOption  # here: numpy comes with it

        raise InvalidOption(unknown("engine", engine, ENGINES))


def check_written_for(written: str, engine: str | None, path: str | Path) -> None:
    """Raises UnsupportedBundle where the bundle at `path` was exported for another engine than `engine`; one
    that names no format is refused by who reads its sections.
    """
    if engine is not None and written and format_of(engine) != written:
        beside = _beside(path, format_of(engine))
        way = f"export it with {exporting(format_of(engine))}" if beside is None else f"take {beside}"
        raise UnsupportedBundle(f"{path}: was exported for the {written} engine, not {engine}; {way}")


def _beside(path: str | Path, program_format: str) -> Path | None:
    """The bundle of a format in the set that the one at `path` lies in, if there is one."""
    own = Path(os.path.abspath(path))
    named = Path(path).parent if own.name == Path(path).name else own.parent  # not of "."
    try:
        members = bundle_set.load(own.parent).members if bundle_set.is_set(own.parent) else ()
    except BundleError:  # nothing is known of the others
        return None
    return next((named / member.path for member in members if member.format == program_format), None)


def format_of(engine: str) -> str:
    """The format of the bundles that an engine runs. Raises BrokenPlugin."""
    row = ENGINES.find(engine)
    return engine if row is None else row.format


def choose(path: str | Path, engine: str | None = None, *, listed: bool = False) -> Path:
    """The folder of the bundle to run: `path` itself, or of a set the one for `engine`, or by default the
    first that this system runs. With `listed` bundles.json alone need be there.

    Raises:
        UnsupportedBundle: the set has none. InvalidOption: there is no such engine. BundleError: its
            bundles.json cannot be read, or the bundle is not the one that it lists.
    """
    check_engine(engine)
    path = Path(path)
    if not bundle_set.is_set(path):
        return path
    if engine is not None:  # on any system: who insists may know better
        form = format_of(engine)
        try:
            return bundle_set.choose(path, [form], listed=listed)
        except UnsupportedBundle as error:
            # The core does not know which targets have a format.
            raise UnsupportedBundle(f"{error} with {exporting(form)}") from None
    return bundle_set.choose(path, formats_here(), system_here(), listed=listed)


def system_here() -> tuple[str, str] | None:
    """The name and version of this system by which a bundle is chosen. None elsewhere than on macOS, where
    the newest is as good as any: of the runtimes for packages, that of the newest is the one that other
    systems may have.
    """
    version = platform.mac_ver()[0]
    return ("macos", version) if version else None


def formats_here(system: tuple[str, str] | None = None) -> list[str]:
    """Formats of bundles that an engine runs here without being asked for by name. For a `system`, a
    name and a version, that is another than this one, those that other systems than this run are among them.
    """
    own = platform.system() if system in (None, system_here()) else None
    machine = platform.machine()
    rows = [row for row in ENGINES.working() if not row.by_name and row.is_for(machine, own)]
    return list(dict.fromkeys(row.format for row in rows))
