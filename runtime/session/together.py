"""Several generations in the same passes: what streaming weights cost is paid once for all of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from edgekit.runtime.sampling.asks import Ask, Denoise, Encode, Forget, Procedure, Project, Tell, wrong_ask
from edgekit.runtime.sampling.events import Done, Event
from edgekit.runtime.sampling.types import HeadOutput
from edgekit.runtime.session.sequence import Segment, Sequence
from edgekit.runtime.session.session import Session


@dataclass(eq=False)
class _Member:
    sampler: Procedure
    sequence: Sequence
    ask: Ask | None = None  # the pass that it waits for
    answer: HeadOutput | None = None
    start: int | None = None  # where the ids of an Encode begin, once a pass encodes them

    @property
    def encoded(self) -> int:
        """Ids of an Encode that passes have encoded, also where a signal came behind one."""
        return 0 if self.start is None else max(0, self.sequence.prefix_length - self.start)


class Together:
    """Drives samplers over sequences of one session. They join and leave between passes, and each gives the
    tokens that it gives alone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._members: dict[Hashable, _Member] = {}
        self._told: list[tuple[Hashable, Event | Exception]] = []  # for the next that `step` gives
        self._failed: Exception | None = None  # for the next step to raise

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

    def step(self) -> list[tuple[Hashable, Event | Exception]]:
        """Run one pass for all, and tell what the samplers told before and behind it. Who is done leaves, and
        so does one whose sampler failed, with its error, whatever it is.

        Raises what the pass raises, where something was told before it at the next step; another step tries
        it again.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        self._go_on()
        waiting = [m for m in self._members.values() if m.ask is not None]
        if waiting:
            try:
                answers = self._session.run_pass([self._segment(m) for m in waiting])
            except Exception as error:
                if not self._told:
                    raise
                self._failed = error
            else:
                for member, answer in zip(waiting, answers, strict=True):
                    self._passed(member, answer)
                self._go_on()
        told, self._told = self._told, []
        return told

    def _go_on(self) -> None:
        for key, member in list(self._members.items()):
            try:
                while member.ask is None:
                    self._next(key, member)
                    if key not in self._members:
                        break
            except Exception as error:
                del self._members[key]
                self._told.append((key, error))

    def _next(self, key: Hashable, member: _Member) -> None:
        ask = member.sampler.next(member.answer)
        member.answer = None
        if isinstance(ask, Tell) and isinstance(ask.event, Event):
            if ask.kept is not None:
                member.sequence.uncached = ask.kept
            self._told.append((key, ask.event))
            if isinstance(ask.event, Done):
                del self._members[key]
        elif isinstance(ask, Forget):
            member.sequence.reset()
        elif isinstance(ask, Denoise | Project) or (isinstance(ask, Encode) and len(ask.ids)):
            member.ask = ask
        elif not isinstance(ask, Encode):
            raise wrong_ask(member.sampler, ask)

    def _segment(self, member: _Member) -> Segment:
        ask, sequence = member.ask, member.sequence
        if isinstance(ask, Encode):
            # In pieces as long as those of a text that is encoded alone.
            if member.start is None:
                member.start = sequence.prefix_length
            done = member.encoded
            ids = ask.ids[done : done + self._session.prefill_rows]
            return Segment(sequence, ids, causal=True, keep_at=member.start + done)
        if isinstance(ask, Project):
            return Segment(sequence, None, ask.request)
        assert isinstance(ask, Denoise)
        return Segment(sequence, ask.ids, ask.request, soft=ask.soft)

    def _passed(self, member: _Member, answer: HeadOutput | None) -> None:
        if isinstance(member.ask, Encode):
            if member.encoded < len(member.ask.ids):
                return
            member.start = None
        member.ask, member.answer = None, answer
