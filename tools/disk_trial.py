"""How fast a folder's disk is read, found by trying."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.format import RunSpec, TensorSpec
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.sizes import size
from edgekit.flashload.writer import FlashWriter
from edgekit.runtime.bench import DiskProbe, probe_disk
from edgekit.tools.interrupts import ending_by_exceptions

#: Of the file that is written and read: more than what a disk's own cache holds, as a rule.
DISK_BYTES = 256 << 20
_RUN_BYTES = 32 << 20
#: Of the file's header and folder.
_OTHER_BYTES = 1 << 20


class NoRoom(EdgekitError):
    """The disk has less room than a trial takes."""


class NoFiles(EdgekitError):
    """It is no disk."""


@dataclass(frozen=True)
class DiskTrial:
    """What was found; `mode` is the way in which flash files are read there."""

    probe: DiskProbe
    mode: str


def try_disk(folder: Path, seconds: float) -> DiskTrial:
    """Write a flash file of DISK_BYTES to a folder, open it as sessions open theirs, read it for so many
    seconds, and remove it. Raises NoRoom, NoFiles, OSError and EdgekitError.
    """
    usage = shutil.disk_usage(folder)
    if not usage.total:
        raise NoFiles(f"{folder}: is the system's own and takes no files")
    free = usage.free
    if free < DISK_BYTES + _OTHER_BYTES:
        raise NoRoom(f"{folder}: has {size(free)} free, and a trial of the disk writes {size(DISK_BYTES)}")
    with (
        ending_by_exceptions(),
        tempfile.TemporaryDirectory(prefix=".edgekit-disk-", dir=folder) as temporary,
    ):
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
