"""Packed flash files: what other programs read in them, runs read back in segments, damage found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.flash_files import put_header
from support.native_reading import NativeFile

from edgekit.flashload.errors import BundleError, ChecksumMismatch, LayoutError, MalformedFile
from edgekit.flashload.format import RUN_ALIGNMENT, STORAGE_DTYPES, RunSpec, TensorSpec
from edgekit.flashload.packed import Slice, packed_layout
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.writer import FlashWriter

Stored = dict[str, tuple[Slice, ...]]
#: Safetensors has its own names for what numpy holds.
DTYPES = ("U32", "F32", "F16", "U8")


@st.composite
def files(draw: st.DrawFn) -> tuple[list[RunSpec], Stored]:
    """Runs of tensors of their own, of two vectors joined, and of tiles of shared tables."""
    size = st.integers(1, 40)
    runs, stored = list[RunSpec](), dict[str, tuple[Slice, ...]]()
    for i in range(draw(st.integers(1, 4))):
        specs = []
        for j in range(draw(st.integers(1, 4))):
            dtype, rows, columns = draw(st.sampled_from(DTYPES)), draw(size), draw(size)
            name = f"run{i}.t{j}"
            if draw(st.booleans()):
                specs.append(TensorSpec(name, dtype, (rows, columns)))
                stored[name] = (Slice(f"model.{i}.{j}.weight", 0, rows),)
            else:
                specs.append(TensorSpec(name, dtype, (2 * rows,)))
                stored[name] = (Slice(f"a.{i}.{j}", 0, rows), Slice(f"b.{i}.{j}", 0, rows))
        runs.append(RunSpec(f"run{i}", tuple(specs)))
    widths, rows = draw(st.lists(size, min_size=1, max_size=3)), draw(st.lists(size, max_size=4))
    for i, count in enumerate(rows):
        specs = [TensorSpec(f"tile{i}.{k}", DTYPES[k], (count, width)) for k, width in enumerate(widths)]
        stored |= {s.name: (Slice(f"table.{s.name[-1]}", sum(rows[:i]), count),) for s in specs}
        runs.append(RunSpec(f"tile{i}", tuple(specs)))
    return runs, stored


def values(runs: list[RunSpec]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        t.name: rng.integers(0, 256, t.nbytes, np.uint8).view(STORAGE_DTYPES[t.dtype]).reshape(t.shape)
        for run in runs
        for t in run.tensors
    }


def write(path: Path, runs: list[RunSpec], stored: Stored, tensors: dict[str, np.ndarray]) -> None:
    with FlashWriter(path, runs, stored=stored, overwrite=True) as writer:
        order = [run.name for run in runs]
        random.Random(2).shuffle(order)
        for name in order:
            writer.write_run(name, {n: t for n, t in tensors.items() if n.startswith(name + ".")})
        writer.finish()


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes() and array.shape == expected[name].shape, name


@given(files())
def test_readers_of_safetensors_and_runs_see_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[list[RunSpec], Stored]
) -> None:
    runs, stored = made
    path, tensors = tmp_path_factory.mktemp("packed") / "model.safetensors", values(runs)
    write(path, runs, stored, tensors)
    whole = load_file(path)  # refuses holes and bytes behind the end
    assert set(whole) == {part.name for parts in stored.values() for part in parts}
    for name, parts in stored.items():
        joined = np.concatenate([whole[p.name][p.first : p.first + p.rows] for p in parts])
        assert joined.tobytes() == tensors[name].tobytes(), name
    with FlashFile(path) as file:
        for run in runs:
            own = {t.name: tensors[t.name] for t in run.tensors}
            buffer, views = file.load(run.name)
            assert all(view.flags.aligned for view in views.values())
            equal(views, own)
            file.verify(run.name)
            for name, array in own.items():
                first = len(array) // 2
                assert file.read_rows(name, first).tobytes() == array[first:].tobytes()
                assert file.read_rows(name, first, 1).tobytes() == array[first].tobytes()
            del views
            buffer.close()


RUNS = [
    RunSpec("layer", (TensorSpec("layer.w", "U32", (64, 100)), TensorSpec("layer.s", "F16", (64, 3)))),
    *(
        RunSpec(
            f"tile{i}", (TensorSpec(f"tile{i}.w", "U32", (50, 64)), TensorSpec(f"tile{i}.s", "F16", (50, 1)))
        )
        for i in range(3)
    ),
]
STORED: Stored = {"layer.w": (Slice("model.w", 0, 64),), "layer.s": (Slice("model.s", 0, 64),)} | {
    f"tile{i}.{k}": (Slice(f"table.{k}", 50 * i, 50),) for i in range(3) for k in "ws"
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "f", RUNS, STORED, values(RUNS))
    return tmp_path / "f"


def test_runs_are_read_past_the_page_cache_in_whole_pages(path: Path) -> None:
    calls: list[tuple[int, int]] = []
    with FlashFile(path) as file:
        lengths = {run.name: file.run(run.name).length for run in RUNS}
        assert len(file.run("tile1").segments) == 2
    size = path.stat().st_size
    with NativeFile(path) as file:
        file.on_read = lambda offset, nbytes: calls.append((offset, nbytes))
        for run in RUNS:
            file.read(run.name, lengths[run.name])
            file.verify(run.name)
        assert calls and all(offset % RUN_ALIGNMENT == 0 for offset, _ in calls)
        assert all(nbytes % RUN_ALIGNMENT == 0 or offset + nbytes == size for offset, nbytes in calls)
        # Only where the file ends within a page is it read through the cache.
        ends = sum(offset + nbytes == size for offset, nbytes in calls)
        assert size % RUN_ALIGNMENT and file.statistics.fallbacks in (0, ends)


def test_tensors_of_whole_vectors_keep_a_run_in_one_piece() -> None:
    """An expert's matrices with their scales, as models of real size have them; the scalar lies behind."""
    runs = [
        RunSpec(
            f"e{i}",
            (
                TensorSpec(f"e{i}.w", "U32", (64, 8)), TensorSpec(f"e{i}.s", "F16", (64, 1)),
                TensorSpec(f"e{i}.v", "U32", (32, 8)), TensorSpec(f"e{i}.t", "F16", (32, 1)),
            ),
        )
        for i in range(3)
    ]  # fmt: skip
    runs[1] = RunSpec("e1", (*runs[1].tensors, TensorSpec("e1.one", "F32", (1,))))
    stored = {t.name: (Slice("model." + t.name, 0, t.shape[0]),) for run in runs for t in run.tensors}
    plan = packed_layout(runs, stored, "")
    assert [len(run.segments) for run in plan.runs] == [1, 2, 1]


def test_every_damaged_byte_is_found(path: Path) -> None:
    data = path.read_bytes()
    with FlashFile(path) as file:
        start = file.layout.data_start
    rng = random.Random(4)
    for at in [start, len(data) - 1, *(rng.randrange(start, len(data)) for _ in range(20))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with FlashFile(path) as file:
            bad = []
            for run in RUNS:
                for read in (file.load, file.verify):
                    try:
                        read(run.name)
                    except ChecksumMismatch:
                        bad.append(run.name)
            assert len(bad) == 2 and bad[0] == bad[1]


def test_an_interrupted_file_is_continued_to_the_same_bytes(path: Path, tmp_path: Path) -> None:
    tensors, again = values(RUNS), tmp_path / "again"
    for run in RUNS:
        with FlashWriter(again, RUNS, stored=STORED, resume=True) as writer:
            assert run.name in writer.missing()
            writer.write_run(run.name, {t.name: tensors[t.name] for t in run.tensors})
    with FlashWriter(again, RUNS, stored=STORED, resume=True) as writer:
        writer.finish()
    assert again.read_bytes() == path.read_bytes()
    with FlashWriter(again, RUNS, stored=STORED, resume=True) as writer:
        assert not writer.missing()


def table(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h, r: r[0].pop(), "a run must be"),
        (lambda h, r: r.append(r[0]), "run layer is listed twice"),
        (lambda h, r: r.pop(1), "expected"),
        (lambda h, r: r.pop(), "no run covers bytes|expected"),
        (lambda h, r: r[1][3][0].__setitem__(1, ["table.w", 50, 50]), "expected"),
        (lambda h, r: r[1][3][0].__setitem__(1, ["table.w", 120, 50]), "not among the 150 rows"),
        (lambda h, r: r[1][3][0].__setitem__(1, ["table.w", 0, 0]), "not among the 150 rows"),
        (lambda h, r: r[1][3][0].__setitem__(1, ["table.w", -1, 50]), "not among the 150 rows"),
        (lambda h, r: r[1][3][0].__setitem__(1, ["table.x", 0, 50]), "of a tensor that is stored"),
        (lambda h, r: r[1][3][0].append(["table.s", 50, 5]), "do not continue each other"),
        (lambda h, r: r[1][3].append(r[1][3][0]), "two tensors of one name"),
        (lambda h, r: r[0][3].__setitem__(0, "v"), "no tensor 'model.v' is stored"),
        (lambda h, r: r[0][1].append("0" * 16), "digests, not one for each segment"),
        (lambda h, r: r[0][1].__setitem__(0, "x" * 16), "is not an xxh3-64 digest"),
        (lambda h, r: h["model.s"]["data_offsets"].__setitem__(0, 0), "needs|starts at byte"),
        (lambda h, r: h.pop("model.w"), "expected 0"),
        (lambda h, r: r.clear(), "edgekit.runs must be a non-empty list"),
    ],
)  # fmt: skip
def test_headers_that_do_not_describe_the_file_are_refused(path: Path, change: Any, said: str) -> None:
    header, data = table(path)
    rows = json.loads(header["__metadata__"]["edgekit.runs"])
    change(header, rows)
    header["__metadata__"]["edgekit.runs"] = json.dumps(rows)
    put_header(path, header, data)
    with pytest.raises(MalformedFile, match=said) as refused:
        FlashFile(path)
    assert "\n" not in str(refused.value)


def test_any_damage_to_the_header_is_one_line(path: Path) -> None:
    data = path.read_bytes()
    with FlashFile(path) as file:
        start = file.layout.data_start
    rng = random.Random(5)
    text = len(data[:start].rstrip())
    for _ in range(300):
        at = rng.randrange(8, text)
        path.write_bytes(data[:at] + bytes([rng.randrange(32, 127)]) + data[at + 1 :])
        try:
            with FlashFile(path) as file:
                for run in file.layout.runs:
                    file.load(run.name)[0].close()
        except BundleError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"tile1.w": (Slice("table.w", 49, 50),)}, "does not continue what table.w holds"),
        ({"tile1.w": (Slice("table.w", 50, 49),)}, "its stored rows are not those"),
        ({"tile1.w": (Slice("model.w", 64, 50),)}, "does not continue what model.w holds"),
        (
            {
                "tile0.s": (Slice("table.s", 0, 20), Slice("other", 0, 30)),
                "tile1.s": (Slice("table.s", 20, 50),), "tile2.s": (Slice("table.s", 70, 50),),
            },
            "do not follow each other",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused(stored: Stored, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        packed_layout(RUNS, STORED | stored, "")
