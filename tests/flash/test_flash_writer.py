"""Writing flash files: the bytes are right, and an interrupted export goes on to the same bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flash_files import ALIGN, byte_runs, header_of, random_data, write

from edgekit.flashload.errors import (
    ChecksumMismatch,
    LayoutError,
    MalformedFile,
    OutputExists,
    ResumeMismatch,
    TruncatedFile,
    WriteFailed,
)
from edgekit.flashload.format import STORAGE_DTYPES, RunSpec, TensorSpec
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.writer import FlashWriter

MIXED = [
    RunSpec("embed", (TensorSpec("embed.codes", "I8", (50, 33)), TensorSpec("embed.scale", "F32", (50,)))),
    RunSpec(
        "layer.0",
        (
            TensorSpec("0.w", "U8", (300, 100)),
            TensorSpec("0.norm", "BF16", (100,)),
            TensorSpec("0.half", "F16", (3, 5)),
            TensorSpec("0.mask", "BOOL", (7,)),
            TensorSpec("0.scalar", "F64", ()),
        ),
    ),
    RunSpec("layer.1", (TensorSpec("1.w", "U8", (300, 100)), TensorSpec("1.ids", "I64", (9,)))),
]


def test_the_safetensors_library_loads_the_same_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = random_data(MIXED)
    digest = write(path, MIXED, data)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"]
    assert digest.size == path.stat().st_size
    assert digest.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    loaded = safetensors.numpy.load_file(path)
    for run in MIXED:
        for tensor in run.tensors:
            expected = data[run.name][tensor.name]
            found = loaded.pop(tensor.name)
            assert found.shape == tensor.shape
            assert found.dtype == (ml_dtypes.bfloat16 if tensor.dtype == "BF16" else expected.dtype)
            assert found.tobytes() == expected.tobytes()
    assert all(name.startswith("__pad__.") and not value.any() for name, value in loaded.items())
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["edgekit.format"] == "1"
        assert np.array_equal(file.get_tensor("1.ids"), data["layer.1"]["1.ids"])


def test_the_digests_in_the_header_are_those_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, MIXED, random_data(MIXED))
    header, _ = header_of(path)
    raw = path.read_bytes()
    rows = json.loads(header["__metadata__"]["edgekit.runs"])
    assert [row[0] for row in rows] == ["embed", "layer.0", "layer.1"]
    for _, offset, length, digest in rows:
        assert xxhash.xxh3_64_hexdigest(raw[offset : offset + length]) == digest


@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    dtypes = st.sampled_from(sorted(STORAGE_DTYPES))
    shapes = st.lists(st.integers(1, 40), max_size=3).map(tuple)
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    specs = [
        RunSpec(
            f"r{i}", tuple(TensorSpec(f"{i}.{j}", data.draw(dtypes), data.draw(shapes)) for j in range(count))
        )
        for i, count in enumerate(counts)
    ]
    arrays = random_data(specs, seed=data.draw(st.integers(0, 99)))
    path = tmp_path_factory.mktemp("f") / "f"
    write(path, specs, arrays)
    with FlashFile(path) as file:
        for run in specs:
            _, views = file.load(run.name)
            assert list(views) == [tensor.name for tensor in run.tensors]
            for name, view in views.items():
                assert view.dtype == arrays[run.name][name].dtype
                assert view.shape == arrays[run.name][name].shape
                assert view.tobytes() == arrays[run.name][name].tobytes()


def test_the_order_of_writing_and_the_size_of_pieces_do_not_matter(tmp_path: Path) -> None:
    data = random_data(MIXED)
    whole = write(tmp_path / "whole", MIXED, data)

    def pieces(run: RunSpec) -> Iterator[tuple[str, np.ndarray]]:
        for tensor in run.tensors:
            array = data[run.name][tensor.name]
            step = 7 if array.shape else 1
            for start in range(0, len(array) if array.shape else 1, step):
                yield tensor.name, array[start : start + step] if array.shape else array

    with FlashWriter(tmp_path / "pieces", MIXED) as writer:
        for run in reversed(MIXED):
            writer.write_run(run.name, pieces(run))
        assert writer.finish() == whole
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_strided_and_bfloat16_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    specs = [
        RunSpec(
            "r",
            (
                TensorSpec("t", "I32", (4, 3)),
                TensorSpec("b", "BF16", (5,)),
                TensorSpec("e", "F8_E4M3", (5,)),
            ),
        )
    ]
    numbers = np.arange(12, dtype=np.int32).reshape(3, 4).T
    with FlashWriter(tmp_path / "f", specs) as writer:
        writer.write_run(
            "r",
            {
                "t": numbers,
                "b": np.arange(5).astype(ml_dtypes.bfloat16),
                "e": np.arange(5).astype(ml_dtypes.float8_e4m3fn),
            },
        )
        writer.finish()
    with FlashFile(tmp_path / "f") as file:
        _, views = file.load("r")
        assert np.array_equal(views["t"], numbers)
        assert np.array_equal(views["b"].view(ml_dtypes.bfloat16), np.arange(5).astype(ml_dtypes.bfloat16))
        assert np.array_equal(views["e"].view(ml_dtypes.float8_e4m3fn).astype(int), np.arange(5))


PAIR = [
    RunSpec("r", (TensorSpec("a", "U8", (4, 2)), TensorSpec("b", "F32", (3,)), TensorSpec("c", "F32", ())))
]
A, B, C = np.zeros((4, 2), np.uint8), np.zeros(3, np.float32), np.zeros((), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": A, "b": B}, "tensor c is missing"),
        ({"a": A, "b": B, "c": C, "d": A}, "tensor d is not part of it"),
        ({"a": A.astype(np.int8), "b": B, "c": C}, "dtype int8 does not match U8"),
        ({"a": A, "b": B.astype(">f4"), "c": C}, "does not match F32"),
        ({"a": A[:, :1], "b": B, "c": C}, r"shape \[4, 1\] at row 0 does not fit \[4, 2\]"),
        ({"a": A.reshape(8), "b": B, "c": C}, "does not fit"),
        ({"a": A[:3], "b": B, "c": C}, "tensor a: 3 of 4 rows given"),
        ({"a": A, "b": B, "c": np.zeros(1, np.float32)}, "expected one scalar"),
        ({"a": A, "b": B, "c": 0.0}, "expected a numpy array, got float"),
        ([("a", A), ("b", B)], "tensor c is missing"),
        ([("b", B), ("a", A), ("c", C)], "expected tensor a, got b"),
        ([("a", A), ("b", B), ("c", C), ("c", C)], "expected one scalar"),
        ([("a", A), ("b", B), ("c", C), ("d", A)], "tensor d comes after the last"),
        ([("a", A[:2]), ("b", B), ("c", C)], "rows given"),
        ([("a", A[:2]), ("a", A), ("b", B), ("c", C)], "at row 2 does not fit"),
    ],
)
def test_data_that_does_not_match_the_specs_is_refused(tmp_path: Path, tensors: object, message: str) -> None:
    with FlashWriter(tmp_path / "f", PAIR) as writer:
        with pytest.raises(LayoutError, match=message):
            writer.write_run("r", tensors)  # type: ignore[arg-type]
        assert not writer.done("r")
        writer.write_run("r", {"a": A, "b": B, "c": C})
        writer.finish()


def test_the_writer_keeps_its_order_of_calls(tmp_path: Path) -> None:
    specs = byte_runs([10, 20])
    data = random_data(specs)
    writer = FlashWriter(tmp_path / "f", specs)
    with pytest.raises(LayoutError, match="no run named 'x'"):
        writer.write_run("x", {})
    writer.write_run("r1", data["r1"])
    with pytest.raises(LayoutError, match="already written"):
        writer.write_run("r1", data["r1"])
    assert writer.missing() == ["r0"]
    with pytest.raises(LayoutError, match="1 of 2 runs are not written, the first is r0"):
        writer.finish()
    writer.write_run("r0", data["r0"])
    writer.finish()
    with pytest.raises(LayoutError, match="closed"):
        writer.finish()


def test_an_error_in_the_source_of_a_run_leaves_the_run_unwritten(tmp_path: Path) -> None:
    specs = byte_runs([10])

    def broken() -> Iterator[tuple[str, np.ndarray]]:
        yield "t0", np.zeros(5, np.uint8)
        raise RuntimeError("checkpoint gone")

    with FlashWriter(tmp_path / "f", specs) as writer:
        with pytest.raises(RuntimeError, match="checkpoint gone"):
            writer.write_run("r0", broken())
        assert writer.missing() == ["r0"]


def test_a_finished_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "f"
    specs = byte_runs([10])
    write(path, specs, random_data(specs))
    before = path.read_bytes()
    with pytest.raises(OutputExists, match="already exists"):
        FlashWriter(path, specs)
    with pytest.raises(ResumeMismatch, match="f: belongs to another export .* same options"):
        FlashWriter(path, byte_runs([11]), resume=True)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["f"]
    with FlashWriter(path, specs, overwrite=True) as writer:
        writer.write_run("r0", random_data(specs, seed=1)["r0"])
        assert path.read_bytes() == before
        writer.finish()
    assert path.read_bytes() != before


def test_resuming_a_finished_export_returns_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "f"
    specs = byte_runs([10, 20])
    digest = write(path, specs, random_data(specs))
    with FlashWriter(path, specs, resume=True) as writer:
        assert writer.missing() == []
        assert writer.finish() == digest
    with pytest.raises(ResumeMismatch):
        FlashWriter(path, specs, resume=True, tag="another checkpoint")


def test_resume_goes_on_after_the_last_finished_run(tmp_path: Path) -> None:
    specs = byte_runs([30_000, 10, 70_000])
    data = random_data(specs)
    whole = write(tmp_path / "whole", specs, data)
    path = tmp_path / "f"
    with FlashWriter(path, specs) as writer:
        writer.write_run("r1", data["r1"])
    with FlashWriter(path, specs, resume=True) as writer:
        assert [writer.done(name) for name in ("r0", "r1", "r2")] == [False, True, False]
        writer.write_run("r0", data["r0"])
    with FlashWriter(path, specs, resume=True) as writer:
        writer.write_run("r2", data["r2"])
        assert writer.finish() == whole
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("tail", [b'{"run":"r1","xx', b'{"run":"r1","xx\n', b"\0\0\0\0", b"\0\0\n"])
def test_a_torn_last_journal_line_is_forgotten(tmp_path: Path, tail: bytes) -> None:
    specs = byte_runs([100, 200])
    data = random_data(specs)
    whole = write(tmp_path / "whole", specs, data)
    path = tmp_path / "f"
    with FlashWriter(path, specs) as writer:
        writer.write_run("r0", data["r0"])
    with open(tmp_path / "f.journal", "ab") as journal:
        journal.write(tail)
    with FlashWriter(path, specs, resume=True) as writer:
        assert writer.missing() == ["r1"]
    with FlashWriter(path, specs, resume=True) as writer:  # the torn line is gone, not buried
        writer.write_run("r1", data["r1"])
    with FlashWriter(path, specs, resume=True) as writer:
        assert writer.finish() == whole


def test_a_journal_damaged_in_the_middle_is_an_error(tmp_path: Path) -> None:
    specs = byte_runs([100, 200])
    data = random_data(specs)
    with FlashWriter(tmp_path / "f", specs) as writer:
        writer.write_run("r0", data["r0"])
        writer.write_run("r1", data["r1"])
    journal = tmp_path / "f.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"garbage\n" + lines[2])
    with pytest.raises(MalformedFile, match="line 2 is unreadable"):
        FlashWriter(tmp_path / "f", specs, resume=True)
    journal.write_bytes(lines[0] + b'{"run":"r9","xxh3":"0000000000000000"}\n' + lines[2])
    with pytest.raises(MalformedFile, match="line 2 names no run"):
        FlashWriter(tmp_path / "f", specs, resume=True)


def test_leftovers_of_another_export_are_an_error_or_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "f"
    specs = byte_runs([100])
    with FlashWriter(path, specs, tag="model@1") as writer:
        writer.write_run("r0", random_data(specs)["r0"])
    for other, tag in ((byte_runs([101]), "model@1"), (specs, "model@2")):
        with pytest.raises(ResumeMismatch, match="another export"):
            FlashWriter(path, other, tag=tag, resume=True)
    with FlashWriter(path, specs, tag="model@2") as writer:
        assert writer.missing() == ["r0"]
    with pytest.raises(ResumeMismatch):
        FlashWriter(path, specs, tag="model@1", resume=True)


def test_a_partial_file_cut_short_is_an_error(tmp_path: Path) -> None:
    specs = byte_runs([100])
    FlashWriter(tmp_path / "f", specs).close()
    os.truncate(tmp_path / "f.partial", ALIGN)
    with pytest.raises(TruncatedFile, match="has 16384 of 32768 bytes"):
        FlashWriter(tmp_path / "f", specs, resume=True)


def test_bytes_lost_on_disk_are_found_before_the_file_gets_its_name(tmp_path: Path) -> None:
    path = tmp_path / "f"
    specs = byte_runs([100, 200])
    data = random_data(specs)
    with FlashWriter(path, specs) as writer:
        for name in data:
            writer.write_run(name, data[name])
        with open(writer.partial_path, "r+b") as partial:
            partial.seek(2 * ALIGN + 5)
            partial.write(b"\xff" if data["r1"]["t1"][5] != 255 else b"\0")
        with pytest.raises(ChecksumMismatch, match="run r1 reads back different"):
            writer.finish()
    assert not path.exists()


@pytest.mark.parametrize("name", ["f.partial", "f.journal"])
def test_the_writer_follows_no_links(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / name).symlink_to("victim")
    specs = [RunSpec("a", (TensorSpec("a.x", "U8", (5,)),))]
    for resume in (False, True):
        with pytest.raises(WriteFailed, match="cannot create the file"):
            FlashWriter(tmp_path / "f", specs, resume=resume)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    specs = byte_runs([100])
    with FlashWriter(tmp_path / "f", specs), pytest.raises(WriteFailed, match="another export is writing"):
        FlashWriter(tmp_path / "f", specs, resume=True)


def test_a_full_disk_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edgekit.flashload.writer._allocate", full)
    with pytest.raises(WriteFailed, match=r"of 3\.\d+ MB: the disk is full; delete or move other files"):
        FlashWriter(tmp_path / "f", byte_runs([3_700_000]))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="cannot create the file: No such file"):
        FlashWriter(tmp_path / "no" / "f", byte_runs([1]))


def test_discard_removes_the_leftovers(tmp_path: Path) -> None:
    writer = FlashWriter(tmp_path / "f", byte_runs([100]))
    assert len(os.listdir(tmp_path)) == 2
    writer.discard()
    assert os.listdir(tmp_path) == []


# Traces the lines of the writer and dies at a chosen one, as by a power switch: no handler, no flush.
VICTIM = """
import os, signal, sys
import numpy as np
from edgekit.flashload import writer as module, files
from edgekit.flashload.format import RunSpec, TensorSpec

def spec(i):
    return RunSpec(f"r{i}", tuple(TensorSpec(f"{i}.{j}", "U8", (3, 9000)) for j in range(2)))

SPECS = [spec(i) for i in range(RUNS)]

def export(path, resume):
    with module.FlashWriter(path, SPECS, resume=resume) as out:
        for i, run in enumerate(SPECS):
            if not out.done(run.name):
                whole = {t.name: np.random.default_rng([i, j]).integers(0, 256, t.shape, dtype=np.uint8)
                         for j, t in enumerate(run.tensors)}
                out.write_run(run.name, ((n, a[k:k + 1]) for n, a in whole.items() for k in range(3)))
        return out.finish()

class Clock:
    def __init__(self, limit): self.left, self.lines = limit, 0
    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in (module.__file__, files.__file__): return None
        if event == "line":
            self.lines += 1
            if self.lines == self.left: os.kill(os.getpid(), signal.SIGKILL)
        return self

def traced(path, resume, limit):
    clock = Clock(limit)
    sys.settrace(clock)
    try: return export(path, resume), clock.lines
    finally: sys.settrace(None)
"""


def victim(runs: int, body: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = VICTIM.replace("RUNS", str(runs)) + body
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_file_larger_than_the_system_allows_is_an_error(tmp_path: Path) -> None:
    body = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
from edgekit.flashload.errors import WriteFailed
try: export(sys.argv[1], False)
except WriteFailed as error: print(error)
"""
    result = victim(1, body, tmp_path / "f")
    assert result.returncode == 0, result.stderr
    assert "cannot create the file: File too large" in result.stdout


def test_an_export_killed_at_random_points_ends_with_the_same_bytes(tmp_path: Path) -> None:
    body = "digest, lines = traced(sys.argv[1], True, int(sys.argv[2]))\nprint(digest.sha256, lines)"
    whole = victim(7, body, tmp_path / "whole", -1)
    assert whole.returncode == 0, whole.stderr
    sha256, lines = whole.stdout.split()
    rng = random.Random(7)
    kills = 0
    while True:
        attempt = victim(7, body, tmp_path / "f", rng.randint(int(lines) // 9, int(lines) // 3))
        if attempt.returncode == 0:
            break
        assert attempt.returncode == -signal.SIGKILL, attempt.stderr
        assert not (tmp_path / "f").exists() or not (tmp_path / "f.partial").exists()
        kills += 1
        assert kills < 100, "no progress"
    assert kills >= 3
    assert attempt.stdout.split()[0] == sha256
    assert (tmp_path / "f").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["f", "whole"]


def test_a_kill_at_any_line_of_the_writer_can_be_resumed(tmp_path: Path) -> None:
    body = """
base = sys.argv[1]
expected, lines = traced(base + "/whole", False, -1)
reference = open(base + "/whole", "rb").read()
steps = sorted({*range(1, lines - 40, 13), *range(max(1, lines - 40), lines + 1)})
for step in steps:
    path = f"{base}/f{step}"
    child = os.fork()
    if child == 0:
        traced(path, False, step)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (step, status)
    found = export(path, True)
    assert found == expected, step
    assert open(path, "rb").read() == reference, step
    assert not os.path.exists(path + ".journal") and not os.path.exists(path + ".partial"), step
    os.unlink(path)
print(len(steps))
"""
    result = victim(2, body, tmp_path)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 60
