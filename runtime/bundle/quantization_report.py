"""quantization.json of a bundle: bits, bytes and error of every matrix."""

from __future__ import annotations

from typing import Any

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.manifest import REPORT_NAME
from edgekit.flashload.strictjson import loads_strict
from edgekit.runtime.bundle.sections import MOST, Wrong, each, finite, number, value

_MOST_BYTES = 2**63 - 1


def read(folder: BundleFolder) -> list[dict[str, Any]]:
    """The rows, one for each matrix, with the keys of `export.quantize.TensorReport`.

    Raises MalformedFile, and what `BundleFolder.read` does.
    """
    where = str(folder.path / REPORT_NAME)
    rows = loads_strict(folder.read(REPORT_NAME), where)
    try:
        return [
            checked(row, f"row {i}") for i, row in enumerate(each({"rows": rows}, "rows", dict, "the file"))
        ]
    except Wrong as error:
        raise MalformedFile(f"{where}: {error}; export the bundle again") from None


def checked(row: Any, at: str) -> dict[str, Any]:
    """A row whose values are of their types, and of no others. Raises Wrong."""
    shape = each(row, "shape", int, at)
    if not shape or not all(1 <= size <= MOST for size in shape):
        raise Wrong(f"{at}: shape {str(shape)[:40]} is none")
    found = {"name": value(row, "name", str, at), "role": value(row, "role", str, at), "shape": shape}
    found |= {key: number(row, key, at) for key in ("bits", "group_size")}
    found["stored_bytes"] = number(row, "stored_bytes", at, 0, _MOST_BYTES)
    found["relative_error"] = finite(row, "relative_error", at)
    return found | {"note": value(row, "note", str, at) if "note" in row else ""}
