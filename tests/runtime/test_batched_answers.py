"""Requests that share passes: which answers they get, how many there is room for, and who fails alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgekit
from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.runtime import room
from edgekit.runtime.api import batch as module
from edgekit.runtime.api.batch import Request, lengths_within, opened_batch, request_of, sequences_within
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import CoreSampler, InvalidOption, Lengths
from edgekit.runtime.session import Session, SessionOptions

PROMPTS = ((5, 6, 2), (9, 4, 4, 7, 11), (3,), (8, 8, 1, 2), (4, 5, 6))


def requests(generator: Generator, **options: Any) -> list[Request]:
    """Answers of several lengths."""
    return [
        request_of(generator, ids, Settings(16 * (1 + seed % 2), 2 + seed, seed, options))
        for seed, ids in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("fixture", ["native_bundle", "gemma_bundle"])
@pytest.mark.parametrize("streamed", [None, 0])
@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_answers_are_those_of_generate(
    fixture: str, streamed: int | None, sequences: int, request: pytest.FixtureRequest
) -> None:
    bundle: Path = request.getfixturevalue(fixture)
    with edgekit.load(bundle) as model:
        expected = [
            model.generate(ids, max_new_tokens=16 * (1 + seed % 2), steps=2 + seed, seed=seed)
            for seed, ids in enumerate(PROMPTS)
        ]
    passes = 0
    with Generator(bundle, resident_bytes=streamed) as generator:
        asked = requests(generator)
        taken = list[int]()

        def given() -> Iterator[tuple[Hashable, Request]]:
            for number, each in enumerate(asked):
                taken.append(number)
                yield number, each

        def told() -> None:
            nonlocal passes
            passes += 1

        with opened_batch(generator, {each.sampler.lengths for each in asked}, sequences, 5) as batch:
            found = dict[Hashable, Any]()
            for key, answer in batch.run(given(), told):
                assert len(taken) - len(found) <= sequences + 1, "the next is taken when one is done"
                found[key] = answer
            costs = batch.costs
            assert batch.sequences == sequences
    for number, answer in enumerate(expected):
        got = found[number]
        assert (got.text, got.ids, got.prompt_ids) == (answer.text, answer.ids, answer.prompt_ids)
        for name in ("steps", "forwards", "prefills", "rows", "tokens", "finish_reason", "prompt_tokens"):
            assert getattr(got.statistics, name) == getattr(answer.statistics, name), name
    assert 0 < passes <= costs.passes and costs.seconds > 0
    assert costs.rows == sum(answer.statistics.rows for answer in expected)
    assert bool(costs.bytes_read) == (streamed == 0)


def test_one_that_fails_leaves_the_others(native_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Generator(native_bundle) as generator:
        asked = requests(generator)
        broken, real = asked[2].sampler, CoreSampler.next

        def refuse(self: CoreSampler, answer: Any = None) -> Any:
            if self is broken:
                raise EdgekitError("this one is broken")
            return real(self, answer)

        monkeypatch.setattr(CoreSampler, "next", refuse)
        short = {each.sampler.lengths for each in asked if each.sampler.lengths.canvas < 37}
        with opened_batch(generator, short, 2, 5) as batch:
            found = dict(batch.run(enumerate(asked)))
        assert str(found[1]) == (
            "5 prompt tokens and 32 new tokens take passes of 37 positions after a prefix of 0; this batch "
            "was opened for 36 after 0"
        )
        assert isinstance(found[1], edgekit.PromptTooLong) and str(found[2]) == "this one is broken"
        assert all(isinstance(found[number], edgekit.Answer) for number in (0, 3, 4))


def test_a_batch_that_lost_its_turn_ends(native_bundle: Path) -> None:
    with Generator(native_bundle) as generator:
        asked = requests(generator)
        with opened_batch(generator, {each.sampler.lengths for each in asked}, 1, 5) as batch:
            running = batch.run(enumerate(asked))
            next(running)
            list(generator.generate([3, 4], Settings(16, 2)))
            with pytest.raises(InvalidRequest, match="this generation has ended"):
                next(running)


def test_settings_are_checked_with_the_request(native_bundle: Path) -> None:
    with Generator(native_bundle) as generator:
        for settings, said in (
            (Settings(options={"tempratur": 1}), "tempratur is not a sampling option"),
            (Settings(options={"continue_prefix": True}), "the prompts of a batch follow no text"),
            (Settings(seed=-1), "seed is -1"),
            (Settings(steps=0), "steps"),
        ):
            with pytest.raises(InvalidOption, match=said):
                request_of(generator, (3,), settings)


class Plans:
    """A generator whose budget has room for so many positions, all sequences together, and keeps weights in
    memory up to `kept` of them.
    """

    memory_bytes = 1000

    def __init__(self, positions: int, kept: int) -> None:
        self._positions, self._kept = positions, kept

    def session_options(self, lengths: Lengths, count: int, beside: int) -> SessionOptions:
        return SessionOptions(
            self.memory_bytes, positions=lengths.prefix, canvas=lengths.canvas, sequences=count
        )

    def plan(self, options: SessionOptions) -> Any:
        positions = options.sequences * (options.positions + options.canvas)
        if positions > self._positions:
            raise BudgetExceeded("too small", positions)

        class Plan:
            streamed_bytes = max(0, positions - self._kept)

        return Plan()

    def release(self) -> None: ...


def lengths(prefix: int, canvas: int) -> Lengths:
    return Lengths(canvas, prefix, canvas, 1, 1, "some")


@pytest.mark.parametrize(
    ("positions", "kept", "wanted", "requests", "count"),
    [
        (95, 0, None, 100, 9),
        (95, 79, None, 100, 9),  # seven would stay: too few to fill a pass
        (95, 89, None, 100, 8),  # all weights stay beside eight
        (10**6, 10**6, None, 100, 64),
        (10**6, 0, None, 3, 3),
        (10, 0, None, 100, 1),
        (95, 0, 9, 100, 9),
        (95, 0, 20, 5, 5),
        (10**6, 0, 100, 1000, 100),
    ],
)
def test_the_budget_says_how_many(
    positions: int, kept: int, wanted: int | None, requests: int, count: int
) -> None:
    plans: Any = Plans(positions, kept)
    assert sequences_within(plans, lengths(2, 8), wanted, requests) == count


def test_one_too_many_is_refused_before_anything_runs() -> None:
    plans: Any = Plans(35, 0)
    with pytest.raises(BudgetExceeded) as caught:
        sequences_within(plans, lengths(2, 8), 4, 100)
    assert str(caught.value) == (
        "the memory budget of 1 kB has room for 3 sequences of these lengths, not 4; take 3, or give 40 B"
    )
    assert caught.value.needed_bytes == 40
    assert sequences_within(plans, lengths(2, 8), 4, 3) == 3


def test_without_a_budget_it_is_the_usual_number(native_bundle: Path) -> None:
    with Generator(native_bundle) as generator:
        assert [sequences_within(generator, lengths(2, 8), n, 20) for n in (None, 3, 50)] == [8, 3, 20]


def test_an_engine_that_cannot_be_is_for_the_session_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*arguments: object) -> None:
        raise EngineUnavailable("not here")

    plans: Any = Plans(10, 0)
    monkeypatch.setattr(room, "planned", unavailable)
    assert sequences_within(plans, lengths(2, 8), 4, 100) == 4
    assert lengths_within(plans, {lengths(2, 8)}) == lengths(2, 8)


def test_the_longest_lengths_that_fit() -> None:
    wanted = {lengths(2, 8), lengths(5, 8), lengths(2, 20), lengths(90, 8)}
    for positions, expected in ((200, (90, 20)), (30, (5, 20)), (24, (5, 8)), (13, (5, 8)), (12, (2, 8))):
        plans: Any = Plans(positions, 0)
        found = lengths_within(plans, wanted)
        assert (found.prefix, found.canvas) == expected, positions
    plans = Plans(9, 0)
    with pytest.raises(BudgetExceeded, match="no room for a sequence of these lengths; give 10 B"):
        lengths_within(plans, wanted)


def test_a_process_that_has_grown_gets_fewer(native_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a session takes memory that the plan before it could not know of."""
    tried = list[int]()
    real = Generator.branching

    def branching(self: Generator, wanted: Lengths, count: int, beside: int = 0) -> Any:
        tried.append(count)
        if count > 4:
            raise BudgetExceeded("too small", 1 << 40)
        return real(self, wanted, count, beside)

    monkeypatch.setattr(Generator, "branching", branching)
    with Generator(native_bundle, memory_bytes=64 << 30) as generator:
        asked = requests(generator)
        wanted = {each.sampler.lengths for each in asked}
        with opened_batch(generator, wanted, None, 6) as batch:
            assert batch.sequences == 4 and tried == [6, 5, 4]
            assert len(list(batch.run(enumerate(asked)))) == 5
        with pytest.raises(BudgetExceeded), opened_batch(generator, wanted, 5, 6):
            pass


def test_the_session_is_given_back_in_order(native_bundle: Path) -> None:
    """What is generated behind a batch follows nothing of it, also where the batch was left midway."""
    with Generator(native_bundle) as generator:
        expected = [event for event in generator.generate([3, 4], Settings(16, 2))][-1]
        asked = requests(generator)
        with opened_batch(generator, {each.sampler.lengths for each in asked}, 3, 5) as batch:
            next(batch.run(enumerate(asked)))
        again = [event for event in generator.generate([3, 4], Settings(16, 2))][-1]
        assert replace(again.stats, engine={}) == replace(expected.stats, engine={})  # type: ignore[union-attr]
        assert isinstance(generator.session, Session)
        assert module.USUAL_SEQUENCES == 8
