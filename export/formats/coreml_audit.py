"""What the packages of a Core ML bundle store, read back through their programs: what a device would use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgekit.export.bundle_files import REPORT_FILE
from edgekit.export.errors import ExportError
from edgekit.export.formats.audit import StoredMatrix
from edgekit.export.formats.coreml_layout import FLIP
from edgekit.flashload import manifest as manifests
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.mil import Constant, Package

_EXPERTS = re.compile(r"w_(\d+)_experts_(\d+)_(\d+)_(\w+)")


@dataclass(frozen=True)
class Weight:
    """A matrix or stack of a program: a float constant, or codes with scales."""

    data: Constant
    scales: Constant | None

    @property
    def bits(self) -> int:
        return 16 if self.scales is None else self.data.dtype.bits

    @property
    def places(self) -> tuple[int | None, ...]:
        """Offsets in the weight file: equal ones are equal bytes."""
        constants = (self.data,) if self.scales is None else (self.data, self.scales)
        return tuple(None if c.record is None else c.record.offset for c in constants)


def weights(package: Package) -> dict[str, Weight]:
    """The matrices and stacks of a package by their names in it.

    Raises:
        ExportError: functions differ in the weights that they use. MilError: the package is damaged.
    """
    found: dict[str, Weight] = {}
    for name in package.functions:
        function = package.function(name)
        own = {
            output.removesuffix("_weight"): Weight(constant, None)
            for output, constant in function.constants.items()
            if output.startswith("w_") and len(constant.shape) > 1
        }
        for operation in function.operations:
            if operation.is_constexpr:
                data, scale = (operation.inputs[key][0] for key in ("data", "scale"))
                assert isinstance(data, Constant) and isinstance(scale, Constant)
                own[operation.outputs[0].name] = Weight(data, scale)
        for weight, value in own.items():
            if found.setdefault(weight, value).places != value.places:
                raise ExportError(f"{package.path}: function {name} has a {weight} of its own")
    return found


def stored_matrices(bundle: Path) -> Iterator[StoredMatrix]:
    """Every matrix that the report on quantization lists, from the packages and the flash file. A tied table
    comes twice: `embedding` is that of the flash file, `head` that of the packages.

    Raises:
        ExportError: a matrix is not stored in the bits that the report says, or not at all. BundleError,
            MilError: a file cannot be read.
    """
    manifest = manifests.load(bundle)
    rows = json.loads((bundle / REPORT_FILE).read_text(encoding="utf-8"))
    tables = {row["name"]: row for row in rows if row["name"] in ("embedding", "head")}
    yield _embedding(bundle, manifest, tables["embedding"])
    yield _head(bundle, manifest, tables.get("head", tables["embedding"]))
    for name, entry in manifest.programs["packages"].items():
        if entry["functions"] and next(iter(entry["functions"].values()))["kind"] == "head":
            continue
        found = weights(Package(bundle / entry["path"]))
        own = {
            f"layers.{i}.": f"{layer['slot']}_"
            for i, layer in enumerate(manifest.layers)
            if layer["package"] == name
        } or {f"{name}.": ""}
        for row in rows:
            prefix = next((p for p in own if row["name"].startswith(p)), None)
            if prefix is not None:
                inner = row["name"].removeprefix(prefix)
                yield _matrix(
                    row, *_find(found, own[prefix] + inner.replace(".", "_"), bundle / entry["path"])
                )


def _find(found: Mapping[str, Weight], name: str, path: Path) -> tuple[Weight, int | None, str]:
    """The weight that holds a matrix, and which of a stack it is."""
    where = f"{path}: {name}"
    if "w_" + name in found:
        return found["w_" + name], None, where
    slot, _, rest = name.partition("_experts_")
    expert, _, matrix = rest.partition("_")
    for key, weight in found.items():
        match = _EXPERTS.fullmatch(key)
        if match and (match[1], match[4]) == (slot, matrix) and int(match[2]) <= int(expert) <= int(match[3]):
            return weight, int(expert) - int(match[2]), where
    raise ExportError(f"{where}: is not in the program")


def _matrix(row: Mapping[str, Any], weight: Weight, index: int | None, where: str) -> StoredMatrix:
    if weight.bits != row["bits"]:
        raise ExportError(f"{where} is stored in {weight.bits} bits; the report says {row['bits']}")

    def read(constant: Constant) -> np.ndarray:
        values: np.ndarray = constant.all() if index is None else constant.rows(index, index + 1)[0]
        return values

    data = read(weight.data)
    if list(data.shape) != row["shape"]:
        raise ExportError(f"{where} is stored as {list(data.shape)}, not {row['shape']}")
    scales = None if weight.scales is None else read(weight.scales).astype(np.float32)
    return _stored(row["name"], weight.bits, data, scales)


def _stored(name: str, bits: int, data: np.ndarray, scales: np.ndarray | None) -> StoredMatrix:
    """A matrix from signed codes [N, K], one to an element."""
    if scales is None:
        return StoredMatrix(name, bits, torch.from_numpy(data.astype(np.float32)), None)
    if bits == 4:
        nibbles = data.view(np.uint8) & 15
        codes = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
    else:
        codes = data.view(np.uint8)
    return StoredMatrix(name, bits, torch.from_numpy(codes ^ np.uint8(FLIP[bits])), torch.from_numpy(scales))


def _head(bundle: Path, manifest: Manifest, row: Mapping[str, Any]) -> StoredMatrix:
    parts = []
    for entry in manifest.programs["packages"].values():
        if "start" in entry:
            path = bundle / entry["path"]
            weight, _, where = _find(weights(Package(path)), "table", path)
            shape = [entry["rows"], row["shape"][1]]
            parts.append(_matrix({**row, "name": "head", "shape": shape}, weight, None, where))
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
