"""Folders that are bundles as far as the hub is concerned."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import xxhash

from edgekit.flashload import manifest as manifests
from edgekit.flashload.manifest import FileEntry, Manifest, WeightsEntry


def entry(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest(), xxhash.xxh3_64_hexdigest(data))


def weights_entry(data: bytes) -> WeightsEntry:
    """Of weights that nobody opens: their header is what a header has at least."""
    own = entry(data)
    return WeightsEntry("weights.safetensors", own.size, own.sha256, 8, xxhash.xxh3_64_hexdigest(data[:8]))


def folder_like_a_bundle(folder: Path, form: str = "onnx", **files: bytes) -> Path:
    """Files that a manifest lists, enough for what is downloaded and checked before a bundle is opened."""
    folder.mkdir(parents=True)
    weights = random.Random(form).randbytes(50_000)
    files = {"tokenizer.json": b"{}", **files}
    for name, data in {"weights.safetensors": weights, **files}.items():
        (folder / name).write_bytes(data)
    summary = {"preset": "int8", "bits_per_weight": 8.5, "parameters": 10, "roles": []}
    manifests.save(
        Manifest(
            model={"family": "llada"},
            programs={"format": form},
            layers=[],
            sampler={},
            quantization=summary,
            weights=weights_entry(weights),
            files={name: entry(data) for name, data in files.items()},
            provenance={"checkpoint": "it"},
        ),
        folder,
    )
    return folder
