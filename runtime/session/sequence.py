"""Texts that a session goes on with, and passes over several of them: `ek_sequence` of `edgekit.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgekit.flashload import errors
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.ids import flat_ids, whole
from edgekit.runtime.session.encoded_ids import EncodedIds
from edgekit.runtime.session.head_arrays import HeadArrays
from edgekit.runtime.session.structs import PassSegmentStruct, SeenRowsStruct, SequenceInfoStruct

if TYPE_CHECKING:
    from types import TracebackType

    from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

_NOTHING = -1  # EK_KEEP_NOTHING
_KEPT = -1  # of ek_seen_rows


class Owner(Protocol):
    """The side of a session that its sequences need."""

    vocab_size: int
    hidden_size: int

    def run_pass(self, segments: Items[Segment]) -> list[HeadOutput | None]: ...

    def call(self, name: str, *arguments: Any) -> None: ...

    def open_handle(self, name: str, *arguments: Any) -> int:
        """The handle of the sequence that a function of the core makes."""

    def release(self, handle: int) -> None:
        """Close a sequence now."""

    def drop(self, handle: int) -> None:
        """Close a sequence that nobody has any more before the next call."""


class Sequence:
    """The keys and values that are kept of a text, and the hidden states of its last pass. Implements
    `sampling.Denoiser` and `sampling.Projector`; belongs to its session, which ends it.

    Made by `Session.open_sequence` and `copy`; one that is not closed ends with its last reference. What a
    sequence gives is the same alone and in company.
    """

    def __init__(self, session: Owner, handle: int | None) -> None:
        """`handle` None: the session's own sequence."""
        self.session, self._handle, self._own = session, handle, handle is None
        self.encoded = EncodedIds()
        self.uncached: Ids = np.empty(0, np.int64)

    @property
    def vocab_size(self) -> int:
        return self.session.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.session.hidden_size

    @property
    def prefix_length(self) -> int:
        return int(self._info().prefix_length)

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded."""
        return self.encoded.calls

    def copy(self) -> Sequence:
        """Another one in the same state. The two share what is kept until they go on differently.

        Raises BudgetExceeded for more sequences than the session was opened for.
        """
        other = Sequence(self.session, self.session.open_handle("ek_sequence_copy", self.handle))
        other.encoded.calls[:] = self.encoded.calls
        other.uncached = self.uncached
        return other

    def close(self) -> None:
        """Give back what it keeps. The session's own sequence stays."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.session.release(handle)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self.session.drop(handle)

    def reset(self) -> None:
        """Forget the prefix, and what is uncached."""
        if self._own:
            self.session.call("ek_session_reset")
        else:
            self.session.call("ek_sequence_crop", self.handle, 0)
        self.encoded.calls.clear()
        self.uncached = np.empty(0, np.int64)

    def crop(self, length: int) -> None:
        """Forget what is kept at and behind position `length`, and what is uncached.

        Raises InvalidRequest where more is asked for than is kept, or layers with a sliding window no longer
        have what precedes it: of what was kept, the last canvas can always be taken back.
        """
        self.session.call("ek_sequence_crop", self.handle, whole(length, "the length to crop to"))
        self.encoded.cropped(length)
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] causally, in chunks of the canvas's length, and keep their keys and values."""
        ids = flat_ids(ids, "the list of token ids")
        try:
            self.session.call("ek_sequence_prefill", self.handle, ids.ctypes.data, ids.size)
        finally:
            self.encoded.prefilled(ids, self.prefix_length)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One bidirectional pass of ids [T] over [prefix KV ; canvas], and the head on the requested rows."""
        (answer,) = self.session.run_pass([Segment(self, ids, request, soft=soft)])
        assert answer is not None, "it was asked for"
        return answer

    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last pass that gave some."""
        (answer,) = self.session.run_pass([Segment(self, None, request)])
        assert answer is not None, "it was asked for"
        return answer

    @property
    def handle(self) -> int | None:
        """For the core; None for the session's own. Raises InvalidRequest once it is closed."""
        if self._handle is None and not self._own:
            raise errors.InvalidRequest("the sequence is closed")
        return self._handle

    def _info(self) -> SequenceInfoStruct:
        info = SequenceInfoStruct()
        self.session.call("ek_sequence_get_info", self.handle, ctypes.byref(info))
        return info


@dataclass(frozen=True)
class SeenRows:
    """Rows first..first+count that a segment sees: kept positions of its sequence (`segment` None), or rows
    of an earlier segment of the pass.
    """

    segment: int | None
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows of a pass that see the same: token ids [T] of a canvas, or `causal` ones; ids None: no rows, and
    `request` is answered from the hidden states of the sequence's last pass.

    `soft` [T, hidden] is an earlier answer's. `positions` [T], None: behind what is kept, or from keep_at on.
    `seen`: rows before its own, None: all that its sequence keeps, up to keep_at. `keep_at`: its keys and
    values are kept from this position on, in place of those there; None: they are not kept.
    """

    sequence: Sequence
    ids: Ids | None
    request: HeadRequest | None = None
    soft: Floats | None = None
    causal: bool = False
    positions: Ids | None = None
    seen: Items[SeenRows] | None = None
    keep_at: int | None = None


class PassArrays:
    """Segments as the core takes them, and what they point at, as long as this object lives."""

    def __init__(self, segments: Items[Segment], session: Owner) -> None:
        """Raises InvalidRequest for what is no segment of this session, and for arrays that do not fit."""
        self._kept: list[object] = []
        self.heads: list[HeadArrays | None] = []
        if isinstance(segments, Segment) or not isinstance(segments, Iterable):
            raise errors.InvalidRequest(
                f"the segments of a pass are {shown(segments)}; pass a list of Segment"
            )
        structs = [self._struct(each, session) for each in segments]
        self.structs = (PassSegmentStruct * len(structs))(*structs)

    def _struct(self, given: Segment, session: Owner) -> PassSegmentStruct:
        if not isinstance(given, Segment) or not isinstance(given.sequence, Sequence):
            raise errors.InvalidRequest(f"a segment is {shown(given)}; pass a Segment of a Sequence")
        if given.sequence.session is not session:
            raise errors.InvalidRequest("the sequence belongs to another session")
        vocab_size, hidden_size = session.vocab_size, session.hidden_size
        made = PassSegmentStruct(
            sequence=given.sequence.handle,
            causal=bool(given.causal),
            keep_at=_NOTHING if given.keep_at is None else whole(given.keep_at, "keep_at"),
        )
        rows = 0
        if given.ids is not None:
            ids = flat_ids(given.ids, "the list of token ids")
            rows, made.ids, made.count = ids.size, ids.ctypes.data, ids.size
            self._kept.append(ids)
            if rows == 0:
                raise errors.InvalidRequest("token ids of shape (0,); a segment takes at least one, or None")
        elif given.request is not None:
            rows = int(given.sequence._info().last_rows)
        if given.positions is not None:
            places = flat_ids(given.positions, "the list of positions")
            made.positions = self._array(places, (rows,), "positions")
        if given.soft is not None:
            made.soft = self._array(_numbers(given.soft), (rows, hidden_size), "soft embeddings")
        if given.seen is not None:
            looked_at = [_seen(each) for each in given.seen]
            seen = (SeenRowsStruct * max(1, len(looked_at)))(*looked_at)
            made.seen, made.seen_count = seen, len(looked_at)
            self._kept.append(seen)
        head = None if given.request is None else HeadArrays(given.request, rows, vocab_size, hidden_size)
        self.heads.append(head)
        if head is not None:
            made.request, made.output = ctypes.pointer(head.request), ctypes.pointer(head.output)
        return made

    def _array(self, array: np.ndarray, shape: tuple[int, ...], what: str) -> int:
        if array.shape != shape:
            raise errors.InvalidRequest(f"{what} of shape {array.shape}; this segment takes {shape}")
        self._kept.append(array)
        return int(array.ctypes.data)


def _seen(given: SeenRows) -> SeenRowsStruct:
    if not isinstance(given, SeenRows):
        raise errors.InvalidRequest(f"a segment sees {shown(given)}; pass SeenRows")
    segment = _KEPT if given.segment is None else whole(given.segment, "SeenRows.segment")
    return SeenRowsStruct(segment, whole(given.first, "SeenRows.first"), whole(given.count, "SeenRows.count"))


def _numbers(given: Floats) -> Floats:
    try:
        array = np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError):
        raise errors.InvalidRequest(f"soft embeddings are {shown(given)}; pass numbers") from None
    if not np.isfinite(array).all():
        raise errors.InvalidRequest(
            "soft embeddings hold what is not finite; give those of an earlier answer"
        )
    return array
