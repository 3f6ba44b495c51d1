"""Texts that a session goes on with, and rows of them in a pass: `ek_sequence` and `ek_pass_segment` of
`edgekit.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Items
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgekit.flashload import errors
from edgekit.flashload.names import shown
from edgekit.runtime.one_driver import OneDriver
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.sampling.asks import Prefix
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.drive import within_core
from edgekit.runtime.sampling.ids import check_tokens, flat_ids, whole
from edgekit.runtime.session.encoded_ids import EncodedIds
from edgekit.runtime.session.structs import SequenceInfoStruct

if TYPE_CHECKING:
    from types import TracebackType

    from edgekit.runtime.sampling.asks import Ask
    from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids


_NO_IDS: Ids = np.empty(0, np.int64)


class Owner(Protocol):
    """The side of a session that its sequences need."""

    vocab_size: int
    hidden_size: int

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
class KeptText:
    """Text that a sequence has encoded, and behind it what it has not, with the prefix's length then."""

    encoded: EncodedIds = field(default_factory=EncodedIds)
    uncached: tuple[Ids, int] = _NO_IDS, 0

    def copy(self) -> KeptText:
        return KeptText(self.encoded.copy(), self.uncached)


class Sequence(OneOwner, OneDriver):
    """The keys and values that are kept of a text, and the hidden states of its last pass. Implements
    `sampling.Denoiser` and `sampling.Projector`; belongs to its session, which ends it.

    Made by `Session.open_sequence` and `copy`; one that is not closed ends with its last reference. What a
    sequence gives is the same alone and in company.
    """

    def __init__(self, session: Owner, handle: c_void_p | None, text: KeptText | None = None) -> None:
        """`handle` is where the core puts it, null once it is closed. None: the session's own sequence, whose
        text the session holds.
        """
        self.session, self._handle, self._text = session, handle, text or KeptText()

    @property
    def encoded(self) -> EncodedIds:
        """The ids behind its prefix."""
        return self._text.encoded

    @encoded.setter
    def encoded(self, ids: EncodedIds) -> None:
        self._text.encoded = ids

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
        ids, start = self._text.uncached
        done = self.prefix_length - start
        return ids[done:] if done >= 0 else _NO_IDS

    @uncached.setter
    def uncached(self, ids: Ids) -> None:
        ids = np.array(flat_ids(ids, "uncached text"))
        check_tokens(ids, "uncached text", self.vocab_size)
        self._text.uncached = ids, self.prefix_length

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded. Raises InvalidRequest
        where passes have kept what no encoding gives.
        """
        return self.encoded.pieces(self.prefix_length)

    def holds(self, pieces: Items[Ids]) -> bool:
        """Whether these, and nothing else, are the pieces of its text."""
        return self.encoded.holds(pieces, self.prefix_length)

    def copy(self) -> Sequence:
        """Another one in the same state. The two share what is kept until they go on differently.

        Raises BudgetExceeded for more sequences than the session was opened for.
        """
        other = Sequence.opened(self.session, "ek_sequence_copy", self)
        other._text = self._text.copy()
        return other

    __copy__ = copy

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
        self.encoded.cropped(0)
        self._text.uncached = _NO_IDS, 0

    def crop(self, length: int) -> None:
        """Forget what is kept at and behind position `length`, and what is uncached.

        Raises InvalidRequest where more is asked for than is kept, or layers with a sliding window no longer
        have what precedes it: of what was kept, the last canvas can always be taken back.
        """
        self.session.call("ek_sequence_crop", self, whole(length, "the length to crop to"))
        self.encoded.cropped(length)
        self._text.uncached = _NO_IDS, 0

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] causally, in chunks of the canvas's length, and keep their keys and values."""
        ids, start = flat_ids(ids, "the list of token ids"), self.prefix_length
        try:
            self.session.call("ek_sequence_prefill", self, ids.ctypes.data, ids.size)
        finally:
            length = self.prefix_length
            if length > start:  # also where a signal came behind it
                self.encoded.kept(ids, start, length, plain=True)

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
        return self._answer(Segment(self, ids, request, soft=soft))

    @within_core
    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last pass that gave some."""
        return self._answer(Segment(self, None, request))

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
