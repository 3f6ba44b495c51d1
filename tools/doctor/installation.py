"""edgekit itself: its versions, its library, and whether the packages beside it go with it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from edgekit.flashload import _native
from edgekit.flashload.errors import EdgekitError
from edgekit.tools.doctor.finding import Finding
from edgekit.tools.versions import installed_version

#: Packages of which one may be installed, for they have the same modules.
_ONE_OF = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-webgpu", "onnxruntime-directml")


def examine() -> Iterator[Finding]:
    yield _versions()
    wrong = list(_wrong_versions())
    yield from wrong
    if not wrong:
        yield Finding("packages", "works", "versions of all that is installed go with this edgekit")
    several = [name for name in _ONE_OF if _version(name) is not None]
    if len(several) > 1:
        yield Finding(
            "packages",
            "broken",
            f"{' and '.join(several)} are installed, whose files overwrite each other",
            f"pip uninstall {' '.join(several)}, then pip install the one that you want",
        )


def _versions() -> Finding:
    facts = {
        "edgekit": installed_version(),
        "python": platform.python_version(),
        "bits": 64 if sys.maxsize > 2**32 else 32,
    }
    try:
        core = _native.load()
    except EdgekitError as error:
        return Finding("edgekit", "broken", str(error), "pip install --force-reinstall edgekit", facts)
    facts["library"] = core.version
    said = f"edgekit {facts['edgekit']}, library {core.version}, Python {facts['python']}"
    if core.version != facts["edgekit"]:
        said += ": the library is of another version"
        return Finding("edgekit", "note", said, "pip install --force-reinstall edgekit", facts)
    return Finding("edgekit", "works", said, facts=facts)


def _wrong_versions() -> Iterator[Finding]:
    """Installed packages that one of edgekit's requirements excludes."""
    seen: set[tuple[str, str]] = set()
    try:
        requirements = importlib.metadata.requires("edgekit") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        extra = _extra(wanted)
        if extra == "dev" or not _is_for_here(wanted, extra):
            continue
        found = _version(wanted.name)
        if found is None or (wanted.name, found) in seen or _takes(wanted, found):
            continue
        seen.add((wanted.name, found))
        named = f"edgekit[{extra}]" if extra else "edgekit"
        yield Finding(
            "packages",
            "note" if extra else "broken",  # what is there for something else does no harm
            f"{wanted.name} {found} is installed; {named} takes {wanted.specifier}",
            f"pip install '{wanted.name}{wanted.specifier}'",
            {"package": wanted.name, "installed": found, "wanted": str(wanted.specifier)},
        )


def _takes(wanted: Requirement, version: str) -> bool:
    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # of somebody's own build
        return False


def _extra(wanted: Requirement) -> str:
    """The extra that a requirement belongs to; empty for what edgekit always needs."""
    if wanted.marker is None:
        return ""
    _, separator, rest = str(wanted.marker).partition('extra == "')
    return rest.partition('"')[0] if separator else ""


def _is_for_here(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
