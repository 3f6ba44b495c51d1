"""Which bundle of a set this system runs; see `edgekit.flashload.bundle_set`."""

from __future__ import annotations

import platform
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import Member
from edgekit.flashload.names import unknown
from edgekit.runtime.errors import UnsupportedBundle

#: What runs bundles, by the format that it is for.
ENGINES = ("native", "onnx", "mlx", "coreml", "coreai")


def choose(path: str | Path, engine: str | None = None) -> Path:
    """The folder of the bundle to run: `path` itself, or of a set the one for `engine`, or by default the
    first that this system runs.

    Raises:
        UnsupportedBundle: the set has none, or there is no such engine. BundleError: its bundles.json cannot
            be read, or the bundle is not the one that it lists.
    """
    if engine is not None and engine not in ENGINES:
        raise UnsupportedBundle(unknown("engine", engine, ENGINES))
    path = Path(path)
    if not bundle_set.is_set(path):
        return path
    bundles = bundle_set.load(path)
    members = bundles.members
    fitting = [m for m in members if m.format == engine or (engine is None and _runs_here(m))]
    if fitting:
        bundle_set.check_member(path, bundles, fitting[0])
        return path / fitting[0].path
    if engine is not None:
        known = " and ".join(m.format for m in members)
        raise UnsupportedBundle(
            f"{path}: holds bundles for {known}, not for {engine}; export it with --format {engine}"
        )
    oldest, system = members[-1].minimum_os["macos"], platform.mac_ver()[0]
    raise UnsupportedBundle(f"{path}: its bundles are for macOS {oldest} and later, this is macOS {system}")


def _runs_here(member: Member) -> bool:
    """Whether the system is new enough. Elsewhere than on macOS the newest is as good as any: of the runtimes
    for packages, that of the newest is the one that other systems may have.
    """
    system = platform.mac_ver()[0]
    return not system or bundle_set.version(member.minimum_os["macos"]) <= bundle_set.version(system)
