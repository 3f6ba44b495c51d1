"""Choosing the bundle of a set that this system runs; see `edgekit.flashload.bundle_set`."""

from __future__ import annotations

import platform
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.names import unknown
from edgekit.runtime.engine_registry import ENGINES
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
        raise UnsupportedBundle(
            f"{path}: was exported for the {written} engine, not {engine}; "
            f"export it with --format {format_of(engine)}"
        )


def format_of(engine: str) -> str:
    """The format of the bundles that an engine runs. Raises BrokenPlugin."""
    row = ENGINES.find(engine)
    return engine if row is None else row.format


def choose(path: str | Path, engine: str | None = None) -> Path:
    """The folder of the bundle to run: `path` itself, or of a set the one for `engine`, or by default the
    first that this system runs.

    Raises:
        UnsupportedBundle: the set has none. InvalidOption: there is no such engine. BundleError: its
            bundles.json cannot be read, or the bundle is not the one that it lists.
    """
    check_engine(engine)
    path = Path(path)
    if not bundle_set.is_set(path):
        return path
    bundles = bundle_set.load(path)
    chosen = fitting(bundles, engine, path)
    bundle_set.check_member(path, bundles, chosen)
    return path / chosen.path


def fitting(bundles: BundleSet, engine: str | None, path: Path) -> Member:
    """The bundle of the set in folder `path` for `engine`, or by default the first that this system runs.

    Raises UnsupportedBundle where there is none.
    """
    members = bundles.members
    wanted = None if engine is None else format_of(engine)
    found = [m for m in members if m.format == wanted or (wanted is None and _runs_here(m))]
    if found:
        return found[0]
    if engine is not None:
        known = " and ".join(m.format for m in members)
        raise UnsupportedBundle(
            f"{path}: holds bundles for {known}, not for {engine}; export it with --format {wanted}"
        )
    oldest, system = members[-1].minimum_os["macos"], platform.mac_ver()[0]
    raise UnsupportedBundle(f"{path}: its bundles are for macOS {oldest} and later, this is macOS {system}")


def _runs_here(member: Member) -> bool:
    """Whether the system is new enough. Elsewhere than on macOS the newest is as good as any: of the runtimes
    for packages, that of the newest is the one that other systems may have.
    """
    system = platform.mac_ver()[0]
    return not system or bundle_set.version(member.minimum_os["macos"]) <= bundle_set.version(system)
