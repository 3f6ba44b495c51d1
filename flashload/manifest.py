"""edgekit.json: what a bundle contains, how to run it, and checksums of every file.

    {
      "schema_version": 1,
      "model":        family, dimensions, tokenizer facts
      "programs":     program name -> file and inputs
      "layers":       per layer: program, runs, tensor names
      "sampler":      defaults of the denoising loop
      "quantization": preset and per-tensor scheme
      "weights":      {"file", "size", "sha256"} of the flash file
      "files":        relative path -> {"size", "sha256"} of every other file
      "provenance":   where the weights came from and what exported them
    }

The parts without a shape here are opaque to flashload: whoever writes them defines and checks them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from edgekit.flashload.errors import (
    ChecksumMismatch,
    LayoutError,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
    UnsupportedVersion,
)
from edgekit.flashload.files import read_table, sha256_file, write_atomic
from edgekit.flashload.strictjson import loads_strict

MANIFEST_NAME = "edgekit.json"
#: The report on every matrix: bits, sizes, errors of quantization.
REPORT_NAME = "quantization.json"
SCHEMA_VERSION = 1
_MAX_MANIFEST_BYTES = 64 << 20


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and lower-case hex SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class WeightsEntry:
    """The flash file, relative to the bundle."""

    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Content of edgekit.json. Paths are relative, with forward slashes, and stay inside the bundle."""

    model: dict[str, Any]
    programs: dict[str, Any]
    layers: list[Any]
    sampler: dict[str, Any]
    quantization: dict[str, Any]
    weights: WeightsEntry
    files: dict[str, FileEntry] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


_SECTIONS: dict[str, type] = {
    "schema_version": int,
    "model": dict,
    "programs": dict,
    "layers": list,
    "sampler": dict,
    "quantization": dict,
    "weights": dict,
    "files": dict,
    "provenance": dict,
}


def manifest_path(path: str | Path) -> Path:
    """The manifest of a bundle directory, or `path` itself when it is a file name."""
    path = Path(path)
    return path / MANIFEST_NAME if path.is_dir() else path


def dumps(manifest: Manifest) -> bytes:
    """The manifest as UTF-8 JSON. The same manifest gives the same bytes. Raises LayoutError."""
    table = asdict(manifest)
    try:
        text = json.dumps(
            {key: table[key] for key in _SECTIONS}, indent=2, ensure_ascii=False, allow_nan=False
        )
        data = text.encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:
        raise LayoutError(f"the manifest holds a value that JSON has no form for: {error}") from error
    try:
        parsed = loads(data, "manifest")
    except (MalformedFile, UnsupportedVersion) as error:
        raise LayoutError(f"the manifest would not be readable: {error}") from error
    if asdict(parsed) != table:
        raise LayoutError(
            "the manifest does not survive JSON: use strings as keys and lists instead of tuples"
        )
    return data


def loads(data: bytes, where: str) -> Manifest:
    """Parse and validate a manifest. `where` names it in messages.

    Raises UnsupportedVersion or MalformedFile.
    """
    table = loads_strict(data, where)
    if not isinstance(table, dict) or "schema_version" not in table:
        raise MalformedFile(f"{where}: is not an edgekit manifest: it has no schema_version")
    version = table["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UnsupportedVersion(
            f"{where}: schema version {str(version)[:40]}, this edgekit reads {SCHEMA_VERSION}; "
            "update edgekit or export the bundle again"
        )
    for key, kind in _SECTIONS.items():
        if key not in table:
            raise MalformedFile(f"{where}: {key} is missing; export the bundle again")
        if not isinstance(table[key], kind):
            raise MalformedFile(f"{where}: {key} must be a {kind.__name__}, not {type(table[key]).__name__}")
    unknown = sorted(set(table) - set(_SECTIONS))
    if unknown:
        raise MalformedFile(f"{where}: unknown section {unknown[0]!r}; known: {', '.join(_SECTIONS)}")
    weights = table["weights"]
    if set(weights) != {"file", "size", "sha256"}:
        raise MalformedFile(f"{where}: weights must have exactly file, size and sha256")
    entry = parse_entry(weights["file"], {"size": weights["size"], "sha256": weights["sha256"]}, where)
    files = {name: parse_entry(name, value, where) for name, value in table["files"].items()}
    if weights["file"] in files or MANIFEST_NAME in files:
        raise MalformedFile(f"{where}: files must list neither the weights nor the manifest itself")
    return Manifest(
        model=table["model"],
        programs=table["programs"],
        layers=table["layers"],
        sampler=table["sampler"],
        quantization=table["quantization"],
        weights=WeightsEntry(weights["file"], entry.size, entry.sha256),
        files=files,
        provenance=table["provenance"],
        schema_version=version,
    )


def parse_entry(name: Any, value: Any, where: str) -> FileEntry:
    """The entry of file `name`, for whatever lists files as a manifest does. Raises MalformedFile."""
    if not is_inside(name):
        raise MalformedFile(f"{where}: {str(name)[:80]!r} is not a plain relative path inside the bundle")
    if not isinstance(value, dict) or set(value) != {"size", "sha256"}:
        raise MalformedFile(f"{where}: {name} must have exactly size and sha256")
    size, digest = value["size"], value["sha256"]
    if type(size) is not int or not 0 <= size < 2**63:
        raise MalformedFile(f"{where}: {name}: bad size {str(size)[:40]}")
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise MalformedFile(f"{where}: {name}: sha256 must be 64 lower-case hex digits")
    return FileEntry(size, digest)


def is_inside(name: Any) -> bool:
    """A bundle comes from elsewhere: its manifest must not reach outside its directory on any system."""
    if not isinstance(name, str) or not name or any(letter in name for letter in "\\:\0"):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def load(path: str | Path) -> Manifest:
    """Read the manifest of a bundle directory (or the file itself).

    Raises OpenFailed, UnsupportedVersion or MalformedFile.
    """
    file = manifest_path(path)
    advice = "give the path of an exported bundle"
    return loads(read_table(file, _MAX_MANIFEST_BYTES, "manifest", advice), str(file))


def save(manifest: Manifest, path: str | Path) -> Path:
    """Write the manifest into a bundle directory (or to the file), replacing an old one in one step.

    Raises LayoutError or WriteFailed. Returns the path of the file.
    """
    file = manifest_path(path)
    write_atomic(file, dumps(manifest))
    return file


def file_entry(path: str | Path) -> FileEntry:
    """Size and SHA-256 of a file, for `Manifest.files`. Raises OpenFailed or ReadFailed."""
    path = Path(path)
    digest = sha256_file(path)
    return FileEntry(path.stat().st_size, digest)


def check_files(manifest: Manifest, directory: str | Path, *, digests: bool = False) -> None:
    """Check that every file of the bundle is there at its size; with `digests` also its SHA-256.

    Raises OpenFailed, TruncatedFile (too short), MalformedFile (too long or leaving the bundle by a link) or
    ChecksumMismatch.
    """
    entries = dict(manifest.files)
    entries[manifest.weights.file] = FileEntry(manifest.weights.size, manifest.weights.sha256)
    for name, entry in entries.items():
        check_file(Path(directory, name), entry, digest=digests)


def check_file(path: Path, entry: FileEntry, *, digest: bool = False) -> None:
    """Check that a file is there at its size; with `digest` also its SHA-256. Raises as `check_files`."""
    if not path.is_file():
        raise OpenFailed(f"{path}: is missing from the bundle; copy or export it again")
    size = os.stat(path).st_size
    if size < entry.size:
        raise TruncatedFile(f"{path}: has {size} of {entry.size} bytes; copy it again")
    if size > entry.size:
        raise MalformedFile(f"{path}: has {size} bytes, the manifest says {entry.size}; copy it again")
    if digest and sha256_file(path) != entry.sha256:
        raise ChecksumMismatch(f"{path}: its SHA-256 differs from the manifest's; copy or export it again")
