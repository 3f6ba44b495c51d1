"""Flash files on disks that fail: the bytes that were written, whatever the disk does, or one typed error."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import native_reading as native
from support.flash_files import ALIGN, Data, damage, random_data, write
from support.native_reading import WAYS, NativeFile, Way, refused, span

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.format import RunSpec, TensorSpec, layout
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.session import SessionOptions
from edgekit.tools.bench import flash_reader, sequences, steps

SPECS = [
    RunSpec("big", (TensorSpec("big.w", "U8", (1000, 333)), TensorSpec("norm", "BF16", (333,)))),
    RunSpec("small", (TensorSpec("s", "F32", (3,)),)),
    RunSpec("table", (TensorSpec("rows", "F16", (500, 40)), TensorSpec("scale", "F32", (500,)))),
]


@pytest.fixture
def data() -> Data:
    return random_data(SPECS)


@pytest.fixture
def path(tmp_path: Path, data: Data) -> Path:
    write(tmp_path / "weights", SPECS, data)
    return tmp_path / "weights"


RUNS = layout(SPECS).runs


def content(path: Path, run: str) -> bytes:
    """The run's bytes, as they lie in the file."""
    (found,) = (each for each in RUNS if each.name == run)
    return path.read_bytes()[found.offset : found.offset + found.length]


# --- honest files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("chunk_bytes", [ALIGN, 3 * ALIGN, 4 << 20])
def test_every_run_has_the_bytes_of_the_file(path: Path, way: Way, threads: int, chunk_bytes: int) -> None:
    raw = path.read_bytes()
    reads: list[tuple[int, int]] = []
    with NativeFile(path, threads=threads, chunk_bytes=chunk_bytes, **way) as file:
        file.on_read = lambda offset, nbytes: reads.append((offset, nbytes))
        before = file.statistics.bytes_read
        for run in RUNS:
            reads.clear()
            buffer = AlignedBuffer(run.length + ALIGN)
            file.read_into(run.name, buffer.view)
            assert bytes(buffer.view) == raw[run.offset : run.offset + run.length] + bytes(ALIGN)
            assert sorted(reads) == [
                (run.offset + start, min(chunk_bytes, run.length - start))
                for start in range(0, run.length, chunk_bytes)
            ]
        found = file.statistics
        assert found.bytes_read - before == sum(run.length for run in RUNS)
        assert found[1:5] == (3, 0, 0, 0)
        assert found.verify_seconds > 0


def test_opening_reads_the_header_alone(path: Path) -> None:
    reads: list[tuple[int, int]] = []
    with NativeFile(path, on_read=lambda offset, nbytes: reads.append((offset, nbytes))):
        assert max(offset + nbytes for offset, nbytes in reads) == ALIGN


def test_the_mode_tells_what_is_used_and_why(path: Path) -> None:
    try:  # an independent probe of the same file system
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        refused_open = False
    except OSError:
        refused_open = True
    with NativeFile(path, io_uring=False) as file, FlashFile(path) as opened:
        direct = file.io_mode == "direct pread"
        if refused_open:
            assert file.io_mode.startswith("buffered pread: the file system refuses O_DIRECT")
        else:
            assert direct or "a direct read failed" in file.io_mode
        assert opened.io_mode.split()[0] == file.io_mode.split()[0]
    with NativeFile(path, direct=False, io_uring=False) as file:
        assert file.io_mode == "buffered pread: asked for"
    with NativeFile(path, io_uring=False, refuse=1) as file:
        assert file.io_mode == "buffered pread: the file system refuses O_DIRECT (a test)"
    if direct:
        with NativeFile(path, io_uring=False, refuse=2) as file:
            assert file.io_mode == "buffered pread: a direct read failed (Invalid argument)"
        with NativeFile(path, refuse=4) as file:
            assert (
                file.io_mode == "direct pread: no io_uring: the system refuses it (Operation not permitted)"
            )
    with NativeFile(path, direct=False, refuse=4) as file:
        assert file.io_mode.startswith("buffered pread: asked for; no io_uring: the system refuses it (")
        assert file.read("small", ALIGN) == content(path, "small")


def test_io_uring_is_used_where_the_kernel_allows_it(path: Path) -> None:
    entered = ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(120))
    if entered >= 0:
        os.close(entered)
    with NativeFile(path) as file:
        assert (" io_uring" in file.io_mode and "no io_uring" not in file.io_mode) == (entered >= 0)


def test_a_buffer_off_the_page_boundary_is_read_through_the_cache_and_counted(path: Path) -> None:
    for io_uring in (True, False):
        with NativeFile(path, io_uring=io_uring) as file:
            buffer = AlignedBuffer(2 * ALIGN)
            file.read_into("small", buffer.view[64 : 64 + ALIGN])
            assert bytes(buffer.view[64 : 64 + ALIGN]) == content(path, "small")
            assert file.statistics.fallbacks == (1 if file.io_mode.startswith("direct") else 0)


def test_single_bytes_are_those_of_the_file(path: Path) -> None:
    raw = path.read_bytes()
    with NativeFile(path) as file:
        for offset, nbytes in [(0, 1), (ALIGN - 3, 7), (len(raw) - 1, 1), (len(raw), 0), (5, 100_000)]:
            assert file.read_bytes(offset, nbytes) == raw[offset : offset + nbytes]
        for offset, nbytes in [(len(raw), 1), (len(raw) + 1, 0), (0, len(raw) + 1), (2**64 - 1, 2)]:
            with refused(native.INVALID_ARGUMENT, "are outside its"):
                # No room is needed: the span is refused before anything is written.
                native.call(
                    "ekt_flash_read_bytes",
                    file.handle,
                    ctypes.c_uint64(offset),
                    ctypes.c_uint64(nbytes),
                    None,
                )


def test_requests_that_cannot_be_served_are_refused(path: Path) -> None:
    with NativeFile(path) as file, refused(native.INVALID_ARGUMENT, "has no run named 'x'"):
        file.read("x", ALIGN)
    for wrong in ({"threads": 0}, {"chunk_bytes": 1000}, {"chunk_bytes": 0}):
        with refused(native.INVALID_ARGUMENT, "threads must be at least 1 and chunk_bytes a multiple of"):
            NativeFile(path, **wrong)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with refused(native.OPEN_FAILED, "is a directory"):
        NativeFile(tmp_path)
    with refused(native.OPEN_FAILED, f"{tmp_path}/none: cannot open .No such file"):
        NativeFile(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with refused(native.OPEN_FAILED, "not a regular file"):
        NativeFile(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with refused(native.TRUNCATED_FILE, "empty"):
        NativeFile(tmp_path / "empty")
    (tmp_path / "other").write_bytes(b"PK\x03\x04" + bytes(100))
    with refused(native.MALFORMED_FILE, "other"):
        NativeFile(tmp_path / "other")


def test_memory_is_at_a_page_boundary_and_too_much_is_refused() -> None:
    block, data = ctypes.c_void_p(), ctypes.c_void_p()
    for nbytes in (1, 5 << 20):
        native.call("ekt_memory_open", ctypes.c_uint64(nbytes), ctypes.byref(block), ctypes.byref(data))
        assert data.value is not None and data.value % 4096 == 0
        assert ctypes.string_at(data.value, nbytes) == bytes(nbytes)
        native.library().ekt_memory_close(block)
    with refused(native.OUT_OF_MEMORY, "cannot map 4611686018427387904 bytes"):
        native.call("ekt_memory_open", ctypes.c_uint64(1 << 62), ctypes.byref(block), ctypes.byref(data))


# --- failing disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [4096, 5000, 100])
def test_short_reads_are_continued(path: Path, way: Way, step: int) -> None:
    _, length = span(path, "big")
    with NativeFile(path, **way) as file:
        file.on_read = lambda offset, nbytes: step
        assert file.read("big", length) == content(path, "big")
        assert file.statistics.short_reads > 0
        # A direct read that stops inside its first block goes on through the page cache.
        direct = file.io_mode.startswith("direct")
        assert file.statistics.fallbacks == (1 if direct and step == 100 else 0)


@pytest.mark.parametrize("way", WAYS)
def test_interrupted_reads_are_repeated(path: Path, way: Way) -> None:
    _, length = span(path, "big")
    answers = iter([-errno.EINTR, -errno.EINTR, None, -errno.EINTR])
    with NativeFile(path, threads=1, chunk_bytes=ALIGN, **way) as file:
        file.on_read = lambda offset, nbytes: next(answers, None)
        assert file.read("big", length) == content(path, "big")
        assert file.statistics.interrupts == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_read_is_an_error_and_the_next_one_works(path: Path, way: Way) -> None:
    offset, length = span(path, "big")
    at = offset + 4 * ALIGN
    with NativeFile(path, chunk_bytes=ALIGN, **way) as file:
        file.on_read = lambda offset, nbytes: -errno.EIO if offset <= at < offset + nbytes else None
        with refused(
            native.READ_FAILED, rf"weights: reading {ALIGN} bytes at {at} failed \(Input/output error\)"
        ):
            file.read("big", length)
        assert file.read("small", ALIGN) == content(path, "small")
        file.on_read = None
        assert file.read("big", length) == content(path, "big")
        assert file.statistics.runs_read == 2


def test_a_refused_row_is_an_error_and_others_are_not(path: Path) -> None:
    raw = path.read_bytes()
    with NativeFile(path) as file:
        file.on_read = lambda offset, nbytes: -errno.EIO if offset <= ALIGN + 80 < offset + nbytes else None
        assert file.read_bytes(ALIGN, 80) == raw[ALIGN : ALIGN + 80]
        with refused(native.READ_FAILED, rf"weights: reading 80 bytes at {ALIGN + 80} failed"):
            file.read_bytes(ALIGN + 80, 80)


@pytest.mark.parametrize("direct", [True, False])
def test_verifying_reads_once_in_chunks_and_counts_as_the_first_read(path: Path, direct: bool) -> None:
    offset, length = span(path, "big")
    reads: list[tuple[int, int]] = []
    with NativeFile(path, chunk_bytes=2 * ALIGN, direct=direct) as file:
        file.on_read = lambda at, nbytes: reads.append((at, nbytes))
        file.verify("big")
        ends = range(offset, offset + length, 2 * ALIGN)
        assert reads == [(at, min(2 * ALIGN, offset + length - at)) for at in ends]
        assert file.statistics.verify_seconds == 0 == file.statistics.fallbacks
        assert file.read("big", length) == content(path, "big")
        assert file.statistics.verify_seconds == 0  # nothing was left to be compared


@pytest.mark.parametrize("direct", [True, False])
def test_verifying_on_a_failing_disk_is_as_reading_there(path: Path, direct: bool) -> None:
    offset, _ = span(path, "big")
    with NativeFile(path, chunk_bytes=ALIGN, direct=direct) as file:
        file.on_read = lambda at, nbytes: 5000
        file.verify("table")
        for answer, status in ((-errno.EIO, native.READ_FAILED), (0, native.TRUNCATED_FILE)):
            file.on_read = lambda at, nbytes, answer=answer: answer if at > offset else None  # type: ignore[misc]
            with refused(status, "weights: "):
                file.verify("big")
        file.on_read = None
        damage(path, offset + 3 * ALIGN)
        with refused(native.CHECKSUM_MISMATCH, f"{path}: run big has xxh3 [0-9a-f]{{16}}, expected"):
            file.verify("big")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_ends_early_without_having_changed_is_truncated(path: Path, way: Way) -> None:
    offset, length = span(path, "big")
    with NativeFile(path, chunk_bytes=ALIGN, **way) as file:
        file.on_read = lambda at, nbytes: 0 if at >= offset + 3 * ALIGN else None
        with refused(native.TRUNCATED_FILE, rf"ends at byte \d+, {ALIGN} bytes early; copy it again"):
            file.read("big", length)


def test_a_read_that_the_kernel_cannot_queue_is_done_by_a_blocking_one(path: Path) -> None:
    with NativeFile(path, chunk_bytes=2 * ALIGN) as file:
        if not file.io_mode.endswith("io_uring"):
            pytest.skip(f"no io_uring here: {file.io_mode}")
        answers = iter([-errno.EAGAIN])
        file.on_read = lambda offset, nbytes: next(answers, None)
        _, length = span(path, "big")
        assert file.read("big", length) == content(path, "big")
        assert file.statistics.fallbacks == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_disk_delays_and_changes_nothing(path: Path, way: Way) -> None:
    _, length = span(path, "big")
    arrived, go = threading.Event(), threading.Event()

    def slow(offset: int, nbytes: int) -> None:
        arrived.set()
        assert go.wait(60)

    with NativeFile(path, **way) as file:
        file.on_read = slow
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(file.read("big", length)))
        reader.start()
        assert arrived.wait(60)
        assert not found
        go.set()
        reader.join()
        assert found == [content(path, "big")]


# --- changing and damaged files --------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [3 * ALIGN, 3 * ALIGN + 100, 0])
def test_a_file_truncated_after_opening_has_changed(path: Path, way: Way, size: int) -> None:
    full = path.stat().st_size
    offset, length = span(path, "big")
    with NativeFile(path, **way) as file:
        os.truncate(path, size)
        with refused(native.FILE_CHANGED, f"weights: its size changed from {full} to {size}"):
            file.read("big", length)
        with refused(native.FILE_CHANGED, "size changed"):
            file.read_bytes(offset + length - 10, 10)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_truncated_while_a_run_is_read_has_changed(path: Path, way: Way) -> None:
    offset, length = span(path, "big")

    def cut(at: int, nbytes: int) -> None:
        if at == offset:
            os.truncate(path, offset + ALIGN)

    with NativeFile(path, threads=1, chunk_bytes=ALIGN, **way) as file:
        file.on_read = cut
        with refused(native.FILE_CHANGED, "size changed"):
            file.read("big", length)


@pytest.mark.parametrize("way", WAYS)
def test_a_replaced_file_is_read_to_the_end_and_blamed_when_a_read_fails(path: Path, way: Way) -> None:
    _, length = span(path, "big")
    expected = content(path, "big")
    with NativeFile(path, **way) as file:
        other = path.with_name("other")
        write(other, SPECS, random_data(SPECS, seed=1))
        os.replace(other, path)
        assert file.read("big", length) == expected  # the open file is still the old one, whole and verified
        file.on_read = lambda offset, nbytes: -errno.EIO
        with refused(native.FILE_CHANGED, "another file took its place"):
            file.read("small", ALIGN)
        path.unlink()
        with refused(native.FILE_CHANGED, "no longer at its path"):
            file.read("small", ALIGN)


def test_a_file_written_to_after_verification_is_verified_again(path: Path) -> None:
    with NativeFile(path) as file:
        file.read("small", ALIGN)
        damage(path, span(path, "small")[0])
        os.utime(path, ns=(1, 1))
        with refused(native.FILE_CHANGED, "was written to"):
            file.read("small", ALIGN)


def test_touching_a_file_costs_one_more_verification_and_no_error(path: Path) -> None:
    with NativeFile(path) as file:
        file.read("small", ALIGN)
        once = file.statistics.verify_seconds
        file.read("small", ALIGN)
        assert file.statistics.verify_seconds == once
        os.utime(path, ns=(1, 1))
        file.read("small", ALIGN)
        twice = file.statistics.verify_seconds
        assert twice > once
        file.read("small", ALIGN)
        assert file.statistics.verify_seconds == twice


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["big", "small", "table"])
def test_one_flipped_bit_is_found_on_the_first_read(path: Path, way: Way, name: str) -> None:
    offset, length = span(path, name)
    damage(path, offset + length - 1)  # padding is part of the run
    with NativeFile(path, **way) as file:
        for run in RUNS:
            if run.name != name:
                file.read(run.name, run.length)
        for _ in range(2):  # a run that was found damaged is not taken for verified
            with refused(native.CHECKSUM_MISMATCH, f"{path}: run {name} has xxh3 [0-9a-f]{{16}}, expected"):
                file.read(name, length)
        assert file.statistics.runs_read == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_hashed_once(path: Path, way: Way) -> None:
    with NativeFile(path, **way) as file:
        file.read("small", ALIGN)
        damage(path, span(path, "small")[0])
        file.read("small", ALIGN)  # rot after the first read is what the once-per-opening rule accepts
    with NativeFile(path, **way) as file, refused(native.CHECKSUM_MISMATCH, "run small"):
        file.read("small", ALIGN)


# --- the benchmark ---------------------------------------------------------------------------------------


def test_steps_beside_the_disk_begin_with_the_testing_library(
    native_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash_reader.testing_library.cache_clear()
    monkeypatch.setenv("EDGEKIT_TESTING_LIB", str(tmp_path / "none.so"))
    monkeypatch.setattr(steps, "open_session", lambda *_: pytest.fail("a session was opened first"))
    result = CliRunner().invoke(steps.main, [str(native_bundle), "--disk"])
    assert result.exit_code == 1 and "none.so: the testing library is missing; build with" in result.stderr


def test_passes_are_timed_alike(native_bundle: Path) -> None:
    """A step and passes of sequences have the same row, whose parts make up the whole."""
    options = SessionOptions(positions=0, canvas=8)
    step = steps.measure(str(native_bundle), options, positions=8, steps=1)["first_step"]
    both = sequences.measure(str(native_bundle), None, sequences=2, positions=8, rounds=1)
    for row in (step, both["one"], both["several"]):
        assert row.keys() == step.keys()
        parts = [row[f"{part}_seconds"] for part in ("compute", "wait", "other")]
        assert min(parts) >= 0 and sum(parts) == pytest.approx(row["seconds"])


def test_the_benchmark_times_every_way(path: Path) -> None:
    with FlashFile(path) as file:
        if not file.io_mode.startswith("direct"):
            pytest.skip(f"the limit is that of direct reads: {file.io_mode}")
    sizes = "--gigabytes 0.0003 --run-mib 0.0625 --ring-mib 0.25 --chunk-mib 0.03125 --threads 1,2 --rounds 1"
    done = CliRunner().invoke(
        flash_reader.main, ["--folder", str(path.parent), "--passes", "2", *sizes.split()]
    )
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines() if "%" in line]
    assert [line[1] for line in lines if line[0] == "limit"] == ["1", "2"]
    assert [line[1] for line in lines if line[0] == "pool"] == ["1", "2"]
    assert lines[-1][0] == "FlashFile.read_into,"
    assert all(float(line[-5]) > 0 for line in lines)
    assert os.listdir(path.parent) == ["weights"]
