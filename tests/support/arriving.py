"""Small bundles to be fetched: random weights in runs of any sizes, and files. Nothing runs them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.manifest import MANIFEST_NAME, Manifest, WeightsEntry
from support.flash_files import byte_runs, random_data, write

WEIGHTS = "weights.safetensors"
#: Sizes of runs: less than a page, several requests, one page.
SIZES = (100, 3_000_000, 16384, 700_000, 1, 250_000)
FILES = {"tokenizer/tokenizer.json": b'{"a": 1}', "README.md": b"# a model\n", "empty.txt": b""}


def make(
    folder: Path,
    sizes: Sequence[int] = SIZES,
    files: Mapping[str, bytes] = FILES,
    *,
    seed: int = 0,
    others: Mapping[int, int] | None = None,
    form: str = "native",
    sampler: Mapping[str, Any] | None = None,
) -> Path:
    """A bundle. `others` are runs that have another seed: what an update changes. `sampler` is that section
    of the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specs = byte_runs(sizes)
    data = random_data(specs, seed)
    for run, own in (others or {}).items():
        rng = np.random.default_rng((own, run))
        data[f"r{run}"] = {f"t{run}": rng.integers(0, 256, sizes[run], dtype=np.uint8)}
    digest = write(folder / WEIGHTS, specs, data)
    entries = {}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        entries[name] = manifests.file_entry(path)
    weights = WeightsEntry(WEIGHTS, digest.size, digest.sha256, digest.header_size, digest.header_xxh3)
    manifests.save(
        Manifest({}, {"format": form}, [], dict(sampler or {}), {}, weights, entries), folder / MANIFEST_NAME
    )
    return folder


def make_set(folder: Path, members: Mapping[str, tuple[str, str]]) -> Path:
    """Bundles in folders of one folder: path -> format and the first iOS that runs it, empty for any."""
    found = []
    files = {}
    for seed, (path, (form, ios)) in enumerate(members.items()):
        make(folder / path, (1000, 50_000), seed=seed, form=form)
        found.append(Member(path, form, {"ios": ios, "macos": ios} if ios else {}))
        name = f"{path}/{MANIFEST_NAME}"
        files[name] = manifests.file_entry(folder / name)
    bundle_set.save(BundleSet(tuple(found), files), folder)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with its SHA-256."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
