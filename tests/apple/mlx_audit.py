"""What an MLX bundle stores, read back from its files: for comparison with what the quantizer made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from support.audit import StoredMatrix

from edgekit.export.errors import ExportError
from edgekit.export.formats.mlx import layout as mlx_layout
from edgekit.flashload import manifest as manifests
from edgekit.flashload.reader import FlashFile


def stored_matrices(bundle: Path) -> Iterator[StoredMatrix]:
    """Every matrix that the report on quantization lists, from the flash file alone.

    Raises:
        ExportError: a matrix is not stored in the bits that the report says, or its biases are not those of
            offset-binary codes. BundleError: a file cannot be read.
    """
    manifest = manifests.load(bundle)
    tables = manifest.model["tables"]
    with FlashFile(bundle / manifest.weights.file) as file:
        for row in json.loads((bundle / manifests.REPORT_NAME).read_text(encoding="utf-8")):
            name, role, bits = row["name"], row["role"], row["bits"]
            stems = tables[name]["runs"] if name in tables else mlx_layout.stored_names(name, role)
            parts = [_part(file, stem, bits) for stem in stems]
            weight = torch.from_numpy(np.concatenate([w for w, _ in parts]))
            if list(weight.shape) != [row["shape"][0], row["shape"][1] * min(bits, 8) // 8]:
                raise ExportError(f"{bundle}: {name} is stored as {list(weight.shape)}, not {row['shape']}")
            found = [s for _, s in parts if s is not None]
            scales = torch.from_numpy(np.concatenate(found)) if found else None
            yield StoredMatrix(name, bits, weight, scales)


def _part(file: FlashFile, stem: str, bits: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Codes or weight of the tensors `stem`.*, and their scales."""
    run = max((r for r in file.runs if stem == r or stem.startswith(r + ".")), key=len, default=None)
    slots = [] if run is None else file.run(run).tensors
    held = {s.name.removeprefix(stem + "."): s.name for s in slots if s.name.startswith(stem + ".")}
    if held.keys() - {"bias"} != ({"weight"} if bits == 16 else {"weight", "scales", "biases"}):
        raise ExportError(f"{file.path}: {stem} is stored as {sorted(held)}; the report says {bits} bits")

    def read(suffix: str) -> np.ndarray:
        slot = next(s for s in slots if s.name == held[suffix])
        return file.read_rows(slot.name)

    weight = read("weight")
    if bits == 16:
        return (weight.astype(np.uint32) << 16).view(np.float32), None
    scales, biases = read("scales"), read("biases")
    if not np.array_equal(biases, -(2.0 ** (bits - 1)) * scales):
        raise ExportError(f"{file.path}: {stem}.biases are not those of offset-binary codes")
    return weight.view(np.uint8), scales.astype(np.float32)
