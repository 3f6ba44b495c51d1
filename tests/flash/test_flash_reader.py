"""Reading flash files: exact bytes or one typed error, from honest, damaged, hostile and failing files."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flash_files import ALIGN, Data, Disk, byte_runs, header_of, put_header, random_data, write

from edgekit.flashload.blockio import SeekingPreadv
from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    FileChanged,
    InvalidRequest,
    MalformedFile,
    NotAFlashFile,
    OpenFailed,
    ReadFailed,
    TruncatedFile,
    UnsupportedVersion,
)
from edgekit.flashload.format import RunSpec, TensorSpec
from edgekit.flashload.reader import FlashFile, row_spans

SPECS = [
    RunSpec("big", (TensorSpec("w", "U8", (1000, 333)), TensorSpec("norm", "BF16", (333,)))),
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


def damage(path: Path, position: int) -> None:
    """Flip a byte in place and keep the modification time, as bit rot does."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- honest files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("chunk_bytes", [ALIGN, 3 * ALIGN, 4 << 20])
def test_a_run_is_read_exactly(path: Path, data: Data, direct: bool, threads: int, chunk_bytes: int) -> None:
    disk = Disk()
    raw = path.read_bytes()
    with FlashFile(path, direct=direct, threads=threads, chunk_bytes=chunk_bytes, preadv=disk) as file:
        assert list(file.runs) == ["big", "small", "table"]
        for name, run in file.runs.items():
            disk.reads.clear()
            buffer = AlignedBuffer(run.length + ALIGN)
            file.read_into(name, buffer.view)
            assert bytes(buffer.view) == raw[run.offset : run.offset + run.length] + bytes(ALIGN)
            assert sorted(disk.reads) == [
                (run.offset + start, min(chunk_bytes, run.length - start))
                for start in range(0, run.length, chunk_bytes)
            ]
            for tensor, view in file.tensor_views(name, buffer.view).items():
                assert np.array_equal(view, data[name][tensor], equal_nan=view.dtype.kind == "f")
        assert file.verified == {"big", "small", "table"}
        assert file.stats.fallbacks == 0


def test_direct_reads_are_used_where_the_file_system_has_them(path: Path) -> None:
    with FlashFile(path) as file, FlashFile(path, direct=False) as buffered:
        assert file.io_mode in ("direct", "nocache") or file.io_mode.startswith("buffered: ")
        assert file.io_mode != "buffered: asked for"
        assert buffered.io_mode == "buffered: asked for"
        # An independent probe of the same file system.
        flag = getattr(os, "O_DIRECT", None)
        if flag is not None:
            try:
                os.close(os.open(path, os.O_RDONLY | flag))
            except OSError:
                assert file.io_mode.startswith("buffered: the file system refuses O_DIRECT")
            else:
                assert file.io_mode == "direct" or "an O_DIRECT read failed" in file.io_mode


def test_opening_reads_the_header_alone(path: Path) -> None:
    disk = Disk()
    with FlashFile(path, preadv=disk) as file:
        assert file.layout.data_start == ALIGN
    assert max(offset + nbytes for offset, nbytes in disk.reads) == ALIGN


def test_a_buffer_off_the_page_boundary_is_read_through_the_cache_and_counted(path: Path, data: Data) -> None:
    with FlashFile(path) as file:
        buffer = AlignedBuffer(file.runs["small"].length + 64)
        view = buffer.view[64:]
        file.read_into("small", view)
        assert np.array_equal(
            file.tensor_views("small", view)["s"].view(np.uint32), data["small"]["s"].view(np.uint32)
        )
        assert file.stats.fallbacks == (1 if file.io_mode == "direct" else 0)


def test_load_keeps_its_memory_alive_through_the_views(path: Path, data: Data) -> None:
    with FlashFile(path) as file:
        buffer, views = file.load("big")
        assert buffer.close() is False
        del buffer
    assert np.array_equal(views["w"], data["big"]["w"])


def test_the_stand_in_for_preadv_reads_the_same(path: Path, data: Data) -> None:
    with FlashFile(path, direct=False, preadv=SeekingPreadv(), chunk_bytes=ALIGN) as file:
        _, views = file.load("big")
        assert np.array_equal(views["w"], data["big"]["w"])
        assert np.array_equal(file.read_rows("w", [999, 0]), data["big"]["w"][[999, 0]])


def test_many_threads_may_read_at_once(path: Path, data: Data) -> None:
    failures: list[str] = []

    def reader(name: str) -> None:
        for _ in range(10):
            _, views = file.load(name)
            failures.extend(t for t, view in views.items() if view.tobytes() != data[name][t].tobytes())

    with FlashFile(path, chunk_bytes=ALIGN) as file:
        threads = [threading.Thread(target=reader, args=(name,)) for name in data for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_requests_that_cannot_be_served_are_refused(path: Path) -> None:
    file = FlashFile(path)
    with pytest.raises(InvalidRequest, match="no run named 'x'"):
        file.read_into("x", bytearray(ALIGN))
    with pytest.raises(InvalidRequest, match="writable contiguous buffer of 16384 bytes, got 16383"):
        file.read_into("small", bytearray(ALIGN - 1))
    with pytest.raises(InvalidRequest, match="read-only"):
        file.read_into("small", bytes(ALIGN))
    with pytest.raises(InvalidRequest, match="chunk_bytes"):
        FlashFile(path, chunk_bytes=1000)
    file.close()
    file.close()
    with pytest.raises(InvalidRequest, match="closed"):
        file.read_into("small", bytearray(ALIGN))
    with pytest.raises(InvalidRequest, match="closed"):
        file.read_rows("rows", [0])


# --- rows ------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(rows=st.lists(st.integers(0, 499), max_size=40))
def test_rows_are_those_of_the_table(shared_file: tuple[FlashFile, Data], rows: list[int]) -> None:
    file, data = shared_file
    for tensor in ("rows", "scale"):
        found = file.read_rows(tensor, rows)
        expected = data["table"][tensor][np.array(rows, int)]
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FlashFile, Data]]:
    path = tmp_path_factory.mktemp("rows") / "weights"
    arrays = random_data(SPECS)
    write(path, SPECS, arrays)
    with FlashFile(path) as file:
        yield file, arrays


@given(st.sets(st.integers(0, 10_000), max_size=60), st.sampled_from([1, 100, 3000, 70_000]))
def test_row_spans_cover_every_row_once_with_small_gaps(rows: set[int], row_bytes: int) -> None:
    ordered = np.array(sorted(rows), np.int64)
    covered: list[int] = []
    for first, last in row_spans(ordered, row_bytes):
        covered += range(first, last + 1)
        span = (ordered[last] - ordered[first] + 1) * row_bytes
        assert span <= max(1 << 20, row_bytes)
        gaps = np.diff(ordered[first : last + 1]) - 1
        assert np.all(gaps * row_bytes <= ALIGN)
    assert covered == list(range(len(rows)))


def test_near_rows_share_a_read_and_far_rows_do_not(path: Path) -> None:
    disk = Disk()
    with FlashFile(path, preadv=disk) as file:
        disk.reads.clear()
        file.read_rows("rows", [3, 1, 2, 499, 2])
        base = file.runs["table"].offset
        assert sorted(disk.reads) == [(base + 80, 240), (base + 499 * 80, 80)]


@pytest.mark.parametrize(
    ("tensor", "rows", "message"),
    [
        ("x", [0], "no tensor named 'x'"),
        ("rows", [500], r"rows 500\.\.500 are not all in 0\.\.499"),
        ("rows", [-1, 3], r"rows -1\.\.3"),
        ("rows", [[1]], "1-D array of integers"),
        ("rows", [0.5], "1-D array of integers"),
    ],
)
def test_rows_that_are_not_there_are_refused(path: Path, tensor: str, rows: list[Any], message: str) -> None:
    with FlashFile(path) as file, pytest.raises(InvalidRequest, match=message):
        file.read_rows(tensor, rows)


# --- failing disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("step", [4096, 5000, 100])
def test_short_reads_are_continued(path: Path, data: Data, direct: bool, step: int) -> None:
    disk = Disk(lambda offset, nbytes: min(step, nbytes) if offset >= ALIGN else None)
    with FlashFile(path, direct=direct, preadv=disk) as file:
        _, views = file.load("big")
        assert np.array_equal(views["w"], data["big"]["w"])
        assert file.stats.short_reads > 0


def test_interrupted_reads_are_repeated(path: Path, data: Data) -> None:
    interrupts = iter([True, True, False, True] + [False] * 1000)

    def interrupt(offset: int, nbytes: int) -> None:
        if offset >= ALIGN and next(interrupts):
            raise InterruptedError(errno.EINTR, "Interrupted system call")

    with FlashFile(path, preadv=Disk(interrupt), threads=1, chunk_bytes=ALIGN) as file:
        _, views = file.load("big")
        assert np.array_equal(views["w"], data["big"]["w"])
        assert file.stats.interrupts == 3


def failing(error: OSError, at: int) -> Callable[[int, int], int | None]:
    def on_read(offset: int, nbytes: int) -> int | None:
        if offset <= at < offset + nbytes:
            raise error
        return None

    return on_read


@pytest.mark.parametrize("direct", [True, False])
def test_a_refused_read_is_an_error_and_the_next_one_works(path: Path, data: Data, direct: bool) -> None:
    disk = Disk(failing(OSError(errno.EIO, "Input/output error"), 5 * ALIGN))
    with FlashFile(path, direct=direct, preadv=disk, chunk_bytes=ALIGN) as file:
        with pytest.raises(
            ReadFailed, match=r"weights: reading 16384 bytes at 81920 failed \(Input/output error\)"
        ):
            file.load("big")
        assert "big" not in file.verified
        file.load("small")
        disk.on_read = None
        _, views = file.load("big")
        assert np.array_equal(views["w"], data["big"]["w"])


def test_a_refused_row_is_an_error(path: Path) -> None:
    disk = Disk()
    with FlashFile(path, preadv=disk) as file:
        disk.on_read = failing(OSError(errno.EIO, "Input/output error"), file.runs["table"].offset + 80)
        file.read_rows("rows", [0, 400])
        with pytest.raises(ReadFailed):
            file.read_rows("rows", [400, 1])


def test_nothing_writes_to_the_buffer_after_a_failed_read_returned(path: Path) -> None:
    started, go = threading.Event(), threading.Event()

    def on_read(offset: int, nbytes: int) -> None:
        if offset == 2 * ALIGN:
            started.set()
            assert go.wait(60)
        elif offset == 3 * ALIGN:
            assert started.wait(60)
            raise OSError(errno.EIO, "Input/output error")

    with FlashFile(path, preadv=Disk(on_read), chunk_bytes=ALIGN, threads=2) as file:
        # The second chunk is held back, the third one fails: the read may not end before the second did.
        run = file.runs["big"]
        buffer = AlignedBuffer(run.length)
        ended = threading.Event()
        pending = file.submit(run, buffer.view, lambda done: ended.set())
        assert started.wait(60)
        assert not ended.is_set()
        go.set()
        with pytest.raises(ReadFailed):
            pending.wait()
        assert ended.wait(60)


def test_a_file_that_ends_early_without_having_changed_is_truncated(path: Path) -> None:
    disk = Disk(lambda offset, nbytes: 0 if offset >= 4 * ALIGN else None)
    with (
        FlashFile(path, preadv=disk, chunk_bytes=ALIGN) as file,
        pytest.raises(TruncatedFile, match="ends at byte"),
    ):
        file.load("big")


# --- changing files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_truncated_after_opening_has_changed(path: Path, direct: bool) -> None:
    with FlashFile(path, direct=direct) as file:
        os.truncate(path, 3 * ALIGN)
        with pytest.raises(FileChanged, match=f"size changed from {file.layout.size} to {3 * ALIGN}"):
            file.load("big")
        with pytest.raises(FileChanged):
            file.read_rows("rows", [0])


def test_a_replaced_file_is_read_to_the_end_and_blamed_when_a_read_fails(path: Path, data: Data) -> None:
    disk = Disk()
    with FlashFile(path, preadv=disk) as file:
        other = path.with_name("other")
        write(other, SPECS, random_data(SPECS, seed=1))
        os.replace(other, path)
        _, views = file.load("big")  # the open file is still the old one, whole and verified
        assert np.array_equal(views["w"], data["big"]["w"])
        with pytest.raises(FileChanged, match="another file took its place"):
            file.check_identity()
        disk.on_read = failing(OSError(errno.EIO, "Input/output error"), file.runs["small"].offset)
        with pytest.raises(FileChanged, match="another file took its place"):
            file.load("small")


def test_a_deleted_file_is_told(path: Path) -> None:
    with FlashFile(path) as file:
        file.check_identity()
        path.unlink()
        file.load("big")
        with pytest.raises(FileChanged, match="no longer at its path"):
            file.check_identity()


def test_a_file_written_to_after_verification_is_verified_again(path: Path) -> None:
    with FlashFile(path) as file:
        file.load("small")
        position = file.runs["small"].offset
        damage(path, position)
        os.utime(path, ns=(1, 1))
        with pytest.raises(FileChanged, match="was written to"):
            file.load("small")


def test_touching_a_file_costs_one_more_verification_and_no_error(path: Path) -> None:
    with FlashFile(path) as file:
        file.load("small")
        file.load("big")
        os.utime(path, ns=(1, 1))
        file.load("small")
        assert file.verified == {"small"}


# --- damaged files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["big", "small", "table"])
def test_one_flipped_bit_is_found_on_the_first_read(path: Path, name: str) -> None:
    with FlashFile(path) as file:
        run = file.runs[name]
    damage(path, run.offset + run.length - 1)  # padding is part of the run
    with FlashFile(path) as file:
        for other in file.runs:
            if other != name:
                file.load(other)
                file.verify(other)
        with pytest.raises(ChecksumMismatch, match=f"weights: run {name} has xxh3"):
            file.load(name)
        with pytest.raises(ChecksumMismatch, match=name):
            file.verify(name)
        assert name not in file.verified


def test_verify_needs_one_chunk_of_memory_and_counts_as_the_first_read(path: Path) -> None:
    disk = Disk()
    with FlashFile(path, preadv=disk, chunk_bytes=2 * ALIGN) as file:
        file.verify("big")
        assert file.verified == {"big"}
        assert len(set(disk.addresses[-5:])) == 1


def test_a_run_is_hashed_once(path: Path) -> None:
    with FlashFile(path) as file:
        file.load("small")
        damage(path, file.runs["small"].offset)
        file.load("small")  # rot after the first read is what the once-per-opening rule accepts
    with FlashFile(path) as file, pytest.raises(ChecksumMismatch):
        file.load("small")


# --- hostile files ---------------------------------------------------------------------------------------


def open_and_close(path: Path) -> None:
    FlashFile(path).close()


def expect(path: Path, error: type[BundleError], message: str) -> None:
    with pytest.raises(BundleError, match=message) as caught:
        open_and_close(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    expect(tmp_path, OpenFailed, "is a directory")
    expect(tmp_path / "none", OpenFailed, "No such file")
    os.mkfifo(tmp_path / "pipe")
    expect(tmp_path / "pipe", OpenFailed, "not a regular file")
    with pytest.raises(OpenFailed, match="null byte"):
        open_and_close(Path("a\0b"))


def test_permission_denied(path: Path) -> None:
    path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root may read everything
    try:
        expect(path, OpenFailed, "Permission denied")
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", TruncatedFile, "has 0 bytes"),
        (b"\x10\0\0", TruncatedFile, "has 3 bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            NotAFlashFile,
            "git lfs pull",
        ),
        (b"GGUF\x03\0\0\0" + bytes(100), NotAFlashFile, "header of 14064895815 bytes"),
        (b"PK\x03\x04" + bytes(100), NotAFlashFile, "announce a header of 67324752 bytes"),
        (b"\xff" * 100, NotAFlashFile, "this is not a safetensors file"),
        ((1000).to_bytes(8, "little") + b"{}", TruncatedFile, "needs 1008 bytes but the file has 10"),
        ((2).to_bytes(8, "little") + b"[]", NotAFlashFile, "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{]", MalformedFile, "not valid JSON"),
        ((0).to_bytes(8, "little"), MalformedFile, "not valid JSON"),
        ((4).to_bytes(8, "little") + b"{\xff\xff}", MalformedFile, "not valid JSON"),
        ((2).to_bytes(8, "little") + b"{}", NotAFlashFile, "without runs"),
    ],
)
def test_files_without_our_header(
    tmp_path: Path, content: bytes, error: type[BundleError], message: str
) -> None:
    (tmp_path / "f").write_bytes(content)
    expect(tmp_path / "f", error, message)


def test_an_ordinary_safetensors_file_is_told_apart(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "f", metadata={"format": "pt"})
    expect(tmp_path / "f", NotAFlashFile, "safetensors file without runs; convert it")


def hostile_base(tmp_path: Path) -> tuple[Path, dict[str, Any], bytes]:
    """Two runs r0 (t0 of 100 bytes, pad) and r1 (t1 of 16384 + 1 bytes, pad)."""
    specs = byte_runs([100, ALIGN + 1])
    write(tmp_path / "f", specs, random_data(specs))
    header, content = header_of(tmp_path / "f")
    assert list(header) == ["__metadata__", "t0", "__pad__.0", "t1", "__pad__.1"]
    return tmp_path / "f", header, content


def test_the_base_of_the_hostile_files_is_honest(tmp_path: Path) -> None:
    path, header, content = hostile_base(tmp_path)
    put_header(path, header, content)
    open_and_close(path)


def tensor(name: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(changes)


def runs(change: Callable[[list[Any]], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(header: dict[str, Any]) -> None:
        rows = json.loads(header["__metadata__"]["edgekit.runs"])
        result = change(rows)
        header["__metadata__"]["edgekit.runs"] = json.dumps(rows if result is None else result)

    return apply


def run_field(row: int, column: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return runs(lambda rows: rows[row].__setitem__(column, value))


def meta(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].update({key: value})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (meta("edgekit.format", "3"), UnsupportedVersion, "flash format '3'"),
        (meta("edgekit.format", 1), MalformedFile, "__metadata__ must map names to strings"),
        (lambda h: h.update(__metadata__=[]), MalformedFile, "__metadata__ must map"),
        (meta("edgekit.runs", "{"), MalformedFile, "edgekit.runs: not valid JSON"),
        (meta("edgekit.runs", "[]"), MalformedFile, "non-empty list"),
        (meta("edgekit.runs", "[" * 100_000), MalformedFile, "nested too deeply|not valid JSON"),
        (runs(lambda rows: {"r0": 1}), MalformedFile, "non-empty list"),
        (runs(lambda rows: rows.append(["x", 1])), MalformedFile, "a run must be"),
        (runs(lambda rows: rows.append([1, 2, 3, "4"])), MalformedFile, "a run must be"),
        (run_field(1, 0, "r0"), MalformedFile, "run r0 is listed twice"),
        (run_field(1, 0, "a\nb"), MalformedFile, "cannot be printed"),
        (run_field(1, 3, "xyz"), MalformedFile, "'xyz' is not an xxh3-64 digest"),
        (run_field(1, 3, "0" * 15 + "G"), MalformedFile, "not an xxh3-64 digest"),
        (run_field(1, 1, 2 * ALIGN + 64), MalformedFile, "not aligned to 16384"),
        (run_field(1, 2, 2 * ALIGN - 64), MalformedFile, "not aligned to 16384"),
        (run_field(1, 1, 3 * ALIGN), MalformedFile, "starts at 49152, expected 32768"),
        (run_field(1, 1, ALIGN), MalformedFile, "starts at 16384, expected 32768"),
        (run_field(1, 1, 2.0 * ALIGN), MalformedFile, "is no span"),
        (run_field(1, 1, True), MalformedFile, "is no span"),
        (run_field(1, 2, 0), MalformedFile, "is no span"),
        (run_field(1, 2, -ALIGN), MalformedFile, "is no span"),
        (run_field(1, 2, 2**63 - ALIGN), MalformedFile, "is no span"),
        (run_field(1, 2, 2**64), MalformedFile, "is no span"),
        (run_field(1, 2, 2**40), MalformedFile, r"no tensor covers bytes 49152\.\.1099511644160 of run r1"),
        (run_field(1, 2, ALIGN), MalformedFile, "t1 crosses the end of run r1"),
        (runs(lambda rows: rows[:1]), MalformedFile, "t1 lies outside every run"),
        (tensor("t1", dtype="U16"), MalformedFile, "U16 .16385. needs 32770 bytes"),
        (tensor("t1", dtype="F4"), MalformedFile, "unknown dtype 'F4'"),
        (tensor("t1", dtype=["U8"]), MalformedFile, "unknown dtype"),
        (
            tensor("t1", shape=[ALIGN]),
            MalformedFile,
            "needs 16384 bytes, its offsets 16384..32769 give 16385",
        ),
        (tensor("t1", shape=[2**62, 8]), MalformedFile, "overflows"),
        (tensor("t1", shape=[2**32, 2**32, 1]), MalformedFile, "overflows"),
        (tensor("t1", shape=[2**64]), MalformedFile, "bad shape"),
        (tensor("t1", shape=[-1]), MalformedFile, "bad shape"),
        (tensor("t1", shape=[0]), MalformedFile, "bad shape"),
        (tensor("t1", shape=[16385.0]), MalformedFile, "bad shape"),
        (tensor("t1", shape=16385), MalformedFile, "bad shape"),
        (tensor("t1", data_offsets=[0]), MalformedFile, "bad data_offsets"),
        (tensor("t1", data_offsets=[-1, 5]), MalformedFile, "bad data_offsets"),
        (tensor("t1", data_offsets=[2**63, 2**63 + 16385]), MalformedFile, "bad data_offsets"),
        (tensor("t1", data_offsets=[32769, 16384]), MalformedFile, "give -16385"),
        (tensor("t1", data_offsets=[ALIGN - 1, 2 * ALIGN]), MalformedFile, "t1 overlaps the one before it"),
        (
            tensor("t1", data_offsets=[ALIGN + 1, 2 * ALIGN + 2]),
            MalformedFile,
            "no tensor covers bytes 16384..16385",
        ),
        (tensor("t1", extra=1), MalformedFile, "exactly dtype, shape and data_offsets"),
        (lambda h: h.update(t1=7), MalformedFile, "exactly dtype, shape and data_offsets"),
        (lambda h: h.pop("t1"), MalformedFile, "no tensor covers bytes 16384"),
        (lambda h: h.pop("__pad__.1"), MalformedFile, "no tensor covers bytes 32769"),
        (lambda h: h.update({"__pad__.1": h.pop("t1")}), MalformedFile, "no tensor covers bytes 32769"),
        (lambda h: h.update({"__pad__.9": h.pop("t1")}), MalformedFile, "run r1 holds no tensors"),
        (lambda h: h.update({"x": h.pop("__pad__.0")}), MalformedFile, "x starts 100 bytes into run r0"),
        (tensor("__pad__.0", dtype="I8"), MalformedFile, "padding must be U8"),
        (lambda h: h.update({"a\x1b[2J": h.pop("t1")}), MalformedFile, "cannot be printed"),
        (lambda h: h.update({"\ud800": h.pop("t1")}), MalformedFile, "cannot be printed"),
    ],
)
def test_hostile_headers(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], error: type[BundleError], message: str
) -> None:
    path, header, content = hostile_base(tmp_path)
    change(header)
    start = ALIGN if len(json.dumps(header)) < ALIGN - 8 else 16 * ALIGN
    put_header(path, header, content, data_start=start)
    expect(path, error, message)


def test_hostile_header_text(tmp_path: Path) -> None:
    path, header, content = hostile_base(tmp_path)
    text = json.dumps(header)
    put_header(path, text[:-1] + ', "t0": ' + json.dumps(header["t0"]) + "}", content)
    expect(path, MalformedFile, "the name 't0' appears twice")
    put_header(path, text.replace("[100]", "[NaN]", 1), content)
    expect(path, MalformedFile, "NaN is not a JSON number")
    put_header(path, text.replace("[100]", "[" + "9" * 5000 + "]", 1), content)
    expect(path, MalformedFile, "not valid JSON")
    put_header(path, '{"a":' * 2000, content)
    expect(path, MalformedFile, "nested too deeply|not valid JSON")


def test_sizes_that_do_not_match_the_header(tmp_path: Path) -> None:
    path, header, content = hostile_base(tmp_path)
    put_header(path, header, content[:-1])
    expect(path, TruncatedFile, "has 65535 of 65536 bytes")
    put_header(path, header, content + b"\0")
    expect(path, MalformedFile, "1 bytes follow the last run")
    put_header(path, header, content, data_start=ALIGN + 64)
    expect(path, MalformedFile, "data starts at 16448, not at a multiple")
    put_header(path, header, content, data_start=2 * ALIGN)
    expect(path, MalformedFile, "run r0 starts at 16384, expected 32768")


def test_every_truncation_of_a_file_is_an_error(tmp_path: Path) -> None:
    path, _, _ = hostile_base(tmp_path)
    raw = path.read_bytes()
    for size in [*range(0, 80), *range(80, len(raw), 1009)]:
        path.write_bytes(raw[:size])
        with pytest.raises(TruncatedFile):
            open_and_close(path)


def test_the_digest_is_that_of_the_xxhash_library(path: Path) -> None:
    raw = path.read_bytes()
    with FlashFile(path) as file:
        for run in file.runs.values():
            assert run.xxh3 == xxhash.xxh3_64(raw[run.offset : run.offset + run.length]).hexdigest()
