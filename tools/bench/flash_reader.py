"""How close do the core's reader, and Python's binding of it, come to what the disk gives?

The limit is a plain loop: threads that pread in turns past the page cache into a buffer each, and do nothing
with the bytes. Against it: every run of a flash file streamed through `Ring`, by the pool of threads and by
io_uring, for several numbers of reads in flight and chunk sizes; and the runs read by `FlashFile.read_into`
from Python, where nothing is read between two of them. One file for all, written here; everything is
interleaved in one process; medians. The file is opened anew each time: the first pass verifies (and touches
the memory), the later ones are what a denoising step sees.

Before every measurement the file is dropped from the page cache, of which direct reads take no part anyway. A
cache below the system (a virtual disk's host) is not reached: take a file that is larger than that.

Needs the testing library (configure with -DEDGEKIT_TESTING=ON, as `make test` does).

    python -m edgekit.tools.bench.flash_reader --folder /data
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from edgekit.flashload import _native
from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.format import RunSpec, TensorSpec
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.writer import FlashWriter
from edgekit.tools.benchmark.page_cache import forget

MIB = 1 << 20


@functools.cache
def testing_library() -> ctypes.CDLL:
    """The library through which benchmarks read. Raises ClickException where it is missing."""
    name = _native.library_name().replace("core", "testing")
    beside_core = Path(str(importlib.resources.files("edgekit.flashload") / name))
    path = Path(os.environ.get("EDGEKIT_TESTING_LIB") or beside_core)
    if not path.is_file():
        raise click.ClickException(
            f"{path}: the testing library is missing; build with -DEDGEKIT_TESTING=ON, as `make venv` does"
        )
    library = ctypes.CDLL(str(path))
    library.ekt_bench_reading_error.restype = ctypes.c_char_p
    return library


def _check(status: int) -> None:
    if status:
        raise click.ClickException(testing_library().ekt_bench_reading_error().decode())


def write_file(path: Path, total_bytes: int, run_bytes: int) -> None:
    """Runs of random bytes: a disk may not be able to shrink them."""
    count = max(total_bytes // run_bytes, 1)
    specs = [RunSpec(f"r{i}", (TensorSpec(f"t{i}", "U8", (run_bytes,)),)) for i in range(count)]
    rng = np.random.default_rng(0)
    with FlashWriter(path, specs) as writer:
        for i, spec in enumerate(specs):
            writer.write_run(spec.name, {f"t{i}": rng.integers(0, 256, run_bytes, dtype=np.uint8)})
        writer.finish()


@dataclass
class Candidate:
    """Something that is timed. `measure()` gives GB/s of the first pass, and of every later one."""

    name: str
    measure: Callable[[], tuple[float, list[float]]]
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


def _name(way: str, threads: int, chunk_bytes: int) -> str:
    return f"{way:19s}{threads:3d} x {chunk_bytes / MIB:5.2f} MiB"


def read_seconds(path: Path, threads: int, chunk_bytes: int, start: int, nbytes: int) -> float:
    """Seconds of plain parallel reads of `nbytes` bytes from `start`, past the page cache.

    Raises ClickException where the testing library is missing or a read fails.
    """
    seconds = ctypes.c_double()
    _check(
        testing_library().ekt_bench_limit(
            str(path).encode(),
            ctypes.c_int32(threads),
            ctypes.c_uint64(chunk_bytes),
            ctypes.c_uint64(start),
            ctypes.c_uint64(nbytes),
            ctypes.byref(seconds),
        )
    )
    return seconds.value


def limit(path: Path, threads: int, chunk_bytes: int, passes: int) -> Candidate:
    with FlashFile(path) as file:
        start, nbytes = file.layout.data_start, file.layout.size - file.layout.data_start

    def once() -> float:
        return nbytes / read_seconds(path, threads, chunk_bytes, start, nbytes) / 1e9

    def measure() -> tuple[float, list[float]]:
        return once(), [once() for _ in range(passes - 1)]

    return Candidate(_name("limit", threads, chunk_bytes), measure)


def stream(
    path: Path, threads: int, chunk_bytes: int, passes: int, ring_bytes: int, *, direct: bool, io_uring: bool
) -> Candidate | None:
    """None where this machine reads in another way than asked for."""

    def run(count: int) -> tuple[str, int, list[float]]:
        seconds, verify, nbytes = (ctypes.c_double * count)(), (ctypes.c_double * count)(), ctypes.c_uint64()
        mode = ctypes.create_string_buffer(500)
        _check(
            testing_library().ekt_bench_stream(
                str(path).encode(),
                ctypes.c_int32(threads),
                ctypes.c_uint64(chunk_bytes),
                ctypes.c_int32(direct),
                ctypes.c_int32(io_uring),
                ctypes.c_uint64(ring_bytes),
                ctypes.c_int32(count),
                seconds,
                verify,
                ctypes.byref(nbytes),
                mode,
                ctypes.c_uint64(len(mode)),
            )
        )
        return mode.value.decode(), nbytes.value, list(seconds)

    mode, _, _ = run(1)
    asked = f"{'direct' if direct else 'buffered'} {'io_uring' if io_uring else 'pread'}"
    if not mode.replace("nocache", "direct").startswith(asked):
        click.echo(f"left out: {asked}; this machine gives {mode}")
        return None

    def measure() -> tuple[float, list[float]]:
        _, nbytes, seconds = run(passes)
        rates = [nbytes / each / 1e9 for each in seconds]
        return rates[0], rates[1:]

    way = "io_uring" if io_uring else "pool"
    return Candidate(_name(way if direct else f"{way}, buffered", threads, chunk_bytes), measure)


def binding(path: Path, passes: int) -> Candidate:
    def measure() -> tuple[float, list[float]]:
        rates: list[float] = []
        with FlashFile(path) as file:
            buffer = AlignedBuffer(max(run.length for run in file.layout.runs))
            for _ in range(passes):
                started = time.perf_counter()
                for run in file.layout.runs:
                    file.read_into(run, buffer.view)
                nbytes = sum(run.length for run in file.layout.runs)
                rates.append(nbytes / (time.perf_counter() - started) / 1e9)
        buffer.close()
        return rates[0], rates[1:]

    return Candidate("FlashFile.read_into, run by run", measure)


def _numbers(_: click.Context, __: click.Parameter, value: str) -> list[float]:
    try:
        return [float(each) for each in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,4,8") from None


@click.command()
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--gigabytes", default=4.0, show_default=True, help="Size of the file.")
@click.option("--run-mib", default=32.0, show_default=True, help="Size of a run.")
@click.option("--ring-mib", default=256.0, show_default=True, help="Memory of the ring.")
@click.option("--threads", default="1,4,8,16", show_default=True, callback=_numbers)
@click.option("--chunk-mib", default="1,4,16", show_default=True, callback=_numbers)
@click.option("--passes", default=3, show_default=True, help="Over the file, per opening.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--buffered", is_flag=True, help="Also through the page cache.")
def main(
    folder: Path,
    gigabytes: float,
    run_mib: float,
    ring_mib: float,
    threads: list[float],
    chunk_mib: list[float],
    passes: int,
    rounds: int,
    buffered: bool,
) -> None:
    """Time the reader against the disk."""
    if passes < 2:
        raise click.BadParameter("the first pass verifies, so at least 2 are needed", param_hint="--passes")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "flash"
        write_file(path, int(gigabytes * 1e9), int(run_mib * MIB))
        ring_bytes = int(ring_mib * MIB)
        candidates: list[Candidate] = []
        for count in map(int, threads):
            for chunk in (int(each * MIB) for each in chunk_mib):
                candidates.append(limit(path, count, chunk, passes))
                for direct in (True, False) if buffered else (True,):
                    for io_uring in (False, True):
                        found = stream(
                            path, count, chunk, passes, ring_bytes, direct=direct, io_uring=io_uring
                        )
                        candidates += [found] if found else []
        candidates.append(binding(path, passes))
        for _ in range(rounds):
            for candidate in candidates:
                forget(path)
                first, later = candidate.measure()
                candidate.first.append(first)
                candidate.later += later
    best = max(statistics.median(c.later) for c in candidates if c.name.startswith("limit"))
    click.echo(f"{'GB/s, medians':35s} {'first pass':>10s} {'later':>7s}  lowest..highest  of the limit")
    for candidate in candidates:
        median = statistics.median(candidate.later)
        click.echo(
            f"{candidate.name:35s} {statistics.median(candidate.first):10.2f} {median:7.2f}  "
            f"{min(candidate.later):7.2f}..{max(candidate.later):6.2f}  {100 * median / best:10.0f} %"
        )


if __name__ == "__main__":
    main()
