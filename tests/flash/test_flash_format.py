"""The flash file's layout: a pure function whose result the safetensors library accepts."""

from __future__ import annotations

import json
import tempfile

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from support.flash_files import ALIGN, byte_runs

from edgekit.flashload.errors import InvalidRequest, LayoutError, MalformedFile, TruncatedFile
from edgekit.flashload.format import (
    PAD_PREFIX,
    STORAGE_DTYPES,
    Layout,
    RunSpec,
    TensorSpec,
    build_header,
    layout,
)
from edgekit.flashload.reader import FlashFile, tensor_views

DTYPES = st.sampled_from(sorted(STORAGE_DTYPES))
SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name.isprintable() and not name.startswith("__")
)


@st.composite
def run_specs(draw: st.DrawFn) -> list[RunSpec]:
    names = iter(draw(st.lists(NAMES, min_size=9, max_size=9, unique=True)))
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return [
        RunSpec(f"run {i}", tuple(TensorSpec(next(names), draw(DTYPES), draw(SHAPES)) for _ in range(count)))
        for i, count in enumerate(counts)
    ]


@given(run_specs())
def test_everything_is_aligned_and_nothing_overlaps(specs: list[RunSpec]) -> None:
    plan = layout(specs)
    assert plan.data_start % ALIGN == 0
    position = plan.data_start
    for spec, run in zip(specs, plan.runs, strict=True):
        assert (run.name, run.offset) == (spec.name, position)
        assert run.length % ALIGN == 0
        position += run.length
        end = 0
        for tensor, slot in zip(spec.tensors, run.tensors, strict=True):
            assert (slot.name, slot.dtype, slot.shape) == (tensor.name, tensor.dtype, tensor.shape)
            assert slot.offset_in_run % 64 == 0
            assert end <= slot.offset_in_run < end + 64
            end = slot.offset_in_run + slot.nbytes
        assert end <= run.length < end + ALIGN
    assert position == plan.size


def read_header(header: bytes | bytearray, size: int) -> Layout:
    """What is read of a file that has this header and no data."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(header)
        file.truncate(size)
        with FlashFile(file.name) as opened:
            return opened.layout


@given(run_specs())
def test_a_header_parses_back_to_its_layout(specs: list[RunSpec]) -> None:
    plan = layout(specs, tag="model@1")
    digests = {run.name: f"{i:016x}" for i, run in enumerate(plan.runs)}
    header = build_header(plan, digests)
    assert len(header) == plan.data_start
    assert int.from_bytes(header[:8], "little") == plan.data_start - 8
    parsed = read_header(header, plan.size)
    assert [run.xxh3 for run in parsed.runs] == list(digests.values())
    assert build_header(parsed, digests) == header
    assert (parsed.size, parsed.data_start, parsed.plan_digest) == (
        plan.size,
        plan.data_start,
        plan.plan_digest,
    )
    assert [run.tensors for run in parsed.runs] == [run.tensors for run in plan.runs]


@given(run_specs())
def test_the_safetensors_library_sees_the_same_tensors(specs: list[RunSpec]) -> None:
    plan = layout(specs)
    header = build_header(plan, {run.name: "0" * 16 for run in plan.runs})
    found = safetensors.deserialize(header + bytes(plan.size - len(header)))
    tensors = {name: value for name, value in found if not name.startswith(PAD_PREFIX)}
    expected = {t.name: t for run in specs for t in run.tensors}
    assert set(tensors) == set(expected)
    for name, value in tensors.items():
        assert value["dtype"] == expected[name].dtype
        assert tuple(value["shape"]) == expected[name].shape
        assert len(value["data"]) == expected[name].nbytes


@given(run_specs(), st.binary(max_size=200), st.integers(0, 10_000))
def test_a_damaged_header_never_escapes_the_typed_error(
    specs: list[RunSpec], noise: bytes, position: int
) -> None:
    plan = layout(specs)
    header = bytearray(build_header(plan, {run.name: "0" * 16 for run in plan.runs})[8:])
    position %= len(bytes(header).rstrip())
    header[position : position + len(noise)] = noise[: len(header) - position]
    try:
        parsed = read_header((plan.data_start - 8).to_bytes(8, "little") + header, plan.size)
    except (MalformedFile, TruncatedFile) as error:
        assert "\n" not in str(error)
    else:
        assert parsed.size == plan.size


def test_a_header_longer_than_one_page_moves_the_data() -> None:
    plan = layout(byte_runs([1] * 400))
    assert plan.data_start > ALIGN
    header = build_header(plan, {run.name: "f" * 16 for run in plan.runs})
    assert read_header(header, plan.size).runs[-1].name == "r399"


def test_the_tag_changes_the_plan_digest_and_nothing_else() -> None:
    one, other = layout(byte_runs([5]), tag="a"), layout(byte_runs([5]), tag="b")
    assert one.plan_digest != other.plan_digest
    assert one.runs == other.runs
    assert layout(byte_runs([5]), tag="a") == one


def test_metadata_says_what_the_format_is() -> None:
    plan = layout(byte_runs([100, 20_000]))
    header = build_header(plan, {"r0": "0123456789abcdef", "r1": "f" * 16})
    metadata = json.loads(header[8:])["__metadata__"]
    assert metadata["edgekit.format"] == "1"
    assert json.loads(metadata["edgekit.runs"]) == [
        ["r0", ALIGN, ALIGN, "0123456789abcdef"],
        ["r1", 2 * ALIGN, 2 * ALIGN, "f" * 16],
    ]


def one_run(*tensors: TensorSpec, name: str = "r") -> list[RunSpec]:
    return [RunSpec(name, tensors)]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "empty"),
        (one_run(), "no tensors"),
        (one_run(TensorSpec("t", "F12", (1,))), "unknown dtype 'F12'"),
        (one_run(TensorSpec("t", "U8", (3, 0))), "no elements"),
        (one_run(TensorSpec("t", "U8", (-3,))), "no elements"),
        (one_run(TensorSpec("", "U8", (3,))), "non-empty"),
        (one_run(TensorSpec("__pad__.0", "U8", (3,))), "reserved"),
        (one_run(TensorSpec("__metadata__", "U8", (3,))), "reserved"),
        (one_run(TensorSpec("\ud800", "U8", (3,))), "cannot be printed"),
        (one_run(TensorSpec("a\nb", "U8", (3,))), "cannot be printed"),
        (one_run(TensorSpec("t", "U8", (1,)), TensorSpec("t", "U8", (1,))), "tensor t: listed twice"),
        (one_run(TensorSpec("a", "U8", (1,))) + one_run(TensorSpec("b", "U8", (1,))), "run r: listed twice"),
        (one_run(TensorSpec("t", "F64", (2**40, 2**30))), "2^63-1"),
        (one_run(TensorSpec("t", "U8", (2**63 - ALIGN - 1,))), "2^63-1"),
    ],
)
def test_impossible_specs_are_refused(specs: list[RunSpec], message: str) -> None:
    with pytest.raises(LayoutError, match=message.replace("^", r"\^")):
        layout(specs)


def test_a_buffer_shorter_than_the_run_has_no_views() -> None:
    (run,) = layout(byte_runs([100])).runs
    with pytest.raises(InvalidRequest, match="needs 16384 bytes"):
        tensor_views(run, bytearray(ALIGN - 1))


def test_views_are_read_only_and_share_the_buffer() -> None:
    (run,) = layout(one_run(TensorSpec("a", "BF16", (2, 3)), TensorSpec("b", "F32", ()))).runs
    buffer = bytearray(run.length)
    views = tensor_views(run, buffer)
    assert views["a"].dtype == "uint16" and views["a"].shape == (2, 3) and views["b"].shape == ()
    buffer[64:68] = b"\x00\x00\x80\x3f"
    assert views["b"] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        views["a"][0, 0] = 1
