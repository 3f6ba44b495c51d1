"""Reading flash files from Python: exact bytes or one typed error, from honest, damaged and hostile files.

Files on disks that fail are those of test_native_reading.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flash_files import ALIGN, Data, byte_runs, damage, header_of, put_header, random_data, write

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    FileChanged,
    InvalidRequest,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
    UnsupportedVersion,
)
from edgekit.flashload.format import RunSpec, TensorSpec, layout
from edgekit.flashload.reader import FlashFile, tensor_views

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


# --- honest files ----------------------------------------------------------------------------------------


def test_a_file_tells_what_it_holds(path: Path) -> None:
    plan, raw = layout(SPECS), path.read_bytes()
    with FlashFile(path) as file:
        found = file.layout
        assert file.path == path and file.io_mode.startswith(("direct ", "nocache ", "buffered "))
        assert (found.size, found.data_start, found.plan_digest) == (len(raw), ALIGN, plan.plan_digest)
        for run, planned in zip(found.runs, plan.runs, strict=True):
            assert (run.name, run.offset, run.length) == (planned.name, planned.offset, planned.length)
            assert run.tensors == planned.tensors and run.segments == ()
            assert run.xxh3 == xxhash.xxh3_64_hexdigest(raw[run.offset : run.offset + run.length])
        assert list(file.runs.items()) == [(run.name, run) for run in found.runs]
        assert file.tensors["norm"] == (file.run("big"), file.run("big").tensors[1])


def test_a_run_is_read_exactly(path: Path, data: Data) -> None:
    raw = path.read_bytes()
    with FlashFile(path) as file:
        for name, run in file.runs.items():
            for shift in (0, 64):  # off the page boundary it is read through the page cache
                buffer = AlignedBuffer(run.length + ALIGN)
                file.read_into(name, buffer.view[shift:])
                expected = bytes(shift) + raw[run.offset : run.offset + run.length] + bytes(ALIGN - shift)
                assert bytes(buffer.view) == expected
                for tensor, view in tensor_views(run, buffer.view[shift:]).items():
                    assert view.tobytes() == data[name][tensor].tobytes()


@pytest.mark.parametrize("of", [bytearray, lambda n: np.zeros(n // 4, np.float32), AlignedBuffer])
def test_any_writable_memory_takes_a_run(path: Path, of: Callable[[int], Any]) -> None:
    memory = of(ALIGN)
    buffer = memory.view if isinstance(memory, AlignedBuffer) else memory
    with FlashFile(path) as file:
        file.read_into("small", buffer)
        run = file.run("small")
        assert bytes(memoryview(buffer).cast("B")) == path.read_bytes()[run.offset : run.offset + run.length]


def test_load_keeps_its_memory_alive_through_the_views(path: Path, data: Data) -> None:
    with FlashFile(path) as file:
        buffer, views = file.load("big")
        assert all(view.ctypes.data % 64 == 0 and not view.flags.writeable for view in views.values())
        assert buffer.close() is False
        del buffer
    assert np.array_equal(views["w"], data["big"]["w"])


def test_many_threads_may_read_at_once(path: Path, data: Data) -> None:
    failures: list[str] = []

    def reader(name: str) -> None:
        for _ in range(10):
            _, views = file.load(name)
            failures.extend(t for t, view in views.items() if view.tobytes() != data[name][t].tobytes())

    with FlashFile(path) as file:
        threads = [threading.Thread(target=reader, args=(name,)) for name in data for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.mark.parametrize("name", ["x", "big\0", "\ud800"])
def test_requests_for_other_runs_are_refused(path: Path, name: str) -> None:
    with FlashFile(path) as file:
        for call in (
            lambda: file.run(name),
            lambda: file.read_into(name, bytearray(ALIGN)),
            lambda: file.load(name),
            lambda: file.verify(name),
        ):
            with pytest.raises(
                InvalidRequest, match="has no run named '.*'; it has 3 runs, the first is 'big'"
            ):
                call()


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (bytearray(ALIGN - 1), "run small needs a buffer of 16384 bytes, got 16383"),
        (bytearray(), "run small needs a buffer of 16384 bytes, got 0"),
        (bytes(ALIGN), "run small needs a buffer that is writable and contiguous"),
        (np.zeros((ALIGN, 2), np.uint8)[:, 0], "run small needs a buffer that is writable and contiguous"),
    ],
)
def test_buffers_that_cannot_hold_a_run_are_refused(path: Path, buffer: Any, message: str) -> None:
    with FlashFile(path) as file, pytest.raises(InvalidRequest, match=message):
        file.read_into("small", buffer)


# --- closing ---------------------------------------------------------------------------------------------


def test_a_closed_file_still_tells_what_it_held_and_reads_nothing(path: Path) -> None:
    file = FlashFile(path)
    file.close()
    file.close()
    assert list(file.runs) == ["big", "small", "table"] and file.run("big") is file.runs["big"]
    for call in (
        lambda: file.read_into("small", bytearray(ALIGN)),
        lambda: file.verify("small"),
        lambda: file.read_rows("rows"),
        lambda: file.run("x"),
    ):
        with pytest.raises(InvalidRequest, match="weights: is closed"):
            call()


class Held:
    """The library, where reading a run waits."""

    def __init__(self, library: Any) -> None:
        self.library, self.begun, self.go = library, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def ek_flash_read_run(self, *arguments: Any) -> int:
        self.begun.set()
        assert self.go.wait(60)
        return int(self.library.ek_flash_read_run(*arguments))


def test_closing_waits_for_reads_under_way(path: Path, data: Data) -> None:
    file, found = FlashFile(path), list[bytes]()
    held = Held(file._library)
    file._library = held  # type: ignore[assignment]
    reader = threading.Thread(target=lambda: found.append(file.load("big")[1]["w"].tobytes()))
    reader.start()
    assert held.begun.wait(60)
    closer = threading.Thread(target=file.close)
    closer.start()
    while not file._closed:
        closer.join(0.001)
    with pytest.raises(InvalidRequest, match="is closed"):  # nothing begins any more
        file.verify("small")
    closer.join(0.05)
    assert closer.is_alive() and not found
    held.go.set()
    for thread in (reader, closer):
        thread.join(60)
    assert found == [data["big"]["w"].tobytes()]


def test_a_file_that_nobody_holds_is_closed(path: Path) -> None:
    def open_files() -> int:
        links = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(link == str(path.resolve()) for link in links)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    file = FlashFile(path)
    assert open_files() > 0
    gone = weakref.ref(file)
    _, views = file.load("small")
    del file
    gc.collect()
    assert gone() is None and open_files() == 0
    assert views["s"].shape == (3,)


# --- rows ------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(ends=st.tuples(st.integers(0, 500), st.integers(0, 500)))
def test_rows_are_those_of_the_table(shared_file: tuple[FlashFile, Data], ends: tuple[int, int]) -> None:
    file, data = shared_file
    first, last = sorted(ends)
    for tensor in ("rows", "scale"):
        found, expected = file.read_rows(tensor, first, last - first), data["table"][tensor][first:last]
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
        assert file.read_rows(tensor, first).tobytes() == data["table"][tensor][first:].tobytes()


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FlashFile, Data]]:
    path = tmp_path_factory.mktemp("rows") / "weights"
    arrays = random_data(SPECS)
    write(path, SPECS, arrays)
    with FlashFile(path) as file:
        yield file, arrays


@pytest.mark.parametrize(
    ("tensor", "rows", "message"),
    [
        ("x", (), "no tensor named 'x'"),
        ("rows", (500, 1), "tensor rows: 1 rows from 500 on are not among its 500"),
        ("rows", (501,), "tensor rows: -1 rows from 501 on"),
        ("rows", (-1, 3), "tensor rows: 3 rows from -1 on"),
        ("rows", (3, -1), "tensor rows: -1 rows from 3 on"),
        ("one", (), "tensor one: a scalar has no rows"),
    ],
)
def test_rows_that_are_not_there_are_refused(
    tmp_path: Path, tensor: str, rows: tuple[int, ...], message: str
) -> None:
    specs = [*SPECS, RunSpec("last", (TensorSpec("one", "F32", ()),))]
    write(tmp_path / "f", specs, random_data(specs))
    with FlashFile(tmp_path / "f") as file, pytest.raises(InvalidRequest, match=message):
        file.read_rows(tensor, *rows)


# --- changing files --------------------------------------------------------------------------------------


def test_a_file_truncated_after_opening_has_changed(path: Path) -> None:
    with FlashFile(path) as file:
        os.truncate(path, 3 * ALIGN)
        with pytest.raises(FileChanged, match=f"size changed from {file.layout.size} to {3 * ALIGN}"):
            file.load("big")
        with pytest.raises(FileChanged):
            file.verify("big")
        with pytest.raises(FileChanged):
            file.read_rows("rows")


def test_a_replaced_file_is_read_to_the_end(path: Path, data: Data) -> None:
    with FlashFile(path) as file:
        other = path.with_name("other")
        write(other, SPECS, random_data(SPECS, seed=1))
        os.replace(other, path)
        _, views = file.load("big")  # the open file is still the old one, whole and verified
        assert np.array_equal(views["w"], data["big"]["w"])
        path.unlink()
        file.verify("table")


@pytest.mark.parametrize("first", ["load", "verify"])
def test_a_file_written_to_after_verification_is_verified_again(path: Path, first: str) -> None:
    with FlashFile(path) as file:
        getattr(file, first)("small")
        damage(path, file.runs["small"].offset)
        file.load("small")  # rot after the first read is what the once-per-opening rule accepts
        os.utime(path, ns=(1, 1))
        with pytest.raises(FileChanged, match="was written to"):
            file.load("small")
        with pytest.raises(FileChanged, match="was written to"):
            file.verify("small")


def test_a_touched_file_is_read_on(path: Path) -> None:
    with FlashFile(path) as file:
        file.load("small")
        os.utime(path, ns=(1, 1))
        file.load("small")
        file.verify("big")


# --- damaged files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["big", "small", "table"])
def test_one_flipped_bit_is_found_on_the_first_read(path: Path, name: str) -> None:
    with FlashFile(path) as file:
        run = file.runs[name]
    damage(path, run.offset + run.length - 1)  # padding is part of the run
    said = f"{path}: run {name} has xxh3 [0-9a-f]{{16}}, expected {run.xxh3}: the file is damaged"
    with FlashFile(path) as file:
        for other in file.runs:
            if other != name:
                file.load(other)
                file.verify(other)
        for read in (file.load, file.verify) * 2:  # what was found damaged is not taken for verified
            with pytest.raises(ChecksumMismatch, match=said):
                read(name)


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
            MalformedFile,
            "git lfs pull",
        ),
        (b"GGUF\x03\0\0\0" + bytes(100), MalformedFile, "header of 14064895815 bytes"),
        (b"PK\x03\x04" + bytes(100), MalformedFile, "announce a header of 67324752 bytes"),
        (b"\xff" * 100, MalformedFile, "this is not a safetensors file"),
        ((1000).to_bytes(8, "little") + b"{}", TruncatedFile, "needs 1008 bytes but the file has 10"),
        ((2).to_bytes(8, "little") + b"[]", MalformedFile, "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{]", MalformedFile, "not valid JSON"),
        ((0).to_bytes(8, "little"), MalformedFile, "not valid JSON"),
        ((4).to_bytes(8, "little") + b"{\xff\xff}", MalformedFile, "not valid JSON"),
        ((2).to_bytes(8, "little") + b"{}", MalformedFile, "without runs"),
    ],
)
def test_files_without_our_header(
    tmp_path: Path, content: bytes, error: type[BundleError], message: str
) -> None:
    (tmp_path / "f").write_bytes(content)
    expect(tmp_path / "f", error, message)


def test_an_ordinary_safetensors_file_is_told_apart(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "f", metadata={"format": "pt"})
    expect(tmp_path / "f", MalformedFile, "safetensors file without runs; convert it")


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
