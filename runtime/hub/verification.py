"""Every file of a bundle, or of a set of them, against its SHA-256; done once for a commit of the hub."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import ChecksumMismatch, OpenFailed, WriteFailed
from edgekit.flashload.files import file_digests, write_atomic
from edgekit.flashload.manifest import MANIFEST_NAME, FileEntry, Manifest, WeightsEntry
from edgekit.runtime.hub import Stages

Entry = FileEntry | WeightsEntry


def listed(manifest: Manifest) -> dict[str, Entry]:
    """Every file of a bundle but the manifest itself."""
    return {manifest.weights.file: manifest.weights, **manifest.files}


def listed_below(folder: Path) -> dict[str, Entry | None]:
    """Every file of the bundle or set in a folder, its manifests with None where nothing lists them.

    Raises BundleError.
    """
    if not bundle_set.is_set(folder):
        return {MANIFEST_NAME: None, **listed(manifests.load(folder))}
    several = bundle_set.load(folder)
    found: dict[str, Entry | None] = {bundle_set.SET_NAME: None}
    for member in several.members:
        found[f"{member.path}/{MANIFEST_NAME}"] = None
        own = listed(manifests.load(folder / member.path))
        found |= {f"{member.path}/{name}": entry for name, entry in own.items()}
    return {**found, **several.files}


def check(
    folder: Path,
    files: Mapping[str, Entry | None],
    progress: Stages,
    known: Collection[str] = (),
    advice: str = "copy or export it again",
) -> None:
    """Compare files of a folder with their entries; those in `known` have been. Raises BundleError, with
    `advice` on what to do.
    """
    progress.stage("SHA-256", sum(entry.size for entry in files.values() if entry is not None))
    for name, entry in files.items():
        if entry is None:
            continue
        path = folder / name
        if not path.is_file():
            raise OpenFailed(f"{path}: is missing from the bundle; {advice}")
        if name not in known and file_digests(path)[:2] != (entry.size, entry.sha256):
            raise ChecksumMismatch(f"{path}: its SHA-256 differs from the manifest's; {advice}")
        progress.advance(entry.size, name)


# --- what has been checked ----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder of edgekit's own in the user's cache; it need not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "edgekit"


def is_verified(commit: str, manifest: Path) -> bool:
    """Whether the files of this manifest, at this commit, have been compared."""
    return _marker(commit, manifest).is_file()


def remember(commit: str, manifest: Path) -> None:
    """Let `is_verified` be true. Where the cache cannot be written, they are compared again next time."""
    marker = _marker(commit, manifest)
    with suppress(OSError, WriteFailed):
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(marker, b"")


def _marker(commit: str, manifest: Path) -> Path:
    return cache_folder() / "verified" / f"{commit}-{hashlib.sha256(manifest.read_bytes()).hexdigest()}"
