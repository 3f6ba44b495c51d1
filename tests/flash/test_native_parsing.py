"""The native core's hash and its reader of headers: what other people's libraries find, and no file that is
unsound.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import test_flash_packed as packed_tests
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native_parsing as native
from support.flash_files import ALIGN, byte_runs, random_data, write
from support.native_parsing import damaged
from support.plain_flash import described, sound
from test_flash_format import run_specs

from edgekit.flashload.format import Layout, RunSpec, TensorSpec, build_header, layout
from edgekit.flashload.packed import header_json, packed_layout

# Many small edits are drawn from one seed: hypothesis needs milliseconds for each choice of its own.
SEEDS = st.integers(0, 2**32)

# --- XXH3 ------------------------------------------------------------------------------------------------

LOOPS = ["", "portable", "neon", "avx2", "avx512"]


@pytest.mark.parametrize("loop", LOOPS)
def test_hashes_of_all_lengths_are_those_of_xxhash(loop: str) -> None:
    data = random.Random(1).randbytes(2100)
    if native.xxh3(data, loop) is None:
        assert loop in ("neon", "avx2", "avx512")
        return
    for size in range(2049):
        offset = size % 17  # any alignment
        expected = xxhash.xxh3_64_intdigest(data[offset : offset + size])
        assert native.xxh3(data, loop, offset, size) == expected, size


@given(st.integers(0, 2**32), st.integers(2049, 300_000), st.integers(0, 63))
def test_hashes_of_long_data_are_those_of_xxhash(seed: int, size: int, offset: int) -> None:
    data = random.Random(seed).randbytes(size + offset)
    expected = xxhash.xxh3_64_intdigest(data[offset:])
    found = {loop: native.xxh3(data, loop, offset) for loop in LOOPS}
    assert found[""] == found["portable"] == expected
    assert all(value in (None, expected) for value in found.values()), found


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_hashes_of_equal_bytes(byte: int) -> None:  # the products' largest operands
    for size in (240, 241, 1024, 1025, 4097, 1 << 20):
        data = bytes([byte]) * size
        assert {native.xxh3(data, loop) for loop in LOOPS} <= {None, xxhash.xxh3_64_intdigest(data)}


# --- the flash file's header -----------------------------------------------------------------------------


def check_header(data: bytes, file_size: int) -> bool:
    """Whether the header is accepted; then it says what json reads in it and leaves no byte out."""
    try:
        found = native.flash_layout(data, file_size)
    except native.Refused as refused:
        assert refused.status in (native.TRUNCATED, native.MALFORMED, native.UNSUPPORTED)
        assert str(refused).startswith("f: ")
        return False
    assert found == described(data)
    sound(found, file_size)
    return True


def planned(plan: Layout, digests: dict[str, str]) -> dict[str, Any]:
    """What the core must find in the header of a plan."""
    runs = []
    for run in plan.runs:
        full = {slot.name for slot in run.tensors}
        tensors = []
        for slot in run.tensors:
            short = slot.name.removeprefix(run.name + ".")
            name = slot.name if short in full or not short else short
            tensors.append([name, slot.dtype, list(slot.shape), slot.offset_in_run, slot.nbytes, slot.name])
        own = [int(digests[run.name][i : i + 16], 16) for i in range(0, len(digests[run.name]), 16)]
        segments = [[s.offset, s.place, s.nbytes, d] for s, d in zip(run.segments, own, strict=False)]
        runs.append([run.name, run.offset, run.length, own[0], tensors, segments])
    return {"size": plan.size, "data_start": plan.data_start, "plan": plan.plan_digest, "runs": runs}


def with_length(text: bytes, data_start: int) -> bytes:
    padded = text.ljust(data_start - 8)
    return len(padded).to_bytes(8, "little") + padded


def header_of(specs: list[RunSpec]) -> tuple[bytes, Layout, dict[str, str]]:
    plan = layout(specs)
    digests = {run.name: f"{i + 1:016x}" for i, run in enumerate(plan.runs)}
    return build_header(plan, digests), plan, digests


def test_a_written_file_has_the_planned_layout(tmp_path: Path) -> None:
    specs = [
        RunSpec("head.0", (TensorSpec("head.0.codes", "U8", (99, 7)), TensorSpec("head.0.t", "F32", (9,)))),
        RunSpec("layer", (TensorSpec("layer.q.packed", "U8", (2, 8, 64, 4)), TensorSpec("norm", "BF16", ()))),
    ]  # fmt: skip
    path = tmp_path / "w.safetensors"
    write(path, specs, random_data(specs))
    data, plan = path.read_bytes(), layout(specs)
    digests = {r.name: xxhash.xxh3_64_hexdigest(data[r.offset : r.offset + r.length]) for r in plan.runs}
    assert native.flash_layout(data, len(data)) == planned(plan, digests)
    assert check_header(data, len(data))
    names = [(run[0], tensor[0]) for run in native.flash_layout(data, len(data))["runs"] for tensor in run[4]]
    assert names == [("head.0", "codes"), ("head.0", "t"), ("layer", "q.packed"), ("layer", "norm")]


@settings(max_examples=30)
@given(run_specs())
def test_headers_have_the_layout_that_was_planned(specs: list[RunSpec]) -> None:
    data, plan, digests = header_of(specs)
    size = plan.size
    assert native.flash_layout(data, size) == planned(plan, digests)
    assert check_header(data, size)
    for wrong in (0, 7, len(data) - 1, size - 1, size + 1, size - ALIGN, size + ALIGN):
        assert not check_header(data[:wrong] if wrong < len(data) else data, wrong)


@settings(max_examples=20)
@given(run_specs(), SEEDS)
def test_damaged_header_text_is_refused_or_read_as_it_stands(specs: list[RunSpec], seed: int) -> None:
    rng = random.Random(seed)
    data, plan, _ = header_of(specs)
    for _ in range(30):
        check_header(with_length(damaged(data[8:].rstrip(), rng), len(data)), plan.size)


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 63, 64, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 2**70, "", "x", "1", "2",
    "U8", "F64", "U4", "BF16", [], [0, 64], [1, 2, 3], {}, {"dtype": "U8"}, "__pad__.7", "\ud800", "a\x00b",
    "0" * 16,
]  # fmt: skip


def vary(value: Any, rng: random.Random) -> Any:
    """The value with one part of it, at any depth, replaced, removed, doubled, renamed or moved."""
    if isinstance(value, str) and value.startswith("[[") and rng.random() < 0.9:  # the list of runs
        return json.dumps(vary(json.loads(value), rng), ensure_ascii=rng.random() < 0.5)
    if isinstance(value, dict) and value and rng.random() < 0.95:
        items = list(value.items())
        at = rng.randrange(len(items))
        key, item = items[at]
        edit = rng.randrange(12)
        if edit == 0:
            del items[at]
        elif edit == 1:
            items[at] = (rng.choice([*(str(v) for v in VALUES), *value, "dtype", "__metadata__"]), item)
        elif edit == 2:
            items.insert(rng.randrange(len(items)), (rng.choice(["extra", "__pad__.9", "dtype"]), item))
        elif edit == 3:
            rng.shuffle(items)
        elif edit == 4:
            other = rng.randrange(len(items))
            items[at], items[other] = (key, items[other][1]), (items[other][0], item)
        else:
            items[at] = (key, vary(item, rng))
        return dict(items)
    if isinstance(value, list) and value and rng.random() < 0.95:
        out = list(value)
        at = rng.randrange(len(out))
        edit = rng.randrange(10)
        if edit == 0:
            del out[at]
        elif edit == 1:
            out.insert(at, out[rng.randrange(len(out))])
        elif edit == 2:
            out.reverse()
        else:
            out[at] = vary(out[at], rng)
        return out
    if type(value) is int and rng.random() < 0.8:
        return value + rng.choice([-ALIGN, -64, -1, 1, 2, 64, ALIGN, 2 * ALIGN])
    return rng.choice(VALUES)


@settings(max_examples=20)
@given(run_specs(), SEEDS)
def test_headers_with_other_values_are_refused_or_read_as_they_stand(specs: list[RunSpec], seed: int) -> None:
    rng = random.Random(seed)
    data, plan, _ = header_of(specs)
    for edits in range(60):
        table = json.loads(data[8:])
        for _ in range(edits % 4):
            table = vary(table, rng)
        text = json.dumps(table, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        data_start = len(data) if rng.random() < 0.95 else len(data) + rng.choice([-64, 8, ALIGN])
        # Half of the files have the size that a changed last run asks for.
        wanted = last_byte(table) if rng.random() < 0.5 else plan.size
        check_header(with_length(text, data_start), wanted)


@settings(max_examples=20)
@given(packed_tests.files(), SEEDS)
def test_packed_headers_are_read_as_planned_and_refused(made: Any, seed: int) -> None:
    plan = packed_layout(*made, "")
    rng = random.Random(seed)
    digests = {run.name: "".join(rng.choices("0123456789abcdef", k=len(run.xxh3))) for run in plan.runs}
    data = build_header(plan, digests, header_json)
    assert native.flash_layout(data, plan.size) == planned(plan, digests)
    assert check_header(data, plan.size)
    for edits in range(40):
        table = json.loads(data[8:])
        if edits % 2:
            rows = vary(json.loads(table["__metadata__"]["edgekit.runs"]), rng)
            table["__metadata__"]["edgekit.runs"] = json.dumps(rows)
        else:
            table = vary(table, rng)
        check_header(with_length(json.dumps(table).encode(), len(data)), plan.size)


def last_byte(table: Any) -> int:
    try:
        row = json.loads(table["__metadata__"]["edgekit.runs"])[-1]
        return min(2**63, max(0, int(row[1]) + int(row[2])))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return 0


def test_a_run_that_moves_with_its_tensors_is_still_a_file() -> None:
    # Edits above seldom leave a file whole: here is one that must be accepted.
    data, *_ = header_of(byte_runs([5, ALIGN + 1]))
    table = json.loads(data[8:])
    rows = json.loads(table["__metadata__"]["edgekit.runs"])
    del rows[1]
    table = {key: value for key, value in table.items() if not isinstance(value.get("shape"), list)
             or value["data_offsets"][1] <= ALIGN}  # fmt: skip
    table["__metadata__"]["edgekit.runs"] = json.dumps(rows)
    table["__metadata__"]["other"] = "\ud800"
    text = json.dumps(dict(reversed(table.items()))).encode()
    assert check_header(with_length(text, len(data)), 2 * ALIGN)


PREFIX = 64  # of a file, that a reader looks at first
STARTS = [b"", b"version https://git-lfs", *(n.to_bytes(8, "little") for n in (0, 20, 99_999_999, 2**64 - 1))]


@given(st.binary(max_size=80), st.integers(0, 2**64 - 1))
def test_the_start_of_any_file_is_judged(prefix: bytes, file_size: int) -> None:
    for start in STARTS:
        data = start + prefix
        check_start(data, len(data))
        # A reader passes all of a short file and the first bytes of a longer one.
        check_start(data.ljust(PREFIX), max(file_size, PREFIX, len(data)))


def check_start(data: bytes, size: int) -> None:
    length = int.from_bytes(data[:8], "little")
    if size < 8:
        expected = native.TRUNCATED
    elif data.startswith(b"version https://git-lfs") or length > (32 << 20) or data[8:9] not in (b"{", b""):
        expected = native.MALFORMED
    elif 8 + length > size:
        expected = native.TRUNCATED
    elif len(data) >= 8 + length:
        check_header(data, size)
        return
    else:
        return
    with pytest.raises(native.Refused) as refused:
        native.flash_layout(data, size)
    assert refused.value.status == expected, str(refused.value)
