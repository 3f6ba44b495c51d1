"""Making the digests of an edited bundle anew, as somebody may who is not its author."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import LayoutError
from edgekit.flashload.files import file_digests
from edgekit.flashload.format import KEY_RUNS


def sealed(table: dict[str, Any]) -> bytes:
    """The text of a manifest that says this, sealed, whatever it says."""
    rest = {key: value for key, value in table.items() if key != "sha256"}
    # Escapes: half of a surrogate pair has no other form.
    return manifests.seal(json.dumps({"sha256": "0" * 64} | rest, indent=2).encode())


def reseal(bundle: Path, edited: Iterable[str] = ()) -> None:
    """Make the digests of the `edited` files anew, and the manifest's own. A manifest that is not JSON, or no
    object, is sealed as it is.
    """
    path = bundle / manifests.MANIFEST_NAME
    data = path.read_bytes()
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        with suppress(LayoutError):  # where it does not begin as manifests do, nothing seals it
            path.write_bytes(manifests.seal(data))
        return
    for name in edited:
        if name == manifests.MANIFEST_NAME:
            continue  # it says what it was made to say
        if name == table["weights"]["file"]:
            table["weights"] |= _weights(bundle / name)
        elif name in table["files"] and (bundle / name).is_file():
            table["files"][name] = asdict(manifests.file_entry(bundle / name))
    path.unlink()
    path.write_bytes(sealed(table))


def _weights(path: Path) -> dict[str, Any]:
    """The manifest's entry of an edited flash file, whose runs are given the digests of their bytes first."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        runs = json.loads(header["__metadata__"][KEY_RUNS])
        for run in runs:
            run[3] = xxhash.xxh3_64_hexdigest(data[run[1] : run[1] + run[2]])
        header["__metadata__"][KEY_RUNS] = json.dumps(runs, ensure_ascii=False, separators=(",", ":"))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(length, b" ")
        data = len(text).to_bytes(8, "little") + text + data[8 + length :]
        length = len(text)
        path.unlink()
        path.write_bytes(data)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        pass  # an edit has left no list of runs: there is nothing to make anew in it
    size = min(8 + length, len(data))
    return {
        "size": len(data),
        "sha256": file_digests(path)[1],
        "header_size": size,
        "header_xxh3": xxhash.xxh3_64_hexdigest(data[:size]),
    }
