"""What an audit of a bundle reads back, for comparison with what the quantizer made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edgekit.export.errors import ExportError
from edgekit.export.models import architecture
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


#: The matrices of a package by the names that `packages.cut` gives them, without suffix and with underscores
#: for dots: `0_mlp_up_proj`, `0_experts_7_down`, `table`.
Weights = Callable[[Path], Mapping[str, PackagedWeight]]
#: The float vectors of a package, named likewise: `0_input_layernorm_weight`.
Vectors = Callable[[Path], Mapping[str, np.ndarray]]


def packaged_matrices(bundle: Path, weights: Weights) -> Iterator[StoredMatrix]:
    """Every matrix that the report on quantization lists, from the packages and the flash file. A tied table
    comes twice: `embedding` is that of the flash file, `head` that of the packages.

    Raises:
        ExportError: a matrix is not stored in the bits that the report says, or not at all. EdgekitError,
            also what `weights` raises: a file cannot be read.
    """
    manifest = manifests.load(bundle)
    rows = json.loads((bundle / manifests.REPORT_NAME).read_text(encoding="utf-8"))
    tables = {row["name"]: row for row in rows if row["name"] in ("embedding", "head")}
    yield _embedding(bundle, manifest, tables["embedding"])
    yield _head(bundle, manifest, weights, tables.get("head", tables["embedding"]))
    left = {row["name"]: row for row in rows if row["name"] not in tables}
    for path, units in _packages(bundle, manifest):
        found = weights(path)
        for name, own in _inside(units, list(left)):
            yield _matrix(left.pop(name), found, own, path)
    if left:
        raise ExportError(f"{bundle}: {next(iter(left))} is in the report, but in none of the packages")


def packaged_vectors(bundle: Path, vectors: Vectors) -> Iterator[tuple[str, np.ndarray]]:
    """Every float vector of the model (norms, biases, factors) by name, with the values that its package
    stores, in float32.

    Raises:
        ExportError: one is stored in another shape, or not at all. EdgekitError, also what `vectors` raises:
            a file cannot be read.
    """
    manifest = manifests.load(bundle)
    specs = architecture(manifest.model["config"]).weights()
    left = {f"{unit}.{spec.name}": spec.shape for unit, spec in specs if spec.role == "float"}
    for path, units in _packages(bundle, manifest):
        found = vectors(path)
        for name, own in _inside(units, list(left)):
            shape, values = left.pop(name), found.get(own.replace(".", "_"))
            if values is None:
                raise ExportError(f"{path}: {own} is not in the program")
            if values.shape != shape:
                raise ExportError(f"{path}: {own} is stored as {list(values.shape)}, not {list(shape)}")
            yield name, values.astype(np.float32)
    if left:
        raise ExportError(f"{bundle}: {next(iter(left))} is in none of the packages")


def _packages(bundle: Path, manifest: Manifest) -> Iterator[tuple[Path, dict[str, str]]]:
    """The packages but the head's: how names begin in the model, and how in the package."""
    for name, entry in manifest.programs["packages"].items():
        layers = [(i, layer["slot"]) for i, layer in enumerate(manifest.layers) if layer["package"] == name]
        if "start" not in entry:
            units = {f"layers.{i}.": f"{slot}." for i, slot in layers} or {f"{name}.": ""}
            yield bundle / entry["path"], units


def _inside(units: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of the names that a package holds, and what they are called there."""
    for name in names:
        for prefix, own in units.items():
            if name.startswith(prefix):
                yield name, own + name.removeprefix(prefix)


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
            data = {k: file.read_rows(s.name) for k, s in slots.items()}
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
