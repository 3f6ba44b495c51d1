"""Parsing the header of a flash file: all that a later read relies on is checked here, before any read."""

from __future__ import annotations

from edgekit.flashload.errors import MalformedFile, NotAFlashFile, TruncatedFile, UnsupportedVersion
from edgekit.flashload.format import (
    FORMAT_VERSION,
    KEY_FORMAT,
    KEY_PLAN,
    KEY_RUNS,
    MAX_BYTES,
    MAX_HEADER_BYTES,
    PAD_PREFIX,
    RUN_ALIGNMENT,
    TENSOR_ALIGNMENT,
    Layout,
    Run,
    TensorSlot,
    is_digest,
)
from edgekit.flashload.header_tensors import Span, check_name, is_size, parse_tensors
from edgekit.flashload.packed import PACKED_VERSION, parse_packed
from edgekit.flashload.strictjson import loads_strict

PREFIX_BYTES = 64  # enough of the file to recognise what it is


def header_length(prefix: bytes, file_size: int, where: str) -> int:
    """Length of the JSON header, from the first `PREFIX_BYTES` (or all, when shorter) of the file.

    Raises NotAFlashFile for something else than safetensors, TruncatedFile when the header is cut short.
    """
    if prefix.startswith(b"version https://git-lfs"):
        raise NotAFlashFile(f"{where}: is a Git LFS pointer, not the weights; run `git lfs pull`")
    if file_size < 8:
        raise TruncatedFile(f"{where}: has {file_size} bytes, too few for a header; export or copy it again")
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise NotAFlashFile(
            f"{where}: its first 8 bytes announce a header of {length} bytes, more than "
            f"{MAX_HEADER_BYTES}; this is not a safetensors file"
        )
    if prefix[8:9] not in (b"", b"{"):
        raise NotAFlashFile(f"{where}: the header is not a JSON object; this is not a safetensors file")
    if 8 + length > file_size:
        raise TruncatedFile(
            f"{where}: the header needs {8 + length} bytes but the file has {file_size}; "
            "export or copy it again"
        )
    return length


def parse_header(raw: bytes, file_size: int, where: str) -> Layout:
    """Validate a header (without its 8-byte length) against the size of the file and return the layout.

    Everything that a later read relies on is checked here: bounds, order, overlap, holes, alignment, sizes
    and duplicates. Raises NotAFlashFile, UnsupportedVersion, MalformedFile or TruncatedFile.
    """
    data_start = 8 + len(raw)
    table = loads_strict(raw, f"{where}: header")
    if not isinstance(table, dict):
        raise NotAFlashFile(f"{where}: the header is not a JSON object; this is not a safetensors file")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedFile(f"{where}: __metadata__ must map names to strings")
    if KEY_FORMAT not in metadata or KEY_RUNS not in metadata:
        raise NotAFlashFile(f"{where}: is a safetensors file without runs; convert it with `edgekit export`")
    if metadata[KEY_FORMAT] not in (FORMAT_VERSION, PACKED_VERSION):
        raise UnsupportedVersion(
            f"{where}: flash format {metadata[KEY_FORMAT]!r}, this edgekit reads "
            f"{FORMAT_VERSION!r} and {PACKED_VERSION!r}; update edgekit or export again"
        )
    if data_start % RUN_ALIGNMENT:
        raise MalformedFile(f"{where}: data starts at {data_start}, not at a multiple of {RUN_ALIGNMENT}")
    if metadata[KEY_FORMAT] == PACKED_VERSION:
        plan = metadata.get(KEY_PLAN, "")
        return parse_packed(
            metadata[KEY_RUNS], plan, parse_tensors(table, where), data_start, file_size, where
        )
    rows = _parse_runs(metadata[KEY_RUNS], data_start, where)
    spans = parse_tensors(table, where)
    runs = _assign(rows, spans, data_start, where)
    size = runs[-1].offset + runs[-1].length
    if file_size < size:
        raise TruncatedFile(f"{where}: has {file_size} of {size} bytes; export or copy it again")
    if file_size > size:
        raise MalformedFile(f"{where}: {file_size - size} bytes follow the last run; export or copy it again")
    return Layout(runs, data_start, size, metadata.get(KEY_PLAN, ""))


def _parse_runs(text: str, data_start: int, where: str) -> list[Run]:
    rows = loads_strict(text.encode("utf-8", "surrogatepass"), f"{where}: edgekit.runs")
    if not isinstance(rows, list) or not rows:
        raise MalformedFile(f"{where}: edgekit.runs must be a non-empty list")
    runs: list[Run] = []
    names: set[str] = set()
    expected = data_start
    for row in rows:
        if not (
            isinstance(row, list) and len(row) == 4 and isinstance(row[0], str) and isinstance(row[3], str)
        ):
            raise MalformedFile(f"{where}: a run must be [name, offset, length, xxh3], found {str(row)[:80]}")
        name, offset, length, digest = row
        check_name("run", name, where)
        if name in names:
            raise MalformedFile(f"{where}: run {name} is listed twice")
        names.add(name)
        if not is_size(offset) or not is_size(length) or offset + length > MAX_BYTES or length == 0:
            raise MalformedFile(
                f"{where}: run {name}: {str(length)[:40]} bytes at {str(offset)[:40]} is no span"
            )
        if offset % RUN_ALIGNMENT or length % RUN_ALIGNMENT:
            raise MalformedFile(
                f"{where}: run {name}: {length} bytes at {offset} is not aligned to {RUN_ALIGNMENT}"
            )
        if offset != expected:
            raise MalformedFile(
                f"{where}: run {name} starts at {offset}, expected {expected} (the end of what "
                "comes before it)"
            )
        if not is_digest(digest):
            raise MalformedFile(f"{where}: run {name}: {digest[:40]!r} is not an xxh3-64 digest")
        runs.append(Run(name, offset, length, digest, ()))
        expected = offset + length
    return runs


def _assign(rows: list[Run], spans: list[Span], data_start: int, where: str) -> tuple[Run, ...]:
    """Hand every tensor to the run that contains it; refuse overlaps, holes and tensors across two runs."""
    runs: list[Run] = []
    position = 0
    cursor = 0
    for run in rows:
        base = run.offset - data_start
        slots: list[TensorSlot] = []
        while cursor < len(spans) and spans[cursor][0] < base + run.length:
            begin, end, slot = spans[cursor]
            if begin < position:
                raise MalformedFile(f"{where}: tensor {slot.name} overlaps the one before it at byte {begin}")
            if begin > position:
                raise MalformedFile(f"{where}: no tensor covers bytes {position}..{begin} before {slot.name}")
            if end > base + run.length:
                raise MalformedFile(f"{where}: tensor {slot.name} crosses the end of run {run.name}")
            if slot.name.startswith(PAD_PREFIX):
                if slot.dtype != "U8":
                    raise MalformedFile(
                        f"{where}: tensor {slot.name}: padding must be U8, found {slot.dtype}"
                    )
            else:
                if (begin - base) % TENSOR_ALIGNMENT:
                    raise MalformedFile(
                        f"{where}: tensor {slot.name} starts {begin - base} bytes into run "
                        f"{run.name}, not at a multiple of {TENSOR_ALIGNMENT}"
                    )
                slots.append(TensorSlot(slot.name, slot.dtype, slot.shape, begin - base, slot.nbytes))
            position = end
            cursor += 1
        if position != base + run.length:
            raise MalformedFile(
                f"{where}: no tensor covers bytes {position}..{base + run.length} of run {run.name}"
            )
        if not slots:
            raise MalformedFile(f"{where}: run {run.name} holds no tensors")
        runs.append(Run(run.name, run.offset, run.length, run.xxh3, tuple(slots)))
    if cursor < len(spans):
        raise MalformedFile(f"{where}: tensor {spans[cursor][2].name} lies outside every run")
    return tuple(runs)
