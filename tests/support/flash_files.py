"""Flash files for tests: honest ones, hostile ones, and a disk that fails on command."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.flashload.format import STORAGE_DTYPES, RunSpec, TensorSpec
from edgekit.flashload.writer import FileDigest, FlashWriter

ALIGN = 16 * 1024
Data = dict[str, dict[str, np.ndarray]]


def random_array(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """Random bits as the dtype's storage type; booleans are 0 or 1."""
    if spec.dtype == "BOOL":
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    raw = rng.integers(0, 256, spec.nbytes, dtype=np.uint8)
    return raw.view(STORAGE_DTYPES[spec.dtype]).reshape(spec.shape)


def random_data(specs: Sequence[RunSpec], seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    return {run.name: {t.name: random_array(t, rng) for t in run.tensors} for run in specs}


def write(path: Path, specs: Sequence[RunSpec], data: Data) -> FileDigest:
    with FlashWriter(path, specs) as writer:
        for run in specs:
            writer.write_run(run.name, data[run.name])
        return writer.finish()


def byte_runs(sizes: Sequence[int]) -> list[RunSpec]:
    """Runs r0, r1, ... of one U8 tensor t0, t1, ... each."""
    return [RunSpec(f"r{i}", (TensorSpec(f"t{i}", "U8", (size,)),)) for i, size in enumerate(sizes)]


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header table and the data after it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put_header(path: Path, header: dict[str, Any] | str, data: bytes, data_start: int = ALIGN) -> None:
    """Write a file with any header, however wrong."""
    text = header if isinstance(header, str) else json.dumps(header)
    body = text.encode("utf-8", "surrogatepass").ljust(data_start - 8)
    path.write_bytes(len(body).to_bytes(8, "little") + body + data)


class Disk:
    """os.preadv with faults. `on_read(offset, nbytes)` may raise, wait, or return the most bytes
    that the read may report."""

    def __init__(self, on_read: Callable[[int, int], int | None] | None = None) -> None:
        self.on_read = on_read
        self.reads: list[tuple[int, int]] = []
        self.addresses: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        (view,) = buffers
        with self._lock:
            self.reads.append((offset, view.nbytes))
            self.addresses.append(int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]))
        limit = self.on_read(offset, view.nbytes) if self.on_read else None
        # A cut-short read has filled more than it tells: a direct read cannot ask for less than a block.
        count = os.preadv(fd, [view], offset)
        return count if limit is None else min(count, limit)
