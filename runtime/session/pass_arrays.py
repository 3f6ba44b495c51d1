"""The segments of a pass as the core takes them: `ek_pass_segment` of `edgekit.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np

from edgekit.flashload import errors
from edgekit.flashload.core_memory import address
from edgekit.flashload.names import shown
from edgekit.runtime.core_structs import PassSegmentStruct, SeenRowsStruct
from edgekit.runtime.sampling.ids import check_list, flat_ids, truth, whole
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.session.head_arrays import HeadArrays
from edgekit.runtime.session.sequence import Owner, SeenRows, Segment, Sequence

_NOTHING = -1  # EK_KEEP_NOTHING
_KEPT = -1  # of ek_seen_rows


def segment_list(segments: Items[Segment]) -> list[Segment]:
    """The segments of a pass, which may be made one by one. Raises InvalidRequest for what is no list."""
    if not isinstance(segments, Iterable):
        raise errors.InvalidRequest(f"the segments of a pass are {shown(segments)}; pass a list of Segment")
    return list(segments)


class PassArrays:
    """Segments as the core takes them, and what they point at, as long as this object lives."""

    def __init__(self, segments: Items[Segment], session: Owner) -> None:
        """To be made within the call of the session: sequences stay open there. Raises InvalidRequest for
        what is no segment of this session, and for arrays that do not fit.
        """
        self._held: list[object] = []
        self.heads: list[HeadArrays | None] = []
        structs = []
        for number, each in enumerate(segments):
            try:
                structs.append(self._struct(each, session))
            except errors.EdgekitError as error:
                error.segment = number
                raise
        self.structs = (PassSegmentStruct * len(structs))(*structs)

    def _struct(self, given: Segment, session: Owner) -> PassSegmentStruct:
        if not isinstance(given, Segment) or not isinstance(given.sequence, Sequence):
            raise errors.InvalidRequest(f"a segment is {shown(given)}; pass a Segment of a Sequence")
        if given.sequence.session is not session:
            raise errors.InvalidRequest("the sequence belongs to another session")
        vocab_size, hidden_size = session.vocab_size, session.hidden_size
        made = PassSegmentStruct(
            sequence=given.sequence.handle,
            causal=truth(given.causal, "causal"),
            block=whole(given.block, "block"),
            keep_at=_NOTHING if given.keep_at is None else whole(given.keep_at, "keep_at"),
            adapter=whole(given.adapter, "adapter"),
            keep_count=whole(given.keep_count, "keep_count"),
        )
        rows = 0
        if given.ids is not None:
            ids = flat_ids(given.ids, "the list of token ids")
            rows, made.ids, made.count = ids.size, address(ids), ids.size
            self._held.append(ids)
            if rows == 0:
                raise errors.InvalidRequest("token ids of shape (0,); a segment takes at least one, or None")
        elif given.request is not None:
            rows = given.sequence.last_rows()
            if rows == 0:  # the answer's arrays have room for none, whatever another thread does meanwhile
                raise errors.InvalidRequest("project needs a denoise before it that did not fail")
        if given.positions is not None:
            places = flat_ids(given.positions, "the list of positions")
            made.positions = self._array(places, (rows,), "positions")
        if given.soft is not None:
            made.soft = self._array(_numbers(given.soft), (rows, hidden_size), "soft embeddings")
        if given.seen is not None:
            looked_at = _all_seen(given.seen)
            seen = (SeenRowsStruct * max(1, len(looked_at)))(*looked_at)
            made.seen, made.seen_count = seen, len(looked_at)
            self._held.append(seen)
        head = None if given.request is None else HeadArrays(given.request, rows, vocab_size, hidden_size)
        self.heads.append(head)
        if head is not None:
            made.request, made.output = ctypes.addressof(head.request), ctypes.addressof(head.output)
        return made

    def _array(self, array: np.ndarray, shape: tuple[int, ...], what: str) -> int:
        if array.shape != shape:
            raise errors.InvalidRequest(f"{what} of shape {array.shape}; this segment takes {shape}")
        self._held.append(array)
        return address(array)


def _all_seen(given: Items[SeenRows]) -> list[SeenRowsStruct]:
    check_list(given, "the rows that a segment sees")
    return [_seen(each) for each in given]


def _seen(given: SeenRows) -> SeenRowsStruct:
    if not isinstance(given, SeenRows):
        raise errors.InvalidRequest(f"a segment sees {shown(given)}; pass SeenRows")
    segment = _KEPT if given.segment is None else whole(given.segment, "SeenRows.segment")
    return SeenRowsStruct(segment, whole(given.first, "SeenRows.first"), whole(given.count, "SeenRows.count"))


def _numbers(given: Floats) -> Floats:
    try:
        return np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError):
        raise errors.InvalidRequest(f"soft embeddings are {shown(given)}; pass numbers") from None
