"""Several generations in the same passes: what streaming weights cost is paid once for all of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.sampling.asks import Ask, Denoise, Encode, Forget, Procedure, Project, Tell
from edgekit.runtime.sampling.events import Done, Event
from edgekit.runtime.sampling.types import HeadOutput, Ids
from edgekit.runtime.session import Segment, Sequence, Session

_NO_IDS: Ids = np.empty(0, np.int64)


@dataclass(eq=False)
class _Member:
    sampler: Procedure
    sequence: Sequence
    ask: Ask | None = None  # the pass that it waits for
    answer: HeadOutput | None = None
    encoded: int = 0  # ids of an Encode that passes have encoded


class Together:
    """Drives samplers over sequences of one session. They join and leave between passes, and each gives the
    tokens that it gives alone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._members: dict[Hashable, _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, key: Hashable, sampler: Procedure, sequence: Sequence) -> None:
        """Take part from the next pass on; `key` names the sampler in what `step` gives.

        Raises ValueError for a key or sequence that takes part already.
        """
        if key in self._members or any(m.sequence is sequence for m in self._members.values()):
            raise ValueError(f"{key!r}, or its sequence, takes part already")
        self._members[key] = _Member(sampler, sequence)

    def leave(self, key: Hashable) -> None:
        """End a generation where it is. Its sequence holds what was encoded and committed until then."""
        del self._members[key]

    def step(self) -> list[tuple[Hashable, Event | EdgekitError]]:
        """Run one pass for all, and tell what the samplers told before and behind it. Who is done leaves, and so
        does one whose sampler failed, with its error.

        Raises what the pass raises; another step tries it again.
        """
        told: list[tuple[Hashable, Event | EdgekitError]] = []
        self._go_on(told)
        waiting = [m for m in self._members.values() if m.ask is not None]
        if not waiting:
            return told
        answers = self._session.run_pass([self._segment(m) for m in waiting])
        for member, answer in zip(waiting, answers, strict=True):
            self._passed(member, answer)
        self._go_on(told)
        return told

    def _go_on(self, told: list[tuple[Hashable, Event | EdgekitError]]) -> None:
        for key, member in list(self._members.items()):
            try:
                while member.ask is None:
                    self._next(key, member, told)
                    if key not in self._members:
                        break
            except EdgekitError as error:
                del self._members[key]
                told.append((key, error))

    def _next(
        self, key: Hashable, member: _Member, told: list[tuple[Hashable, Event | EdgekitError]]
    ) -> None:
        answer, member.answer = member.answer, None
        ask = member.sampler.next(answer)
        if isinstance(ask, Tell):
            if ask.kept is not None:
                member.sequence.uncached = ask.kept
            told.append((key, ask.event))
            if isinstance(ask.event, Done):
                del self._members[key]
        elif isinstance(ask, Forget):
            member.sequence.reset()
        elif not isinstance(ask, Encode) or len(ask.ids):
            member.ask = ask

    def _segment(self, member: _Member) -> Segment:
        ask, sequence = member.ask, member.sequence
        if isinstance(ask, Encode):
            # In pieces as long as those of a text that is encoded alone.
            ids = ask.ids[member.encoded : member.encoded + self._session.prefill_rows]
            return Segment(sequence, ids, causal=True, keep_at=sequence.prefix_length)
        if isinstance(ask, Project):
            return Segment(sequence, None, ask.request)
        assert isinstance(ask, Denoise)
        return Segment(sequence, ask.ids, ask.request, soft=ask.soft)

    def _passed(self, member: _Member, answer: HeadOutput | None) -> None:
        ask = member.ask
        if isinstance(ask, Encode):
            member.encoded += self._session.prefill_rows
            if member.encoded < len(ask.ids):
                return
            member.encoded = 0
            member.sequence.encoded.prefilled(ask.ids, member.sequence.prefix_length)
            member.sequence.uncached = _NO_IDS
        member.ask, member.answer = None, answer
