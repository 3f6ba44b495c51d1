r"""edgekit.json: what a bundle contains, how to run it, and digests of every file.

    {
      "sha256":       of this file, see below
      "schema_version": 2,
      "model":        family, dimensions, tokenizer facts; "adapters": LoRA adapters beside the weights, each
                      {"name", "rank" (the largest), "targets" (names of matrices in a layer), "matrices" (how
                      many stored ones it changes), "bytes"}; "role_head": {"file", "width", "roles"}
      "programs":     program name -> file and inputs
      "layers":       per layer: program, runs, tensor names
      "sampler":      defaults of the denoising loop
      "quantization": preset and per-tensor scheme
      "weights":      {"file", "size", "sha256", "header_size", "header_xxh3"} of the flash file
      "files":        relative path -> {"size", "sha256", "xxh3"} of every other file
      "provenance":   where the weights came from and what exported them; "adapter": one that is merged into
                      them, as in "adapters"
    }

The file is sealed: it begins with these 15 bytes and 64 lower-case hex digits,

    {\n  "sha256": "0123...

which are the SHA-256 of the whole file with 64 zeros in place of the digits:

    { head -c 15 edgekit.json; printf %064d 0; tail -c +80 edgekit.json; } | sha256sum

From there on everything has a digest: `run` compares the XXH3-64 of every file that it reads, of the first
`header_size` bytes of the flash file, and, by the list in that header, of every run. `verify` compares the
SHA-256 too. Digests show damage, mixed files and edits by accident. They are no signature: whoever changes a
bundle on purpose can seal it anew, and what it then says is theirs.

The check is in the native core (`bundle_folder`), for every language. Here manifests are written, sealed, and
made into objects. The parts without a shape here are opaque to flashload: whoever writes them defines and
checks them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import LayoutError, MalformedFile, UnsupportedVersion, quoted
from edgekit.flashload.files import file_digests, write_atomic
from edgekit.flashload.format import MAX_HEADER_BYTES
from edgekit.flashload.portable_names import clashing, portable_fault
from edgekit.flashload.strictjson import loads_strict

MANIFEST_NAME = "edgekit.json"
#: The report on every matrix: bits, sizes, errors of quantization.
REPORT_NAME = "quantization.json"
SCHEMA_VERSION = 2
#: How the file begins; the digits of its SHA-256 follow.
_SEAL_START = b'{\n  "sha256": "'
_NO_SEAL = b"0" * 64
#: The core's limit. That of a model with 30 layers of 128 experts has 0.4 MB.
_MAX_BYTES = 16 << 20
_DIGITS = {16: re.compile("[0-9a-f]{16}"), 64: re.compile("[0-9a-f]{64}")}


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes, SHA-256 and XXH3-64 in lower-case hex."""

    size: int
    sha256: str
    xxh3: str


@dataclass(frozen=True)
class WeightsEntry:
    """The flash file, relative to the bundle; `header_xxh3` is that of its first `header_size` bytes."""

    file: str
    size: int
    sha256: str
    header_size: int
    header_xxh3: str


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

    @property
    def format(self) -> str:
        """The name of the programs' format, such as "onnx"; empty where there is none."""
        named = self.programs.get("format")
        return named if isinstance(named, str) else ""


_SECTIONS: dict[str, type] = {
    "sha256": str,
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


def seal(data: bytes) -> bytes:
    """A manifest's text with the digits of its own SHA-256; it must begin as manifests do."""
    start, rest = data[: len(_SEAL_START)], data[len(_SEAL_START) + len(_NO_SEAL) :]
    if start != _SEAL_START or not rest:
        raise LayoutError('a manifest must begin with its "sha256"')
    return start + hashlib.sha256(start + _NO_SEAL + rest).hexdigest().encode() + rest


def dumps(manifest: Manifest) -> bytes:
    """The manifest as sealed UTF-8 JSON. The same manifest gives the same bytes. Raises LayoutError."""
    table = asdict(manifest)
    try:
        text = json.dumps(
            {"sha256": _NO_SEAL.decode()} | {key: table[key] for key in _SECTIONS if key in table},
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
        )
        data = seal(text.encode("utf-8") + b"\n")
    except (TypeError, ValueError) as error:
        raise LayoutError(f"the manifest holds a value that JSON has no form for: {error}") from error
    if len(data) > _MAX_BYTES:
        raise LayoutError(f"the manifest has {len(data)} bytes, more than the {_MAX_BYTES} that readers take")
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
    """A manifest as an object; the core has compared its digest. `where` names it in messages.

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
        raise MalformedFile(f"{where}: unknown section {quoted(unknown[0])}; known: {', '.join(_SECTIONS)}")
    weights = _weights_entry(table["weights"], where)
    files = {name: parse_entry(name, value, where) for name, value in table["files"].items()}
    if weights.file in files or MANIFEST_NAME in files:
        raise MalformedFile(f"{where}: files must list neither the weights nor the manifest itself")
    if (two := clashing([MANIFEST_NAME, weights.file, *files])) is not None:
        raise MalformedFile(
            f"{where}: {quoted(two[0])} and {quoted(two[1])} cannot both lie where capital letters do not "
            "count; export the bundle again"
        )
    return Manifest(
        model=table["model"],
        programs=table["programs"],
        layers=table["layers"],
        sampler=table["sampler"],
        quantization=table["quantization"],
        weights=weights,
        files=files,
        provenance=table["provenance"],
        schema_version=version,
    )


def _weights_entry(value: dict[str, Any], where: str) -> WeightsEntry:
    if set(value) != {"file", "size", "sha256", "header_size", "header_xxh3"}:
        raise MalformedFile(
            f"{where}: weights must have exactly file, size, sha256, header_size and header_xxh3"
        )
    name = value["file"]
    _check_name(name, where)
    entry = WeightsEntry(
        name,
        _size(value["size"], name, where),
        _digest(value["sha256"], 64, name, where),
        _size(value["header_size"], name, where),
        _digest(value["header_xxh3"], 16, name, where),
    )
    if not 8 <= entry.header_size <= min(entry.size, MAX_HEADER_BYTES):
        raise MalformedFile(f"{where}: {quoted(name)}: bad header_size")
    return entry


def parse_entry(name: Any, value: Any, where: str) -> FileEntry:
    """The entry of file `name`, for whatever lists files as a manifest does. Raises MalformedFile."""
    _check_name(name, where)
    if not isinstance(value, dict) or set(value) != {"size", "sha256", "xxh3"}:
        raise MalformedFile(f"{where}: {quoted(name)} must have exactly size, sha256 and xxh3")
    return FileEntry(
        _size(value["size"], name, where),
        _digest(value["sha256"], 64, name, where),
        _digest(value["xxh3"], 16, name, where),
    )


def _size(value: Any, name: str, where: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise MalformedFile(f"{where}: {quoted(name)}: bad size {str(value)[:40]}")
    return value


def _digest(value: Any, digits: int, name: str, where: str) -> str:
    if not isinstance(value, str) or not _DIGITS[digits].fullmatch(value):
        raise MalformedFile(f"{where}: {quoted(name)}: a digest must be {digits} lower-case hex digits")
    return value


def _check_name(name: Any, where: str) -> None:
    if not is_inside(name):
        raise MalformedFile(f"{where}: {quoted(name)} is not a plain relative path inside the bundle")
    if fault := portable_fault(name):
        raise MalformedFile(
            f"{where}: {quoted(name)} is a name that not every system takes: {fault}; export the bundle again"
        )


def is_inside(name: Any) -> bool:
    """A bundle comes from elsewhere: its manifest must not reach outside its directory on any system."""
    if not isinstance(name, str) or not name or any(letter in name for letter in "\\:\0"):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def load(folder: str | Path | BundleFolder) -> Manifest:
    """The manifest of a bundle, checked against its own digest.

    Raises OpenFailed, ReadFailed, ChecksumMismatch, UnsupportedVersion, MalformedFile, or UnsupportedBundle
    for a folder of several bundles.
    """
    opened = folder if isinstance(folder, BundleFolder) else BundleFolder(folder)
    return loads(opened.manifest(), str(opened.path / MANIFEST_NAME))


def save(manifest: Manifest, path: str | Path) -> Path:
    """Write the manifest into a bundle directory (or to the file), replacing an old one in one step.

    Raises LayoutError or WriteFailed. Returns the path of the file.
    """
    file = manifest_path(path)
    write_atomic(file, dumps(manifest))
    return file


def file_entry(path: str | Path) -> FileEntry:
    """Size and digests of a file, for `Manifest.files`. Raises OpenFailed or ReadFailed."""
    return FileEntry(*file_digests(Path(path)))
