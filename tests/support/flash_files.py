"""Flash files for tests: honest ones and hostile ones."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
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


def damage(path: Path, position: int) -> None:
    """Flip a bit in place and keep the modification time, as bit rot does."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
