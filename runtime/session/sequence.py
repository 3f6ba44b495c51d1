"""Texts that a session goes on with, and passes over several of them: `ek_sequence` of `edgekit.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Items
from ctypes import c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgekit.flashload import errors
from edgekit.runtime.session.encoded_ids import EncodedIds
from edgekit.runtime.session.head_arrays import HeadArrays
from edgekit.runtime.session.structs import PassSegmentStruct, SeenRowsStruct, SequenceInfoStruct

if TYPE_CHECKING:
    from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

_NOTHING = -1  # EK_KEEP_NOTHING
_KEPT = -1  # of ek_seen_rows


class Owner(Protocol):
    """The side of a session that its sequences need."""

    vocab_size: int
    hidden_size: int

    def run_pass(self, segments: Items[Segment]) -> list[HeadOutput | None]: ...

    def call(self, name: str, *arguments: Any) -> None: ...

    def adopt(self, sequence: Sequence) -> None: ...

    def release(self, sequence: Sequence, handle: int) -> None: ...


class Sequence:
    """The keys and values that are kept of a text, and the hidden states of its last pass. Implements
    `sampling.Denoiser` and `sampling.Projector`; belongs to its session, which ends it.

    Made by `Session.open_sequence` and `copy`. What a sequence gives is the same alone and in company.
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
        made = c_void_p()
        self.session.call("ek_sequence_copy", self.handle, ctypes.byref(made))
        other = Sequence(self.session, made.value)
        other.encoded.calls[:] = self.encoded.calls
        other.uncached = self.uncached
        self.session.adopt(other)
        return other

    def close(self) -> None:
        """Give back what it keeps. The session's own sequence stays."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.session.release(self, handle)

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
        self.session.call("ek_sequence_crop", self.handle, length)
        self.encoded.cropped(length)
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] causally, in chunks of the canvas's length, and keep their keys and values."""
        ids = np.ascontiguousarray(ids, np.int64)
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

    def __init__(self, segments: Items[Segment], vocab_size: int, hidden_size: int) -> None:
        """Raises InvalidRequest for arrays that do not fit."""
        self._kept: list[object] = []
        self.heads: list[HeadArrays | None] = []
        self.structs = (PassSegmentStruct * len(segments))(
            *(self._struct(each, vocab_size, hidden_size) for each in segments)
        )

    def _struct(self, given: Segment, vocab_size: int, hidden_size: int) -> PassSegmentStruct:
        made = PassSegmentStruct(
            sequence=given.sequence.handle,
            causal=given.causal,
            keep_at=_NOTHING if given.keep_at is None else given.keep_at,
        )
        rows = 0
        if given.ids is not None:
            ids = np.ascontiguousarray(given.ids, np.int64)
            rows, made.ids, made.count = ids.size, ids.ctypes.data, ids.size
            self._kept.append(ids)
            if ids.ndim != 1 or rows == 0:
                raise errors.InvalidRequest(f"token ids of shape {ids.shape}; it takes [T], at least one")
        elif given.request is not None:
            rows = int(given.sequence._info().last_rows)
        if given.positions is not None:
            made.positions = self._array(given.positions, np.int64, (rows,), "positions")
        if given.soft is not None:
            made.soft = self._array(given.soft, np.float32, (rows, hidden_size), "soft embeddings")
        if given.seen is not None:
            rows_of = [(_KEPT if s.segment is None else s.segment, s.first, s.count) for s in given.seen]
            seen = (SeenRowsStruct * max(1, len(rows_of)))(*(SeenRowsStruct(*each) for each in rows_of))
            made.seen, made.seen_count = seen, len(given.seen)
            self._kept.append(seen)
        head = None if given.request is None else HeadArrays(given.request, rows, vocab_size, hidden_size)
        self.heads.append(head)
        if head is not None:
            made.request, made.output = ctypes.pointer(head.request), ctypes.pointer(head.output)
        return made

    def _array(self, given: np.ndarray, dtype: type, shape: tuple[int, ...], what: str) -> int:
        array: np.ndarray = np.ascontiguousarray(given, dtype)
        if array.shape != shape:
            raise errors.InvalidRequest(f"{what} of shape {array.shape}; this segment takes {shape}")
        self._kept.append(array)
        return int(array.ctypes.data)
