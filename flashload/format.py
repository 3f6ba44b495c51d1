"""The flash file: one safetensors file laid out for streaming. This is its format "1", aligned for engines
that use the bytes where they lie; for "2" see `packed`.

Bytes, in order:

    u64 little endian   length of the header that follows
    header              JSON, padded with spaces so that the data starts at a multiple of 16 KiB
    runs                in execution order; each starts at a 16 KiB multiple and is padded to one

Inside a run tensors start at 64-byte multiples. safetensors forbids holes, so U8 tensors named
`__pad__.<n>` cover them. The header's `__metadata__` holds
    edgekit.format   "1"
    edgekit.plan     SHA-256 of what was to be written (run and tensor specs and the export's tag)
    edgekit.runs     JSON list of [name, offset in the file, length in bytes, xxh3-64 of those bytes in hex]
A digest has a fixed width, so the layout is known before the first tensor exists.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgekit.flashload.errors import LayoutError
from edgekit.flashload.strictjson import MAX_MARKS, marks

RUN_ALIGNMENT = 16 * 1024  # Apple's page size; every other system's page and sector size divides it.
TENSOR_ALIGNMENT = 64  # one cache line, and the widest vector load
MAX_HEADER_BYTES = 32 << 20  # the header of a model with 3840 experts has 3 MB
PAD_PREFIX = "__pad__."
FORMAT_VERSION = "1"
KEY_FORMAT, KEY_PLAN, KEY_RUNS = "edgekit.format", "edgekit.plan", "edgekit.runs"
MAX_BYTES = 2**63 - 1  # file offsets are signed 64-bit
NO_DIGEST = "0" * 16

# numpy has no bfloat16 or float8: their bit patterns travel as unsigned integers of the same width.
STORAGE_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "F8_E4M3": np.dtype("<u1"),
    "F8_E5M2": np.dtype("<u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}


def align_up(value: int, alignment: int) -> int:
    """Smallest multiple of `alignment` that is at least `value`."""
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written. `dtype` is the safetensors spelling ("U8", "F32", "BF16", ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(operator.index(size) for size in self.shape))

    @property
    def nbytes(self) -> int:
        if self.dtype not in STORAGE_DTYPES:
            known = ", ".join(STORAGE_DTYPES)
            raise LayoutError(f"tensor {self.name}: unknown dtype {self.dtype!r}; supported: {known}")
        return math.prod(self.shape) * STORAGE_DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class RunSpec:
    """A run to be written: tensors that are always read together, in this order."""

    name: str
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor inside its run. `nbytes` excludes padding."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_in_run: int
    nbytes: int


@dataclass(frozen=True)
class Segment:
    """Bytes of a run that follow each other: `nbytes` at `offset` of the file are those at `place` of a
    buffer with the run. Both are at the same place within a page of `RUN_ALIGNMENT`.
    """

    offset: int
    place: int
    nbytes: int
    xxh3: str


@dataclass(frozen=True)
class Run:
    """Tensors that are read together: `length` bytes of memory, from `offset` in the file on. Without
    `segments` they are as many bytes of the file, padding included.
    """

    name: str
    offset: int
    length: int
    xxh3: str  # 16 hex digits for every part
    tensors: tuple[TensorSlot, ...]
    segments: tuple[Segment, ...] = ()

    @property
    def parts(self) -> tuple[Segment, ...]:
        """The parts of the run, in the order of its tensors."""
        return self.segments or (Segment(self.offset, 0, self.length, self.xxh3),)


@dataclass(frozen=True)
class Layout:
    """Every byte position of a flash file. `size` is the size of the finished file. Of a packed file
    `tensors` are what is stored, with their offsets in the data, and `stored` what runs make of them.
    """

    runs: tuple[Run, ...]
    data_start: int
    size: int
    plan_digest: str
    tensors: tuple[TensorSlot, ...] = ()
    stored: Mapping[str, Any] = field(default_factory=dict)


def layout(runs: Sequence[RunSpec], tag: str = "") -> Layout:
    """Place runs and tensors. Pure: the same arguments give the same positions.

    `tag` names what the tensors are made of (checkpoint revision, quantization preset); it enters only the
    plan digest, so that the journal of one export is not continued by another of the same shapes.
    Raises LayoutError for unknown dtypes, bad shapes and names, duplicates, empty runs and sizes past 2^63-1.
    """
    check_runs(runs)
    placed: list[tuple[str, int, tuple[TensorSlot, ...]]] = []
    for run in runs:
        slots: list[TensorSlot] = []
        end = 0
        for spec in run.tensors:
            start = align_up(end, TENSOR_ALIGNMENT)
            slots.append(TensorSlot(spec.name, spec.dtype, spec.shape, start, spec.nbytes))
            end = start + spec.nbytes
            if end > MAX_BYTES:
                raise LayoutError(
                    f"tensor {spec.name}: run {run.name} would pass 2^63-1 bytes; check its shape"
                )
        placed.append((run.name, align_up(end, RUN_ALIGNMENT), tuple(slots)))

    digest = plan_digest(FORMAT_VERSION, runs, tag)
    # Offsets are written in the header whose length decides them. A later start only adds digits, so
    # raising the start until the header fits ends after a few rounds.
    data_start = RUN_ALIGNMENT
    while True:
        candidate = _at(placed, data_start, digest)
        needed = 8 + len(_header_json(candidate, {}))
        if needed <= data_start:
            break
        data_start = align_up(needed, RUN_ALIGNMENT)
    if data_start > MAX_HEADER_BYTES or marks(_header_json(candidate, {})) > MAX_MARKS:
        tensors = sum(len(slots) for _, _, slots in placed)
        raise LayoutError(
            f"a header of {data_start} bytes for {tensors} tensors is more than readers take "
            f"({MAX_HEADER_BYTES} bytes, {MAX_MARKS} marks of JSON); put more weights in one tensor"
        )
    if candidate.size > MAX_BYTES:
        raise LayoutError(f"the file would have {candidate.size} bytes, more than 2^63-1; check the shapes")
    return candidate


def check_runs(runs: Sequence[RunSpec]) -> None:
    """Raise LayoutError for what cannot be stored: no runs, bad or equal names, empty runs, bad shapes."""
    if not runs:
        raise LayoutError("nothing to lay out: the list of runs is empty")
    run_names: set[str] = set()
    tensor_names: set[str] = set()
    for run in runs:
        _check_name("run", run.name, run_names)
        if not run.tensors:
            raise LayoutError(f"run {run.name}: has no tensors; leave the run out")
        for spec in run.tensors:
            _check_name("tensor", spec.name, tensor_names)
            if any(size < 1 for size in spec.shape):
                raise LayoutError(
                    f"tensor {spec.name}: shape {list(spec.shape)} has no elements; leave it out"
                )


def _at(placed: Iterable[tuple[str, int, tuple[TensorSlot, ...]]], data_start: int, digest: str) -> Layout:
    runs: list[Run] = []
    offset = data_start
    for name, length, slots in placed:
        runs.append(Run(name, offset, length, NO_DIGEST, slots))
        offset += length
    return Layout(tuple(runs), data_start, offset, digest)


def _check_name(kind: str, name: str, seen: set[str]) -> None:
    if not isinstance(name, str) or not name:
        raise LayoutError(f"a {kind} name must be a non-empty string, not {name!r}")
    if not name.isprintable():  # control characters and lone surrogates would garble every later message
        raise LayoutError(f"{kind} name {name!r} holds characters that cannot be printed; rename it")
    if kind == "tensor" and (name == "__metadata__" or name.startswith(PAD_PREFIX)):
        raise LayoutError(f"tensor {name}: the name is reserved by the file format; rename it")
    if name in seen:
        raise LayoutError(f"{kind} {name}: listed twice")
    seen.add(name)


def plan_digest(version: Any, runs: Sequence[RunSpec], tag: str) -> str:
    """SHA-256 of what is to be written: `version` is the format, with what it decides by besides."""
    content = [
        version,
        tag,
        [[run.name, [[t.name, t.dtype, t.shape] for t in run.tensors]] for run in runs],
    ]
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()


def _header_json(plan: Layout, digests: Mapping[str, str]) -> bytes:
    rows = [[run.name, run.offset, run.length, digests.get(run.name, run.xxh3)] for run in plan.runs]
    table: dict[str, Any] = {
        "__metadata__": {
            KEY_FORMAT: FORMAT_VERSION,
            KEY_PLAN: plan.plan_digest,
            KEY_RUNS: json.dumps(rows, ensure_ascii=False, separators=(",", ":")),
        }
    }
    pads = 0
    for run in plan.runs:
        base = run.offset - plan.data_start
        end = 0
        for slot in run.tensors:
            if slot.offset_in_run > end:
                table[f"{PAD_PREFIX}{pads}"] = _entry("U8", (slot.offset_in_run - end,), base + end)
                pads += 1
            table[slot.name] = _entry(slot.dtype, slot.shape, base + slot.offset_in_run)
            end = slot.offset_in_run + slot.nbytes
        if run.length > end:
            table[f"{PAD_PREFIX}{pads}"] = _entry("U8", (run.length - end,), base + end)
            pads += 1
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _entry(dtype: str, shape: tuple[int, ...], start: int) -> dict[str, Any]:
    nbytes = math.prod(shape) * STORAGE_DTYPES[dtype].itemsize
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + nbytes]}


def build_header(plan: Layout, digests: Mapping[str, str], make_json: Any = _header_json) -> bytes:
    """The first `data_start` bytes of the file. `digests`: xxh3-64 in 16 hex digits for every part of every
    run; `make_json` is what writes the layout's format.
    """
    for run in plan.runs:
        if len(digests[run.name]) != 16 * len(run.parts):
            raise LayoutError(f"run {run.name}: digest {digests[run.name]!r} is not 16 hex digits")
    text = make_json(plan, digests)
    length = plan.data_start - 8
    return length.to_bytes(8, "little") + text.ljust(length, b" ")
