"""Texts that a session goes on with, and rows of them in a pass: `ek_sequence` and `ek_pass_segment` of
`edgekit.h`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence as Items
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgekit.flashload import _native, errors
from edgekit.flashload.names import shown
from edgekit.runtime.one_driver import OneDriver
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.sampling.asks import Prefix, SeenRows
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.drive import within_core
from edgekit.runtime.sampling.ids import check_tokens, flat_ids, whole
from edgekit.runtime.session.saved import path_of, read_saved
from edgekit.runtime.session.structs import SaveOptionsStruct, SequenceInfoStruct

if TYPE_CHECKING:
    from types import TracebackType

    from edgekit.runtime.sampling.asks import Ask, PassRows
    from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids


_NO_IDS: Ids = np.empty(0, np.int64)


class Owner(Protocol):
    """The side of a session that its sequences need."""

    vocab_size: int
    hidden_size: int
    adapter: int  # of passes that do not say

    def check_sampler(self, sampler: CoreSampler) -> None:
        """Raises InvalidRequest for one of another bundle."""

    def run_pass(self, segments: Items[Segment]) -> list[HeadOutput | None]: ...

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the core; sequences may be among the arguments."""

    def own(self, sequence: Sequence) -> None:
        """Know of a sequence that is about to be opened."""

    def release(self, sequence: Sequence) -> None:
        """Close a sequence now."""

    def drop(self, handle: int) -> None:
        """Close a sequence that nobody has any more before the next call."""


@dataclass
class Uncached:
    """Text behind a prefix that is final and not encoded, with the prefix's length when it was told."""

    told: tuple[Ids, int] = _NO_IDS, 0


class Sequence(OneOwner, OneDriver):
    """The keys and values that are kept of a text, and the hidden states of its last pass. Implements
    `sampling.Denoiser` and `sampling.Projector`; belongs to its session, which ends it.

    Made by `Session.open_sequence` and `copy`; one that is not closed ends with its last reference. What a
    sequence gives is the same alone and in company.
    """

    def __init__(self, session: Owner, handle: c_void_p | None, uncached: Uncached | None = None) -> None:
        """`handle` is where the core puts it, null once it is closed. None: the session's own sequence, whose
        uncached text the session holds.
        """
        self.session, self._handle, self._uncached = session, handle, uncached or Uncached()

    @classmethod
    def opened(cls, session: Owner, name: str, *arguments: Any) -> Sequence:
        """The sequence that a function of the core makes; it goes with this object even after a signal."""
        made = cls(session, handle := c_void_p())
        session.own(made)
        session.call(name, *arguments, ctypes.byref(handle))
        return made

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
    def prefix(self) -> Prefix:
        """Its positions, and a number for the text whose encoding they are: the same for equal ones; 1 where
        they are no text, such as a canvas that was kept.
        """
        info = self._info()
        return Prefix(int(info.prefix_length), int(info.text))

    @property
    def uncached(self) -> Ids:
        """Text behind the prefix that no prefill has encoded. What is encoded from there on takes its place,
        and a prefix that is lost takes it with it. Raises InvalidRequest for what is no token ids of the
        model.
        """
        ids, behind = self._uncached.told
        done = self.prefix_length - behind
        return ids[done:] if done >= 0 else _NO_IDS

    @uncached.setter
    def uncached(self, ids: Ids) -> None:
        ids = np.array(flat_ids(ids, "uncached text"))
        check_tokens(ids, "uncached text", self.vocab_size)
        self._uncached.told = ids, self.prefix_length

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded. Raises InvalidRequest
        where passes have kept what no encoding gives.
        """
        room = self.prefix_length
        ids, lengths, count = np.empty(room, np.int64), np.empty(room, np.int64), c_int64()
        arrays = ids.ctypes.data, room, lengths.ctypes.data, room
        self.session.call("ek_sequence_get_text", self, *arrays, ctypes.byref(count))
        stops = np.cumsum(lengths[: count.value])
        return np.split(ids[: stops[-1]], stops[:-1]) if len(stops) else []

    def holds(self, pieces: Items[Ids]) -> bool:
        """Whether these, and nothing else, are the pieces of its text."""
        try:
            known = self.pieces
        except errors.InvalidRequest:
            return False
        return len(known) == len(pieces) and all(map(np.array_equal, known, pieces))

    def copy(self) -> Sequence:
        """Another one in the same state. The two share what is kept until they go on differently.

        Raises BudgetExceeded for more sequences than the session was opened for.
        """
        other = Sequence.opened(self.session, "ek_sequence_copy", self)
        other._uncached = Uncached(self._uncached.told)
        return other

    __copy__ = copy

    def save(self, path: str | os.PathLike[str], *, bits: int = 32, note: bytes = b"") -> None:
        """Write what it keeps, and what is uncached, to a file from which `load` takes it again: whole, or
        not at all. With `bits` 8 the file has a quarter of the size, and what is computed behind it is near
        to what it was; 32 keeps every bit. `note` is for the caller to find in it again (`read_saved`).

        Raises InvalidRequest where what is kept is no text, such as a canvas, or for other bits, WriteFailed.
        """
        if type(bits) is not int or bits not in (8, 32):
            raise errors.InvalidRequest(f"bits is {shown(bits)}; keys and values are saved with 32 or 8")
        if not isinstance(note, bytes):
            raise errors.InvalidRequest(f"the note is {shown(note)}; give bytes")
        file, uncached = _native.path_bytes(path_of(path)), self.uncached
        options = SaveOptionsStruct(bits=bits, note=note or None, note_bytes=len(note))
        # What is uncached is kept here, and the core's own is that of who uses the core alone.
        self.session.call("ek_sequence_keep", self, uncached.ctypes.data, uncached.size)
        try:
            self.session.call("ek_sequence_save", self, file, ctypes.byref(options))
        finally:
            self.session.call("ek_sequence_keep", self, None, 0)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Keep what a file of `save` holds, in place of what it keeps.

        Raises InvalidRequest for a file of another bundle or engine, BudgetExceeded for more positions than
        the session was opened for, and what `read_saved` raises. Where keys and values turn out to be
        damaged, it keeps nothing.
        """
        saved = read_saved(path)
        before = self.prefix
        try:
            self.session.call("ek_sequence_load", self, _native.path_bytes(saved.path))
            self.session.call("ek_sequence_keep", self, None, 0)
        except BaseException:
            if self.prefix != before or not before.length:
                self.reset()
            raise
        if not self.holds(saved.pieces):
            self.reset()
            raise errors.FileChanged(f"{saved.path}: was replaced while it was read; load it again")
        self._uncached.told = saved.uncached, self.prefix_length

    def close(self) -> None:
        """Give back what it keeps. The session's own sequence stays."""
        if self._handle is not None:
            self.session.release(self)

    def taken(self) -> int | None:
        """The handle, for who closes it; None where somebody does already."""
        if self._handle is None:
            return None
        value, self._handle.value = self._handle.value, None
        return value

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and (handle := self.taken()) is not None:
            self.session.drop(handle)

    def reset(self) -> None:
        """Forget the prefix, and what is uncached."""
        if self._handle is None:
            self.session.call("ek_session_reset")
        else:
            self.session.call("ek_sequence_crop", self, 0)
        self._uncached.told = _NO_IDS, 0

    def crop(self, length: int) -> None:
        """Forget what is kept at and behind position `length`, and what is uncached.

        Raises InvalidRequest where more is asked for than is kept, or layers with a sliding window no longer
        have what precedes it: of what was kept, the last canvas can always be taken back.
        """
        self.session.call("ek_sequence_crop", self, whole(length, "the length to crop to"))
        self._uncached.told = _NO_IDS, 0

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] and keep their keys and values, in chunks of the canvas's length: causally, or in
        blocks of the model's `prefix_block` rows that see each other.
        """
        ids = flat_ids(ids, "the list of token ids")
        self.session.call("ek_sequence_prefill", self, ids.ctypes.data, ids.size)

    def check_prefill(self, ids: Ids) -> None:
        """Raises what `prefill` would raise of these ids. Who encodes a text in several passes asks about all
        of it first.
        """
        ids = flat_ids(ids, "the list of token ids")
        self.session.call("ek_sequence_check_prefill", self, ids.ctypes.data, ids.size)

    @within_core
    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One bidirectional pass of ids [T] over [prefix KV ; canvas], and the head on the requested rows."""
        if ids is None:
            raise errors.InvalidRequest("no token ids are given; for more of the last pass call project")
        return self._answer(Segment(self, ids, request, soft=soft, adapter=self.session.adapter))

    @within_core
    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last pass that gave some."""
        return self._answer(Segment(self, None, request))

    def run_rows(self, segments: Items[PassRows]) -> list[HeadOutput]:
        """One pass of several segments of its text: the answers to those that have a request. Raises as
        `Session.run_pass`.
        """
        answers = self.session.run_pass([segment_of(self, each) for each in segments])
        return [answer for answer in answers if answer is not None]

    def run_sampler(self, sampler: CoreSampler) -> Ask:
        """What a sampler of the core asks for or tells besides passes, which the core runs and answers; a
        pass that fails is asked for again. Raises as `denoise` and `CoreSampler.next`.
        """
        if not isinstance(sampler, CoreSampler):
            raise errors.InvalidRequest(f"the sampler is {shown(sampler)}; pass a CoreSampler")
        self.session.check_sampler(sampler)
        return sampler.run(lambda handle, ask: self.session.call("ek_session_run_sampler", handle, self, ask))

    @property
    def handle(self) -> int | None:
        """For the core; None for the session's own. Raises InvalidRequest once it is closed."""
        if self._handle is None:
            return None
        if self._handle.value is None:
            raise errors.InvalidRequest("the sequence is closed")
        return self._handle.value

    def last_rows(self) -> int:
        """Rows of the last pass that gave it hidden states."""
        return int(self._info().last_rows)

    @property
    def last_pass(self) -> int:
        """A number for that pass, which no other pass of this process has; 0: there was none."""
        return int(self._info().last_pass)

    def _answer(self, segment: Segment) -> HeadOutput:
        if segment.request is None:
            raise errors.InvalidRequest("the request is None; pass a HeadRequest")
        (answer,) = self.session.run_pass([segment])
        assert answer is not None, "it was asked for"
        return answer

    def _info(self) -> SequenceInfoStruct:
        info = SequenceInfoStruct()
        self.session.call("ek_sequence_get_info", self, ctypes.byref(info))
        return info


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows of a pass that see the same: token ids [T] of a canvas, or `causal` ones, in blocks of `block`
    rows that see each other; ids None: no rows, and `request` is answered from the hidden states of the
    sequence's last pass.

    `soft` [T, hidden] is an earlier answer's. `positions` [T], None: behind what is kept, or from keep_at on;
    with keep_at any others are for models that encode no prefix and have no sliding windows.
    `seen`: rows before its own, None: all that its sequence keeps, up to keep_at. `keep_at`: keys and values
    of its first `keep_count` rows, 0: of all, are kept from this position on, in place of those there; None:
    they are not kept. `adapter`: number of the adapter that its rows are computed with, from 1
    (`bundle.model.adapters`), 0: none.
    """

    sequence: Sequence
    ids: Ids | None
    request: HeadRequest | None = None
    soft: Floats | None = None
    causal: bool = False
    positions: Ids | None = None
    seen: Items[SeenRows] | None = None
    keep_at: int | None = None
    block: int = 1
    adapter: int = 0
    keep_count: int = 0


def segment_of(sequence: Sequence, rows: PassRows) -> Segment:
    """What a procedure asks for as a segment of a pass."""
    seen = rows.seen
    if seen is None and not rows.keep:
        seen = [SeenRows(None, 0, rows.at)]
    return Segment(
        sequence,
        rows.ids,
        rows.request,
        causal=rows.block != 0,
        block=max(1, rows.block),
        positions=rows.at + np.arange(len(rows.ids)) if rows.positions is None else rows.positions,
        seen=seen,
        keep_at=rows.at if rows.keep else None,
        adapter=rows.adapter or sequence.session.adapter,
        keep_count=rows.keep_count,
    )
