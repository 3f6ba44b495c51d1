"""Many prompts, answered by generations that share every pass over the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime import room
from edgekit.runtime.api.answer import Answer, Done
from edgekit.runtime.api.options import own_settings
from edgekit.runtime.api.told import Told
from edgekit.runtime.errors import EngineUnavailable, PromptTooLong, UnsupportedBundle
from edgekit.runtime.generation import Generator, Settings, Turn, longest
from edgekit.runtime.sampling import Committed, CoreSampler, Lengths
from edgekit.runtime.sampling import events as inner
from edgekit.runtime.session import Session, Together
from edgekit.runtime.session import sequence as session_sequence

#: Sequences where no number is given: without a memory budget, and at most what a budget has room for.
USUAL_SEQUENCES, MOST_WITHIN_BUDGET = 8, 64


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt in tokens, and the sampler that answers it."""

    ids: tuple[int, ...]
    sampler: CoreSampler


@dataclass(frozen=True)
class BatchCosts:
    """`passes` over the weights, the `rows`, positions, that they computed, the bytes of weights that were
    read from the disk, and seconds since the batch was opened.
    """

    passes: int
    rows: int
    bytes_read: int
    seconds: float


def request_of(generator: Generator, ids: tuple[int, ...], settings: Settings) -> Request:
    """A request, which a batch may answer once. Raises InvalidOption, InvalidPrompt and PromptTooLong."""
    settings = own_settings(generator.family, settings, "the prompts of a batch follow no text")
    return Request(ids, generator.sampler(ids, settings))


def lengths_within(generator: Generator, wanted: Collection[Lengths]) -> Lengths:
    """Lengths that suffice for all that are `wanted`, or for the shorter ones of them, as many as the memory
    budget has room for one at a time. Raises BudgetExceeded where it has none for the shortest.
    """
    every = longest(list(wanted), 1)
    if generator.memory_bytes is None or _lacking(generator, every, 1) is None:
        return every
    found: Lengths | None = None
    for each in sorted(wanted, key=lambda one: (one.canvas + one.prefix, one.segments)):
        both = each if found is None else longest([found, each], 1)
        needed = _lacking(generator, both, 1)
        if needed is None:
            found = both
        elif found is None:
            raise _refusal(generator, each, 1, needed)
    assert found is not None, "there is one, or the first was refused"
    return found


def sequences_within(generator: Generator, lengths: Lengths, wanted: int | None, requests: int) -> int:
    """How many sequences of these lengths share passes, never more than there are requests: `wanted` ones;
    None: as many as the memory budget has room for beside all weights, where these are the usual number or
    more. Otherwise weights are streamed, and a read is for as many as there is room for.

    Raises BudgetExceeded for one more than there is room for.
    """
    if generator.memory_bytes is None:
        return min(wanted or USUAL_SEQUENCES, requests)
    if wanted is None:
        most = min(MOST_WITHIN_BUDGET, requests)
        fit = room.most(most, lambda count: _lacking(generator, lengths, count) is None)
        kept = room.most(fit, lambda count: not room.planned(generator, lengths, count).streamed_bytes)
        return kept if kept >= USUAL_SEQUENCES else max(1, fit)
    count = min(wanted, requests)
    if (needed := _lacking(generator, lengths, count)) is not None:
        raise _refusal(generator, lengths, count, needed)
    return count


def _lacking(generator: Generator, lengths: Lengths, count: int) -> int | None:
    with suppress(EngineUnavailable, UnsupportedBundle):  # which the session says
        return room.lacking(generator, lengths, count)
    return None


def _refusal(generator: Generator, lengths: Lengths, wanted: int, needed: int) -> BudgetExceeded:
    memory = generator.memory_bytes
    assert memory is not None, "there is a budget that was too small"
    fit = room.most(wanted - 1, lambda count: _lacking(generator, lengths, count) is None)
    return room.refusal(memory, needed, wanted, fit, "sequence", "sequences")


@contextmanager
def opened_batch(
    generator: Generator, wanted: Collection[Lengths], sequences: int | None, requests: int
) -> Iterator[Batch]:
    """A batch for so many requests of the `wanted` lengths, or of those that the memory budget has room for,
    with `sequences` at a time; None: see `sequences_within`. Text that was generated before is forgotten.

    Raises BudgetExceeded, and what opening a session raises.
    """
    if generator.memory_bytes is not None:
        generator.release()  # what is planned for takes its place
    lengths = lengths_within(generator, wanted)
    count = sequences_within(generator, lengths, sequences, requests)
    with ExitStack() as held:
        while True:
            try:
                session, together, turn = held.enter_context(generator.branching(lengths, count))
                break
            except BudgetExceeded:
                # The process has grown since, by what opening a session takes for the first time.
                if sequences is not None or count == 1:
                    raise
                count = min(count - 1, sequences_within(generator, lengths, None, requests))
        yield Batch(generator, lengths, session, together, turn, turn.texts(session, count))


@dataclass(frozen=True, eq=False)
class _Running:
    """A generation that is under way: what it has told, the tokens of its prompt, and when it began."""

    told: Told
    tokens: int
    started: float
    counters: Mapping[str, Any]


class Batch:
    """Answers requests, as many at once as it has sequences: when one is done, the next joins at the next
    pass. Each answer is the one that its request gets alone. `opened_batch` makes it.
    """

    def __init__(
        self,
        generator: Generator,
        lengths: Lengths,
        session: Session,
        together: Together,
        turn: Turn,
        sequences: list[session_sequence.Sequence],
    ) -> None:
        self._generator, self._lengths = generator, lengths
        self._session, self._together, self._turn = session, together, turn
        self._sequences = sequences
        self._started, self._before = time.perf_counter(), session.counters()

    @property
    def sequences(self) -> int:
        """How many share a pass."""
        return len(self._sequences)

    @property
    def costs(self) -> BatchCosts:
        """Until now."""
        read = self._session.counters()["bytes_read"] - self._before["bytes_read"]
        seconds = time.perf_counter() - self._started
        return BatchCosts(self._together.passes, self._together.rows, read, seconds)

    def run(
        self, requests: Iterable[tuple[Hashable, Request] | None], told: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[Hashable, Answer | EdgekitError]]:
        """Answers by key, in the order in which they come to their end; the error of a request that fails by
        itself. Requests are taken as sequences become free; None in their place: there is none at the moment,
        and the next pass asks again, or where there is no answer under way any more, the run ends. `told` is
        called behind passes that denoise.

        Seconds and bytes of an answer's statistics are those of the time that it was at work, shared with
        the answers beside it. Raises what a pass raises for all.
        """
        failed = list[tuple[Hashable, EdgekitError]]()
        running = dict[Hashable, _Running]()

        def samplers() -> Iterator[tuple[Hashable, CoreSampler] | None]:
            for entry in requests:
                if entry is None:
                    yield None
                    continue
                key, request = entry
                try:
                    self._check_lengths(request.sampler.lengths, len(request.ids))
                except PromptTooLong as error:
                    failed.append((key, error))
                    continue
                told_of = Told(self._generator.tokenizer, request.ids, None)
                counters = self._session.counters()
                running[key] = _Running(told_of, len(request.ids), time.perf_counter(), counters)
                yield key, request.sampler

        passes = self._together.passes
        for key, event in self._together.run(samplers(), self._sequences):
            if passes != self._together.passes:
                passes = self._together.passes
                told()
            yield from _taken(failed)
            if (found := self._answer(running, key, event)) is not None:
                yield key, found
            self._turn.check()
        yield from _taken(failed)

    def _answer(
        self, running: dict[Hashable, _Running], key: Hashable, event: inner.Event | Exception
    ) -> Answer | EdgekitError | None:
        """What a request has come to; None while it goes on. Raises an error of the program."""
        if isinstance(event, Exception):
            running.pop(key)
            if not isinstance(event, EdgekitError):
                raise event
            return event
        if isinstance(event, Committed):
            running[key].told.event(event, 0)
        if not isinstance(event, inner.Done):
            return None
        own = running.pop(key)
        engine = self._generator.since(own.counters, self._session)
        engine |= {"seconds": time.perf_counter() - own.started, "prompt_tokens": own.tokens}
        event.stats.engine.update(engine | {"reused_tokens": 0})
        done = own.told.event(event, 0)
        assert isinstance(done, Done), "a generation ends with Done"
        return done.answer

    def _check_lengths(self, lengths: Lengths, tokens: int) -> None:
        """Raises PromptTooLong for a request that the session was not opened for."""
        have = self._lengths
        if all(getattr(lengths, name) <= getattr(have, name) for name in ("prefix", "canvas", "segments")):
            return
        memory = self._generator.memory_bytes
        what = "this batch was opened for"
        if memory is not None:
            what = f"the memory budget of {size(memory)} has room for"
        raise PromptTooLong(
            f"{tokens} prompt tokens and {lengths.new_tokens} new tokens take passes of {lengths.canvas} "
            f"positions after a prefix of {lengths.prefix}; {what} {have.canvas} after {have.prefix}"
        )


def _taken(failed: list[tuple[Hashable, EdgekitError]]) -> list[tuple[Hashable, EdgekitError]]:
    """What is in a list, which is empty then."""
    found = failed[:]
    failed.clear()
    return found
