"""Flash files of format "2": the safetensors file that another program names and reads, with runs beside it.

Tensors follow each other without holes or padding, as that program calls them: those of a whole number of
64 bytes in the order of the runs, the others behind them, larger elements first, so that each starts at a
multiple of its elements' size. A run's tensors are such tensors, or rows of them: tiles of a table are slices
of one. So a run is one or more segments of the file, each read from the page that it begins in to the page
that it ends in.

`__metadata__` holds edgekit.format "2", edgekit.plan, `format` "mlx", and edgekit.runs:

    [[run, [xxh3-64 of every segment], prefix, [tensor...]]...]
    tensor   NAME, which is stored as prefix + NAME; or [NAME, [stored name, first row, rows]...], joined

NAME goes without the run's name and its dot. What of a run follows each other in the file is one segment.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgekit.flashload.errors import LayoutError
from edgekit.flashload.format import (
    KEY_FORMAT,
    KEY_PLAN,
    KEY_RUNS,
    MAX_BYTES,
    MAX_HEADER_BYTES,
    NO_DIGEST,
    RUN_ALIGNMENT,
    STORAGE_DTYPES,
    TENSOR_ALIGNMENT,
    Layout,
    Run,
    RunSpec,
    Segment,
    TensorSlot,
    TensorSpec,
    align_up,
    check_runs,
    plan_digest,
)

PACKED_VERSION = "2"
_READER = "mlx"  # what MLX's readers want under `format`


@dataclass(frozen=True)
class Slice:
    """Rows `first` to `first + rows` of the stored tensor `name`. A scalar is a row of its own."""

    name: str
    first: int
    rows: int


#: What a tensor of a run is made of, joined along axis 0, by the tensor's full name.
Stored = Mapping[str, tuple[Slice, ...]]


def packed_layout(runs: Sequence[RunSpec], stored: Stored, tag: str) -> Layout:
    """Place the stored tensors, and the runs in them.

    Raises:
        LayoutError: as `format.layout`; a tensor of a run is not made of rows of its type and width, its
            slices do not follow each other in the file, or rows of a stored tensor are in several runs.
    """
    check_runs(runs)
    entries = _stored_tensors(runs, stored)
    ordered = sorted(entries.items(), key=lambda each: each[1].order)
    offsets, end = dict[str, int](), 0
    for name, entry in ordered:
        offsets[name] = end
        end += entry.nbytes
    tensors = tuple(
        TensorSlot(n, e.dtype, (e.rows, *e.width) if e.shaped else (), offsets[n], e.nbytes)
        for n, e in ordered
    )
    placed = [
        (run.name, [_Placed.of(t, stored[t.name], entries, offsets) for t in run.tensors]) for run in runs
    ]
    parts = {name: [[s.name, s.first, s.rows] for s in slices] for name, slices in stored.items()}
    digest = plan_digest([PACKED_VERSION, parts], runs, tag)
    data_start = RUN_ALIGNMENT
    while True:
        own = tuple(_run(name, slots, data_start) for name, slots in placed)
        plan = Layout(own, data_start, data_start + end, digest, tensors, stored)
        needed = 8 + len(header_json(plan, {}))
        if needed <= data_start:
            break
        data_start = align_up(needed, RUN_ALIGNMENT)
    if data_start - 8 > MAX_HEADER_BYTES:
        raise LayoutError(
            f"a header of {data_start} bytes passes the safetensors limit of {MAX_HEADER_BYTES}"
        )
    if plan.size > MAX_BYTES:
        raise LayoutError(f"the file would have {plan.size} bytes, more than 2^63-1; check the shapes")
    return plan


@dataclass(frozen=True)
class _Entry:
    dtype: str
    width: tuple[int, ...]  # the shape of a row
    rows: int
    shaped: bool = True  # a scalar has one row, but no axis

    @property
    def row_bytes(self) -> int:
        return math.prod(self.width) * self.alignment

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def alignment(self) -> int:
        return STORAGE_DTYPES[self.dtype].itemsize

    @property
    def order(self) -> int:
        """The key that tensors are sorted by; those of one value stay in the order of the runs."""
        return 0 if self.nbytes % TENSOR_ALIGNMENT == 0 else 9 - self.alignment


def _stored_tensors(runs: Iterable[RunSpec], stored: Stored) -> dict[str, _Entry]:
    """In order of first use, every row used once and in order."""
    found: dict[str, _Entry] = {}
    for run in runs:
        for spec in run.tensors:
            if not spec.name.startswith(run.name + "."):
                raise LayoutError(f"tensor {spec.name}: does not begin with the name of its run, {run.name}")
            entry = _Entry(spec.dtype, spec.shape[1:], 0, bool(spec.shape))
            for part in stored[spec.name]:
                before = found.get(part.name, entry)
                if replace(before, rows=0) != entry or before.rows != part.first:
                    raise LayoutError(f"tensor {spec.name}: does not continue what {part.name} holds")
                found[part.name] = replace(before, rows=part.first + part.rows)
            if sum(part.rows for part in stored[spec.name]) != (spec.shape[0] if spec.shape else 1):
                raise LayoutError(f"tensor {spec.name}: its stored rows are not those of shape {spec.shape}")
    return found


@dataclass(frozen=True)
class _Placed:
    """A tensor of a run, and where its bytes start in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORAGE_DTYPES[self.dtype].itemsize

    @classmethod
    def of(
        cls,
        spec: TensorSpec,
        parts: Iterable[Slice],
        entries: Mapping[str, _Entry],
        offsets: Mapping[str, int],
    ) -> _Placed:
        spans = [
            (offsets[p.name] + p.first * entries[p.name].row_bytes, p.rows * entries[p.name].row_bytes)
            for p in parts
        ]
        for (start, nbytes), (then, _) in itertools.pairwise(spans):
            if start + nbytes != then:
                raise LayoutError(f"tensor {spec.name}: its slices do not follow each other in the file")
        return cls(spec.name, spec.dtype, spec.shape, spans[0][0])


def _run(name: str, tensors: Sequence[_Placed], data_start: int) -> Run:
    """A run of tensors that are not written yet: its segments, and where they are in memory."""
    spans: list[list[int]] = []
    at: list[int] = []  # the segment of every tensor
    for tensor in tensors:
        if not spans or spans[-1][1] != tensor.offset:
            spans.append([tensor.offset, tensor.offset])
        spans[-1][1] += tensor.nbytes
        at.append(len(spans) - 1)
    segments: list[Segment] = []
    end = 0
    for begin, stop in spans:
        place = end + (data_start + begin) % RUN_ALIGNMENT
        segments.append(Segment(data_start + begin, place, stop - begin, NO_DIGEST))
        end = align_up(place + stop - begin, RUN_ALIGNMENT)
    slots = tuple(
        TensorSlot(t.name, t.dtype, t.shape, segments[i].place + t.offset - spans[i][0], t.nbytes)
        for t, i in zip(tensors, at, strict=True)
    )
    return Run(name, segments[0].offset, end, NO_DIGEST * len(segments), slots, tuple(segments))


# --- the header ---------------------------------------------------------------------------------------------


def header_json(plan: Layout, digests: Mapping[str, str]) -> bytes:
    """The header of a packed layout. `digests`: 16 hex digits for every segment of a run, by its name."""
    rows = []
    whole = {slot.name: Slice(slot.name, 0, slot.shape[0] if slot.shape else 1) for slot in plan.tensors}
    for run in plan.runs:
        text = digests.get(run.name, run.xxh3)
        own = [(slot.name.removeprefix(run.name + "."), plan.stored[slot.name]) for slot in run.tensors]
        prefix = _prefix(own)
        listed = [
            name
            if parts == (whole.get(prefix + name),)
            else [name, *([p.name, p.first, p.rows] for p in parts)]
            for name, parts in own
        ]
        rows.append([run.name, [text[i : i + 16] for i in range(0, len(text), 16)], prefix, listed])
    metadata = {
        "format": _READER,
        KEY_FORMAT: PACKED_VERSION,
        KEY_PLAN: plan.plan_digest,
        KEY_RUNS: json.dumps(rows, ensure_ascii=False, separators=(",", ":")),
    }
    table: dict[str, Any] = {"__metadata__": metadata}
    for slot in plan.tensors:
        offsets = [slot.offset_in_run, slot.offset_in_run + slot.nbytes]
        table[slot.name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": offsets}
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _prefix(own: Sequence[tuple[str, tuple[Slice, ...]]]) -> str:
    """What most stored names of a run have before the run's own name for them."""
    found = [parts[0].name.removesuffix(name) for name, parts in own if parts[0].name.endswith(name)]
    return max(found, key=lambda f: (found.count(f), f), default="")
