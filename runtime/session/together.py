"""Several generations in the same passes: what streaming weights cost is paid once for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.one_user import OneUser
from edgekit.runtime.sampling.asked import (
    asked,
    check_behind,
    check_prefix,
    check_procedure,
    encoded_of,
    is_repeated,
)
from edgekit.runtime.sampling.asks import (
    Answer,
    Ask,
    Crop,
    Denoise,
    Encode,
    Forget,
    Pass,
    Prefix,
    Procedure,
    Project,
    SeenRows,
    Tell,
)
from edgekit.runtime.sampling.core import CoreSampler, text_number
from edgekit.runtime.sampling.events import Done, Event
from edgekit.runtime.sampling.types import HeadOutput
from edgekit.runtime.session.sequence import Segment, Sequence, segment_of
from edgekit.runtime.session.session import Session


@dataclass(eq=False)
class _Member:
    key: Hashable
    sampler: Procedure
    sequence: Sequence
    ask: Ask | None = None  # the pass that it waits for
    answer: Answer | None = None
    before: Prefix = Prefix(0)  # what the ids of an Encode are encoded behind
    passed: int | None = None  # which pass a Project is of

    @property
    def encoded(self) -> int:
        """Ids of an Encode that passes have encoded, also where a signal came behind one."""
        return max(0, self.sequence.prefix_length - self.before.length)


class Together:
    """Drives samplers over sequences of one session. They join and leave between passes, and each gives the
    tokens that it gives alone. Closed, or at the end of a `with` block, it gives them back as they are.
    """

    def __init__(self, session: Session) -> None:
        if not isinstance(session, Session):
            raise InvalidRequest(f"the session is {shown(session)}; pass what open_session gives")
        self._session = session
        self._members: dict[Hashable, _Member] = {}
        self._told: list[tuple[Hashable, Event | Exception]] = []  # for the next that `step` gives
        self._failed: Exception | None = None  # for the next step to raise
        self._user = OneUser()
        #: Passes that it has run, and the positions that they computed.
        self.passes = self.rows = 0

    def __len__(self) -> int:
        return len(self._members)

    def join(self, key: Hashable, sampler: Procedure, sequence: Sequence) -> None:
        """Take part from the next pass on; `key` names the sampler in what `step` gives.

        Raises InvalidRequest for a key, sampler or sequence that takes part already, here or elsewhere, a
        sequence of another session or one that is closed, a sampler of another bundle, and for what is no
        key, sampler or sequence.
        """
        _check_key(key)
        check_procedure(sampler)
        if not isinstance(sequence, Sequence):
            raise InvalidRequest(f"the sequence is {shown(sequence)}; pass what open_sequence gives")
        if sequence.session is not self._session:
            raise InvalidRequest("the sequence belongs to another session")
        if isinstance(sampler, CoreSampler):
            self._session.check_sampler(sampler)
        _ = sequence.handle  # of one that is not closed
        if key in self._members or any(m.sequence is sequence for m in self._members.values()):
            raise InvalidRequest(f"{shown(key)}, or its sequence, takes part already")
        if sequence.driver is not None:
            raise InvalidRequest("the sequence takes part in another Together; leave that, or copy it")
        if any(m.sampler is sampler for m in self._members.values()):
            raise InvalidRequest("the sampler takes part already; make one for each sequence, or copy() it")
        if isinstance(sampler, CoreSampler):
            if sampler.driver is not None:
                raise InvalidRequest("the sampler takes part in another Together; leave that, or copy() it")
            sampler.driver = self
        self._members[key] = _Member(key, sampler, sequence)
        sequence.driver = self

    def leave(self, key: Hashable) -> None:
        """End a generation where it is. Its sequence holds what was encoded and committed until then; the
        sampler may go on later.

        Raises InvalidRequest for a key that does not take part.
        """
        _check_key(key)
        member = self._members.get(key)
        if member is None:
            raise InvalidRequest(f"{shown(key)} does not take part; it has left, or never joined")
        # A signal that comes meanwhile leaves it taking part, and it can leave again.
        member.sequence.driver = None
        if isinstance(member.sampler, CoreSampler):
            member.sampler.driver = None
            member.sampler.ask_again()  # whoever drives it next is asked for what was not done
        self._members.pop(key, None)

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all generations where they are."""
        for key in list(self._members):
            self.leave(key)

    def run(
        self, waiting: Iterable[tuple[Hashable, Procedure] | None], free: Iterable[Sequence]
    ) -> Iterator[tuple[Hashable, Event | Exception]]:
        """What the samplers of `waiting` tell, by key: as many at once as there are `free` sequences. When
        one is done, the next is taken and joins at the next pass (continuous batching). Where `waiting` has
        None in its place there is none for that pass; without anybody at work the end.

        Raises as `join` and `step`.
        """
        more, free = iter(waiting), list(free)
        taken: dict[Hashable, Sequence] = {}
        while True:
            while free and (entry := next(more, None)) is not None:
                key, sampler = entry
                self.join(key, sampler, free[-1])
                taken[key] = free.pop()
            if not taken:
                return
            for key, event in self.step():
                if isinstance(event, Done | Exception):
                    free.append(taken.pop(key))
                yield key, event

    def step(self) -> list[tuple[Hashable, Event | Exception]]:
        """Run one pass for all, and tell what the samplers told before and behind it. Who is done leaves.

        So does one whose sampler failed, or asked for what the session refuses, such as more positions than
        it was opened for: with its error, whatever it is, and the others go on.

        Raises what the pass raises for all, where something was told before it at the next step; another step
        tries it again.
        """
        return self._user.call(self._step, _stepping)

    def _step(self) -> list[tuple[Hashable, Event | Exception]]:
        failed, self._failed = self._failed, None
        if failed is not None:
            try:
                raise failed
            finally:
                del failed  # its traceback has this frame
        self._go_on()
        try:
            self._run_pass()
        except Exception as error:
            if not self._told:
                raise
            self._failed = error
        else:
            self._go_on()
        told, self._told = self._told, []
        return told

    def _run_pass(self) -> None:
        """Run one for all who wait. Who is refused leaves, and the pass is run without."""
        while waiting := self._segments():
            try:
                answers = self._session.run_pass([segment for _, segment in waiting])
            except EdgekitError as error:
                if error.segment is None:
                    raise
                self._end(waiting[error.segment][0], error)
                continue
            self.passes += 1
            self.rows += sum(len(segment.ids) for _, segment in waiting if segment.ids is not None)
            given: dict[int, tuple[_Member, list[HeadOutput]]] = {}
            for (member, _), answer in zip(waiting, answers, strict=True):
                own = given.setdefault(id(member), (member, []))[1]
                if answer is not None:
                    own.append(answer)
            for member, own in given.values():
                self._passed(member, own)
            return

    def _segments(self) -> list[tuple[_Member, Segment]]:
        """Those who wait for a pass, with what they bring to it."""
        waiting: list[tuple[_Member, Segment]] = []
        for member in list(self._members.values()):
            if member.ask is not None:
                try:
                    brought = self._brought(member, len(waiting))
                    waiting += [(member, segment) for segment in brought]
                except Exception as error:
                    self._end(member, error)
        return waiting

    def _go_on(self) -> None:
        for member in list(self._members.values()):
            try:
                if isinstance(member.ask, Encode) and member.encoded >= len(member.ask.ids):
                    self._check_encoded(member)  # a signal came behind the last piece
                    member.ask = None
                while member.ask is None:
                    self._next(member)
                    if member.key not in self._members:
                        break
            except Exception as error:
                self._end(member, error)

    def _end(self, member: _Member, told: Event | Exception) -> None:
        if self._members.get(member.key) is member:
            self.leave(member.key)
        self._told.append((member.key, told))

    def _next(self, member: _Member) -> None:
        try:
            ask = asked(member.sampler, member.answer)
            member.answer = None
            self._asked(member, ask)
        except BaseException:
            # Of a signal nobody knows whether the core's had the answer by then: it asks for what it lacks.
            if isinstance(member.sampler, CoreSampler):
                member.ask = member.answer = None
                member.sampler.ask_again()
            raise

    def _asked(self, member: _Member, ask: Ask) -> None:
        sequence = member.sequence
        if isinstance(ask, Tell):
            if ask.kept is not None:
                sequence.uncached = ask.kept
            if isinstance(ask.event, Done):
                self._end(member, ask.event)
            else:
                self._told.append((member.key, ask.event))
        elif isinstance(ask, Forget):
            sequence.reset()
        elif isinstance(ask, Crop):
            if sequence.prefix_length > ask.length:
                sequence.crop(ask.length)
        elif isinstance(ask, Encode):
            done = encoded_of(ask, sequence)
            check_behind(sequence.uncached, ask.ids[done:])
            if done < len(ask.ids) or not done:
                sequence.check_prefill(ask.ids[done:])
            member.before = ask.prefix if done and ask.prefix else sequence.prefix
            member.ask = ask if done < len(ask.ids) else None
        else:
            member.ask = ask

    def _brought(self, member: _Member, before: int) -> list[Segment]:
        """What it brings to a pass that has so many segments already."""
        ask, sequence = member.ask, member.sequence
        if isinstance(ask, Encode):
            # In pieces as long as those of a text that is encoded alone.
            done = self._check_encoded(member)
            ids = ask.ids[done : done + self._session.prefill_rows]
            keep_at, block = member.before.length + done, self._session.prefix_block
            adapter = self._session.adapter
            return [Segment(sequence, ids, causal=True, block=block, keep_at=keep_at, adapter=adapter)]
        assert isinstance(ask, Denoise | Pass | Project)
        check_prefix(ask, sequence)
        if isinstance(ask, Pass):
            return [_behind(segment_of(sequence, rows), before) for rows in ask.segments]
        if isinstance(ask, Denoise):
            adapter = self._session.adapter
            return [Segment(sequence, ask.ids, ask.request, soft=ask.soft, adapter=adapter)]
        if is_repeated(member.sampler, member.passed, sequence.last_pass):
            return [Segment(sequence, ask.ids, ask.request, adapter=self._session.adapter)]
        return [Segment(sequence, None, ask.request)]

    def _check_encoded(self, member: _Member) -> int:
        """How many ids of an Encode are encoded. Raises InvalidRequest where others are there."""
        assert isinstance(member.ask, Encode)
        done = member.encoded
        text = text_number(member.before.text, member.ask.ids[:done])
        if done > len(member.ask.ids) or (done and text != member.sequence.prefix.text):
            raise InvalidRequest("the sequence was changed by somebody else while its text was encoded")
        return done

    def _passed(self, member: _Member, answers: list[HeadOutput]) -> None:
        if isinstance(member.ask, Encode) and member.encoded < len(member.ask.ids):
            return
        if isinstance(member.ask, Denoise | Project):
            member.passed = member.sequence.last_pass
        answer: Answer | None = answers
        if not isinstance(member.ask, Pass):
            answer = answers[0] if answers else None
        member.ask, member.answer = None, answer


def _behind(segment: Segment, before: int) -> Segment:
    """A segment whose own number of earlier ones is counted behind so many of others."""
    if segment.seen is None or not before:
        return segment
    seen = [s if s.segment is None else SeenRows(s.segment + before, s.first, s.count) for s in segment.seen]
    return replace(segment, seen=seen)


def _stepping() -> InvalidRequest:
    return InvalidRequest("a step is under way, in another thread or in the next() that calls this one")


def _check_key(key: object) -> None:
    if not isinstance(key, Hashable):
        raise InvalidRequest(f"the key is {shown(key)}; take a number or text")
