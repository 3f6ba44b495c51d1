"""bundles.json: several bundles of one model in one folder, one for each format.

    {
      "schema_version": 4,
      "bundles": [{"path", "format", "minimum_os": {"ios", "macos"}, "chips": [...]}, ...], the first that
                 runs is to be taken
      "files":   relative path -> {"size", "sha256", "xxh3"} of files beside them, and of their manifests
    }

Each `path` is a folder with a whole bundle, see `manifest`. A system that `minimum_os` does not name runs the
bundle in any version, and bundles for newer versions stand before others. `chips` are those that a bundle's
programs were compiled for, none where nothing is compiled for a chip: another chip compiles programs whenever
it opens them, and is better off with a later bundle that runs. While bundles are being written the file has
another name, so that a set that is not whole does not look like one. A folder with a manifest of its own is
one bundle, whatever else lies there.

The core reads the file, checks it and chooses, see "Several bundles of a model" in `edgekit.h`. Here is what
goes through all bundles of a set, and what writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint64, create_string_buffer
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgekit.flashload import _native
from edgekit.flashload.bundle_folder import read_folder_file
from edgekit.flashload.errors import OpenFailed
from edgekit.flashload.files import write_atomic
from edgekit.flashload.manifest import FileEntry
from edgekit.flashload.structs import ChooseOptionsStruct, texts

SET_NAME = "bundles.json"
PARTIAL_NAME = SET_NAME + ".partial"
SCHEMA_VERSION = 4
_MAX_BYTES = 1 << 20
_SET = 2  # EK_FOLDER_BUNDLES

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_folder_look": (c_char_p, POINTER(c_int32)),
    "ek_bundle_choose": (c_char_p, POINTER(ChooseOptionsStruct), c_char_p, c_uint64, POINTER(c_uint64)),
    "ek_bundle_list_check": (c_char_p, c_uint64, c_char_p),
}


@dataclass(frozen=True)
class Member:
    """A bundle of the set: its folder, the first version of systems that runs it, e.g. "26.4", and the chips
    that it was compiled for.
    """

    path: str
    format: str
    minimum_os: Mapping[str, str]
    chips: tuple[str, ...] = ()


@dataclass(frozen=True)
class BundleSet:
    """Content of bundles.json."""

    members: tuple[Member, ...]
    files: Mapping[str, FileEntry] = field(default_factory=dict)


def is_set(folder: str | Path) -> bool:
    """Whether the folder holds a whole set."""
    kind = c_int32()
    try:
        path = _native.path_bytes(folder)
    except OpenFailed:  # a name that no folder has
        return False
    _native.check(_native.functions(_SIGNATURES).ek_folder_look(path, byref(kind)))
    return kind.value == _SET


def choose(
    folder: str | Path, formats: Sequence[str], system: tuple[str, str] | None = None, *, listed: bool = False
) -> Path:
    """The folder of the first bundle of a set whose format is one of `formats` and that `system`, a name and
    a version, runs; its manifest is the one that was written with the set. With `listed` bundles.json alone
    need be there. A folder of one bundle is returned as it is.

    Raises UnsupportedBundle where the set has none, OpenFailed for a folder without bundles, or BundleError.
    """
    library = _native.functions(_SIGNATURES)
    options = ChooseOptionsStruct(
        format_count=len(formats),
        formats=texts(formats),
        system=system[0].encode() if system else None,
        system_version=system[1].encode() if system else None,
        listed=listed,
    )
    where, size = _native.path_bytes(folder), c_uint64()
    _native.check(library.ek_bundle_choose(where, byref(options), None, 0, byref(size)))
    room = create_string_buffer(size.value)
    _native.check(library.ek_bundle_choose(where, byref(options), room, size.value, byref(size)))
    return Path(os.fsdecode(room.raw[: size.value]))


def load(folder: str | Path, name: str = SET_NAME) -> BundleSet:
    """The set in a folder. Raises OpenFailed, UnsupportedVersion or MalformedFile."""
    return loads(read_folder_file(folder, name, _MAX_BYTES), str(Path(folder) / name))


def loads(data: bytes, where: str) -> BundleSet:
    """A set as objects, whose text the core has compared with the rules of the file. `where` names it in
    messages. Raises UnsupportedVersion or MalformedFile.
    """
    library = _native.functions(_SIGNATURES)
    _native.check(library.ek_bundle_list_check(data, len(data), where.encode(errors="replace")))
    table = json.loads(data)
    return BundleSet(
        tuple(Member(**{**entry, "chips": tuple(entry["chips"])}) for entry in table["bundles"]),
        {name: FileEntry(**entry) for name, entry in table["files"].items()},
    )


def save(bundles: BundleSet, folder: Path, name: str = SET_NAME) -> None:
    """Write the file in one step. Raises WriteFailed."""
    table = {
        "schema_version": SCHEMA_VERSION,
        "bundles": [asdict(member) for member in bundles.members],
        "files": {n: asdict(entry) for n, entry in bundles.files.items()},
    }
    data = (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()
    loads(data, name)
    write_atomic(folder / name, data)
