"""What the header of a flash file says, for tests: in json and arithmetic, without a check.

It reads headers that the core has accepted; `sound` then asks for what every one of them must hold.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

from edgekit.flashload.format import STORAGE_DTYPES

PAGE, LINE = 16 * 1024, 64


def _table(text: str | bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a name appears twice"
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def described(data: bytes) -> dict[str, Any]:
    """As `native_parsing.flash_layout` gives it: runs are [name, offset, length, digest, tensors, segments],
    tensors [short name, dtype, shape, offset in the run, bytes, name].
    """
    start = 8 + int.from_bytes(data[:8], "little")
    # The core takes lone surrogates in names of metadata that it does not use.
    table = _table(data[8:start].decode("utf-8", "surrogatepass"))
    meta = table.pop("__metadata__")
    rows = _table(meta["edgekit.runs"])
    if meta["edgekit.format"] == "1":
        runs = [_aligned(row, table, start) for row in rows]
        end = runs[-1][1] + runs[-1][2]
    else:
        runs = [_packed(row, table, start) for row in rows]
        end = start + max(entry["data_offsets"][1] for entry in table.values())
    return {"size": end, "data_start": start, "plan": meta.get("edgekit.plan", ""), "runs": runs}


def _aligned(row: Any, table: dict[str, Any], start: int) -> list[Any]:
    name, offset, length, digest = row
    inside = [
        (entry["data_offsets"][0] + start - offset, tensor, entry)
        for tensor, entry in table.items()
        if not tensor.startswith("__pad__.") and 0 <= entry["data_offsets"][0] + start - offset < length
    ]
    full = {tensor for _, tensor, _ in inside}
    tensors = []
    for place, tensor, entry in sorted(inside, key=lambda each: each[0]):
        short = tensor.removeprefix(name + ".")
        short = tensor if short in full or not short else short
        begin, end = entry["data_offsets"]
        tensors.append([short, entry["dtype"], entry["shape"], place, end - begin, tensor])
    return [name, offset, length, int(digest, 16), tensors, []]


def _packed(row: Any, table: dict[str, Any], start: int) -> list[Any]:
    name, digests, prefix, listed = row
    tensors, segments, end = list[list[Any]](), list[list[int]](), 0
    for item in listed:
        own, *slices = [item] if isinstance(item, str) else item
        if slices:
            entry = table[slices[0][0]]
            shape = [sum(rows for _, _, rows in slices), *entry["shape"][1:]]
            first = slices[0][1]
        else:
            entry, first = table[prefix + own], 0
            shape = entry["shape"]
        nbytes = math.prod(shape) * STORAGE_DTYPES[entry["dtype"]].itemsize
        at = start + entry["data_offsets"][0] + (first * (nbytes // shape[0]) if shape else 0)
        if not segments or segments[-1][0] + segments[-1][2] != at:
            segments.append([at, end + at % PAGE, 0, int(digests[len(segments)], 16)])
        segment = segments[-1]
        place = segment[1] + segment[2]
        segment[2] += nbytes
        end = -(-(segment[1] + segment[2]) // PAGE) * PAGE
        tensors.append([own, entry["dtype"], shape, place, nbytes, f"{name}.{own}"])
    return [name, segments[0][0], end, segments[0][3], tensors, segments]


def sound(found: dict[str, Any], file_size: int) -> None:
    """Every byte behind the header is one run's, and every tensor lies aligned in one part of its run."""
    assert found["size"] == file_size < 2**63 and found["data_start"] % PAGE == 0
    spans = []
    for name, offset, length, digest, tensors, segments in found["runs"]:
        parts = segments or [[offset, 0, length, digest]]
        spans += [(at, at + nbytes) for at, _, nbytes, _ in parts]
        assert name and tensors and length % PAGE == 0
        assert len({t[0] for t in tensors}) == len({t[5] for t in tensors}) == len(tensors)
        end = 0
        for short, dtype, shape, place, nbytes, _ in tensors:
            assert short
            assert nbytes == math.prod(shape) * STORAGE_DTYPES[dtype].itemsize > 0
            assert place >= end and place % (1 if segments else LINE) == 0
            assert any(p <= place and place + nbytes <= p + size <= length for _, p, size, _ in parts)
            end = place + nbytes
    assert len({run[0] for run in found["runs"]}) == len(found["runs"])
    edges = sorted(spans)
    assert edges[0][0] == found["data_start"] and edges[-1][1] == file_size
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(edges))
