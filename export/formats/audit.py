"""What an audit of a bundle reads back, for comparison with what the quantizer made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edgekit.export.bundle_files import REPORT_FILE
from edgekit.export.errors import ExportError
from edgekit.flashload import manifest as manifests
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.reader import FlashFile


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [N, K] under the quantizer's name: codes as in `edgekit.export.ops` and the scale of every
    group [N, K / G] in float32; or, with 16 bits, the weight itself and no scales.
    """

    name: str
    bits: int
    weight: Tensor
    scales: Tensor | None


class PackagedWeight(Protocol):
    """A matrix of a package's program. `bits` are those of its codes, 16 where it is a float."""

    @property
    def bits(self) -> int: ...

    def read(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Codes [N, K * bits / 8] as in `edgekit.export.ops`, or the float weight [N, K]; scales."""
        ...


#: The matrices of a package by the names that `packaging` gives them, without suffix and with underscores
#: for dots: `0_mlp_up_proj`, `0_experts_7_down`, `table`.
Weights = Callable[[Path], Mapping[str, PackagedWeight]]


def packaged_matrices(bundle: Path, weights: Weights) -> Iterator[StoredMatrix]:
    """Every matrix that the report on quantization lists, from the packages and the flash file. A tied table
    comes twice: `embedding` is that of the flash file, `head` that of the packages.

    Raises:
        ExportError: a matrix is not stored in the bits that the report says, or not at all. BundleError, and
            what `weights` raises: a file cannot be read.
    """
    manifest = manifests.load(bundle)
    rows = json.loads((bundle / REPORT_FILE).read_text(encoding="utf-8"))
    tables = {row["name"]: row for row in rows if row["name"] in ("embedding", "head")}
    yield _embedding(bundle, manifest, tables["embedding"])
    yield _head(bundle, manifest, weights, tables.get("head", tables["embedding"]))
    for name, entry in manifest.programs["packages"].items():
        if "start" in entry:
            continue
        path = bundle / entry["path"]
        found = weights(path)
        own = {
            f"layers.{i}.": f"{layer['slot']}."
            for i, layer in enumerate(manifest.layers)
            if layer["package"] == name
        } or {f"{name}.": ""}
        for row in rows:
            prefix = next((p for p in own if row["name"].startswith(p)), None)
            if prefix is not None:
                yield _matrix(row, found, own[prefix] + row["name"].removeprefix(prefix), path)


def _matrix(
    row: Mapping[str, Any], found: Mapping[str, PackagedWeight], name: str, path: Path
) -> StoredMatrix:
    where = f"{path}: {name}"
    weight, bits = found.get(name.replace(".", "_")), row["bits"]
    if weight is None:
        raise ExportError(f"{where}: is not in the program")
    if weight.bits != bits:
        raise ExportError(f"{where} is stored in {weight.bits} bits; the report says {bits}")
    data, scales = weight.read()
    if list(data.shape) != [row["shape"][0], row["shape"][1] * min(bits, 8) // 8]:
        raise ExportError(f"{where} is stored as {list(data.shape)}, not {row['shape']}")
    if scales is None:
        return StoredMatrix(row["name"], bits, torch.from_numpy(data.astype(np.float32)), None)
    return StoredMatrix(
        row["name"], bits, torch.from_numpy(data), torch.from_numpy(scales.astype(np.float32))
    )


def _head(bundle: Path, manifest: Manifest, weights: Weights, row: Mapping[str, Any]) -> StoredMatrix:
    parts = []
    for entry in manifest.programs["packages"].values():
        if "start" in entry:
            path, shape = bundle / entry["path"], [entry["rows"], row["shape"][1]]
            parts.append(_matrix({**row, "name": "head", "shape": shape}, weights(path), "table", path))
    return _joined("head", parts)


def _embedding(bundle: Path, manifest: Manifest, row: Mapping[str, Any]) -> StoredMatrix:
    parts = []
    with FlashFile(bundle / manifest.weights.file) as file:
        for run in manifest.model["tables"]["embedding"]["runs"]:
            slots = {s.name.rpartition(".")[2]: s for s in file.run(run).tensors}
            data = {k: file.read_rows(s.name, np.arange(s.shape[0])) for k, s in slots.items()}
            if row["bits"] == 16:
                wide = (data["weight"].astype(np.uint32) << 16).view(np.float32)
                parts.append(StoredMatrix("embedding", 16, torch.from_numpy(wide), None))
            else:
                codes, scales = torch.from_numpy(data["codes"]), torch.from_numpy(data["scales"])[:, None]
                parts.append(StoredMatrix("embedding", row["bits"], codes, scales))
    return _joined("embedding", parts)


def _joined(name: str, parts: list[StoredMatrix]) -> StoredMatrix:
    scales = [p.scales for p in parts if p.scales is not None]
    weight = torch.cat([p.weight for p in parts])
    return StoredMatrix(name, parts[0].bits, weight, torch.cat(scales) if scales else None)
