"""bundles.json: several bundles of one model in one folder, one for each format.

    {
      "schema_version": 2,
      "bundles": [{"path", "format", "minimum_os": {"ios", "macos"}}, ...], those for the newest systems first
      "files":   relative path -> {"size", "sha256", "xxh3"} of files beside them, and of their manifests
    }

Each `path` is a folder with a whole bundle, see `manifest`. While bundles are being written the file has
another name, so that a set that is not whole does not look like one. A folder with a manifest of its own is
one bundle, whatever else lies there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgekit.flashload.bundle_folder import check_folder_file, read_folder_file
from edgekit.flashload.errors import MalformedFile, UnsupportedVersion, quoted
from edgekit.flashload.files import write_atomic
from edgekit.flashload.manifest import MANIFEST_NAME, FileEntry, is_inside, parse_entry
from edgekit.flashload.strictjson import loads_strict

SET_NAME = "bundles.json"
PARTIAL_NAME = SET_NAME + ".partial"
SCHEMA_VERSION = 2
SYSTEMS = ("ios", "macos")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A bundle of the set: its folder, and the first version of each system that runs it, e.g. "26.4"."""

    path: str
    format: str
    minimum_os: Mapping[str, str]


@dataclass(frozen=True)
class BundleSet:
    """Content of bundles.json."""

    members: tuple[Member, ...]
    files: Mapping[str, FileEntry] = field(default_factory=dict)


def is_set(folder: str | Path) -> bool:
    """Whether the folder holds a whole set."""
    folder = Path(folder)
    # These two answer for any name, one that no system takes too.
    return os.path.isfile(folder / SET_NAME) and not os.path.exists(folder / MANIFEST_NAME)


def version(text: str) -> tuple[int, ...]:
    """A version of a system, to be compared. Raises ValueError for other than numbers with dots."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{quoted(text, 40)} is no version")
    return tuple(map(int, parts))


def load(folder: str | Path, name: str = SET_NAME) -> BundleSet:
    """The set in a folder. Raises OpenFailed, UnsupportedVersion or MalformedFile."""
    return loads(read_folder_file(folder, name, _MAX_BYTES), str(Path(folder) / name))


def loads(data: bytes, where: str) -> BundleSet:
    """Parse and check; `where` names the file in messages. Raises UnsupportedVersion or MalformedFile."""
    table = loads_strict(data, where)
    if not isinstance(table, dict) or "schema_version" not in table:
        raise MalformedFile(f"{where}: is not edgekit's: it has no schema_version")
    found = table["schema_version"]
    if type(found) is not int or found != SCHEMA_VERSION:
        raise UnsupportedVersion(
            f"{where}: schema version {str(found)[:40]}, this edgekit reads {SCHEMA_VERSION}; "
            "update edgekit or export the bundles again"
        )
    try:
        _exactly(table, {"schema_version": int, "bundles": list, "files": dict}, "the file")
        members = tuple(_member(entry) for entry in table["bundles"])
        if not members:
            raise ValueError("lists no bundles")
        for key in ("path", "format"):
            if len({getattr(member, key) for member in members}) < len(members):
                raise ValueError(f"two bundles have the same {key}")
        ages = [version(member.minimum_os["ios"]) for member in members]
        if ages != sorted(ages, reverse=True):
            raise ValueError("bundles for newer systems must come before others")
    except ValueError as error:
        raise MalformedFile(f"{where}: {error}; copy or export the folder again") from None
    return BundleSet(members, {n: parse_entry(n, value, where) for n, value in table["files"].items()})


def check_member(folder: str | Path, bundles: BundleSet, member: Member) -> None:
    """Check that a bundle of the set is the one that was written with it, and that it lies in the folder.

    Raises BundleError.
    """
    name = f"{member.path}/{MANIFEST_NAME}"
    if name not in bundles.files:
        where = Path(folder) / SET_NAME
        raise MalformedFile(f"{where}: does not list {quoted(name)}; export the folder again")
    entry = bundles.files[name]
    check_folder_file(folder, name, entry.size, entry.xxh3)


def save(bundles: BundleSet, folder: Path, name: str = SET_NAME) -> None:
    """Write the file in one step. Raises WriteFailed."""
    table = {
        "schema_version": SCHEMA_VERSION,
        "bundles": [
            {"path": m.path, "format": m.format, "minimum_os": dict(m.minimum_os)} for m in bundles.members
        ],
        "files": {n: asdict(entry) for n, entry in bundles.files.items()},
    }
    data = (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()
    loads(data, name)
    write_atomic(folder / name, data)


def _member(entry: Any) -> Member:
    if not isinstance(entry, dict):
        raise ValueError(f"{quoted(entry, 40)} is no bundle")
    _exactly(entry, {"path": str, "format": str, "minimum_os": dict}, "a bundle")
    path, systems = entry["path"], entry["minimum_os"]
    if not is_inside(path):
        raise ValueError(f"{quoted(path)} is not a plain relative path below the folder")
    _exactly(systems, dict.fromkeys(SYSTEMS, str), f"minimum_os of {quoted(path)}")
    for text in systems.values():
        version(text)
    return Member(path, entry["format"], systems)


def _exactly(table: Mapping[str, Any], kinds: Mapping[str, type], what: str) -> None:
    """Check that these keys are there and no others. Raises ValueError."""
    if table.keys() != kinds.keys():
        raise ValueError(
            f"{what} must have exactly {', '.join(kinds)}, not {', '.join(map(str, table))[:80]}"
        )
    for key, kind in kinds.items():
        if not isinstance(table[key], kind):
            raise ValueError(f"{key} of {what} is {quoted(table[key], 40)}")
