"""How fast a folder's disk is read, found by trying."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgekit.flashload.format import RunSpec, TensorSpec
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.writer import FlashWriter
from edgekit.runtime.bench import DiskProbe, probe_disk

#: Of the file that is written and read: more than what a disk's own cache holds, as a rule.
DISK_BYTES = 256 << 20
_RUN_BYTES = 32 << 20


@dataclass(frozen=True)
class DiskTrial:
    """What was found; `mode` is the way in which flash files are read there."""

    probe: DiskProbe
    mode: str


def try_disk(folder: Path, seconds: float) -> DiskTrial:
    """Write a flash file of DISK_BYTES to a folder, open it as sessions open theirs, read it for so many
    seconds, and remove it. Raises OSError and EdgekitError.
    """
    with tempfile.TemporaryDirectory(prefix=".edgekit-disk-", dir=folder) as temporary:
        path = Path(temporary) / "weights.safetensors"
        _write(path)
        with FlashFile(path) as file:
            mode = file.io_mode
        return DiskTrial(probe_disk(path, seconds), mode)


def _write(path: Path) -> None:
    """Random bytes: a disk may not be able to shrink them."""
    count, random = DISK_BYTES // _RUN_BYTES, np.random.default_rng(0)
    specs = [RunSpec(f"r{i}", (TensorSpec(f"t{i}", "U8", (_RUN_BYTES,)),)) for i in range(count)]
    with FlashWriter(path, specs) as writer:
        for i in range(count):
            writer.write_run(f"r{i}", {f"t{i}": random.integers(0, 256, _RUN_BYTES, dtype=np.uint8)})
        writer.finish()
