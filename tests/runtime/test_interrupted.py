"""Signals and passes that fail: what goes on behind them gives the tokens that it gives without."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, Denoise, HeadRequest, Project, drive
from edgekit.runtime.session import Segment, Session, SessionOptions, Together, open_session, together

CANVAS = np.zeros(8, np.int64)
#: Steps of several passes: a second forward without the prompt, and more rows of the last one.
SEVERAL = {"cfg_scale": 1.5, "temperature": 0.7}
AGAIN = {"temperature": 0.7, "top_p": 0.999, "logits_budget_bytes": 4096}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {each: native_bundle(folder / each, each, Scheme("mixed4", 16)) for each in ("llada", "dream")}


@pytest.fixture(params=[("llada", SEVERAL), ("dream", AGAIN)], ids=["llada", "dream"])
def run(request: pytest.FixtureRequest, bundles: dict[str, Path]) -> Iterator[Any]:
    family, options = request.param
    with open_session(bundles[family], SessionOptions(sequences=3, threads=2)) as session:
        own = {"max_new_tokens": 12, "steps": 4, "options": options}
        yield session, lambda: CoreSampler(sampler_model(session.bundle), [5, 6], seed=3, **own)


def tokens(events: Any) -> list[int]:
    return [int(each) for event in events if isinstance(event, Committed) for each in event.ids]


class ByHand:
    """A sampler of the core that `drive` takes for one in Python."""

    def __init__(self, own: CoreSampler) -> None:
        self.own = own
        self.projects = 0

    def next(self, answer: Any = None) -> Any:
        ask = self.own.next(answer)
        self.projects += isinstance(ask, Project)
        return ask

    def copy(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("behind", [False, True])
def test_an_answer_is_given_once(run: Any, behind: bool) -> None:
    """A signal before the sampler takes it, or behind what it asks for next."""
    session, sampler = run
    expected, asked = tokens(drive(sampler(), session)), together.asked
    for number in range(12):
        count = 0

        def stopped(own: Any, answer: Any, number: int = number) -> Any:
            nonlocal count
            count += answer is not None
            if answer is None or count != number + 1:
                return asked(own, answer)
            # What is told and not yet handed on may be lost, as the list that `step` returns may.
            if behind and not isinstance(ask := asked(own, answer), Denoise | Project):
                return ask
            raise KeyboardInterrupt

        events: list[Any] = []
        with Together(session) as driver, mock.patch.object(together, "asked", stopped):
            driver.join(0, sampler(), session.open_sequence())
            while len(driver):
                try:
                    events += [event for _, event in driver.step()]
                except KeyboardInterrupt:
                    continue
        assert tokens(events) == expected, (number, events[-1])


def failing_once(session: Session, number: int) -> Any:
    """A `run_pass` whose pass of that number fails."""
    own, count = session.run_pass, 0

    def run_pass(segments: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            raise OSError("once")
        return own(segments)

    return mock.patch.object(session, "run_pass", run_pass)


@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_a_pass_that_failed_is_asked_for_by_the_next_driver(run: Any, number: int) -> None:
    session, sampler = run
    expected, own, events = tokens(drive(sampler(), session)), sampler(), []
    with failing_once(session, number), pytest.raises(OSError, match="once"):
        for event in drive(own, session):
            events.append(event)
    assert tokens(events + list(drive(own, session))) == expected


def test_who_left_a_company_goes_on_elsewhere(run: Any) -> None:
    """From every step: alone, in another company, or by hand."""
    session, sampler = run
    expected = tokens(drive(sampler(), session))
    drivers: list[Callable[[CoreSampler, Any], Any]] = [drive, lambda s, q: drive(ByHand(s), q), in_company]
    for stop in range(7):
        for go_on in drivers:
            sequence, own, events = session.open_sequence(), sampler(), []
            with Together(session) as company:
                company.join(0, own, sequence)
                for _ in range(stop):
                    events += [event for _, event in company.step()]
                if not len(company):
                    continue
            assert tokens(events + list(go_on(own, sequence))) == expected, (stop, go_on)
            sequence.close()


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_text_that_was_not_encoded_to_its_end_is_encoded_by_the_next_driver(
    session: Session, passes: int
) -> None:
    """In pieces in company: before, between and behind them, where a signal comes and where one leaves."""
    ids = np.arange(session.prefill_rows * 2 + 3) % 50

    def sampler() -> CoreSampler:
        return CoreSampler(sampler_model(session.bundle), ids, seed=3, max_new_tokens=12, steps=3)

    expected, run = tokens(drive(sampler(), session)), session.run_pass
    drivers: list[Callable[[CoreSampler, Any], Any]] = [drive, lambda s, q: drive(ByHand(s), q), in_company]

    def stopped(segments: Any) -> Any:
        nonlocal count
        answers, count = run(segments), count + 1
        if count == passes:
            raise KeyboardInterrupt
        return answers

    for go_on in (None, *drivers):
        count, sequence, own, events = 0, session.open_sequence(), sampler(), list[Any]()
        with Together(session) as company:
            company.join(0, own, sequence)
            with mock.patch.object(session, "run_pass", stopped), pytest.raises(KeyboardInterrupt):
                while len(company):
                    company.step()
            while go_on is None and len(company):
                events += [event for _, event in company.step()]
        if go_on is not None:
            events += list(go_on(own, sequence))
        assert tokens(events) == expected, events[-1]
        sequence.close()


def in_company(sampler: CoreSampler, sequence: Any) -> Iterator[Any]:
    with Together(sequence.session) as company:
        company.join("other", sampler, sequence)
        while len(company):
            for _, event in company.step():
                yield event


def test_more_of_a_pass_that_others_answered_is_the_pass_once_more(bundles: dict[str, Path]) -> None:
    """Of one that another sequence has run, or that another has followed: by the core, in Python, in
    company.
    """
    with open_session(bundles["dream"], SessionOptions(sequences=3, threads=2)) as session:
        model = sampler_model(session.bundle)
        own = {"max_new_tokens": 12, "steps": 4, "options": AGAIN}
        hand = ByHand(CoreSampler(model, [5, 6], seed=3, **own))
        expected = tokens(drive(hand, session))
        assert hand.projects > 5
        for stop in range(hand.projects):
            for go_on in (drive, in_company, lambda s, q: drive(s, mock_of(q))):
                for followed in (False, True):
                    sampler, sequence, events = (
                        CoreSampler(model, [5, 6], seed=3, **own),
                        session.sequence,
                        [],
                    )
                    until_project(sampler, sequence, stop, events)
                    sampler.ask_again()
                    sequence = sequence if followed else session.open_sequence()
                    if followed:
                        session.denoise(CANVAS, HeadRequest())
                    assert tokens(events + list(go_on(sampler, sequence))) == expected
                    sequence.close()


def until_project(sampler: CoreSampler, sequence: Any, number: int, events: list[Any]) -> None:
    """Run it by hand until it asks for the project of that number, which has no answer."""
    ask, found = sampler.next(), 0
    while True:
        answer = None
        if isinstance(ask, Denoise):
            answer = sequence.denoise(ask.ids, ask.request, ask.soft)
        elif isinstance(ask, Project):
            if found == number:
                return
            found += 1
            answer = sequence.project(ask.request)
        elif hasattr(ask, "event"):
            events.append(ask.event)
        ask = sampler.next(answer)


def mock_of(sequence: Any) -> Any:
    """A denoiser whose passes the core does not run."""
    made = mock.MagicMock(wraps=sequence, vocab_size=sequence.vocab_size)
    for name in ("prefix_length", "prefix", "uncached", "session"):
        setattr(made, name, getattr(sequence, name))
    type(made).last_pass = property(lambda _: sequence.last_pass)
    return made


WAYS: dict[str, Callable[[Session, list[int]], Any]] = {}


def way(function: Callable[[Session, list[int]], Any]) -> Callable[[Session, list[int]], Any]:
    WAYS[function.__name__] = function
    return function


@way
def wrapped_denoise(session: Session, seen: list[int]) -> Any:
    own = session.denoise

    @functools.wraps(own)
    def denoise(*arguments: Any) -> Any:
        seen.append(1)
        return own(*arguments)

    return mock.patch.object(session, "denoise", denoise)


@way
def mocked_denoise(session: Session, seen: list[int]) -> Any:
    def noted(*arguments: Any) -> Any:
        seen.append(1)
        return mock.DEFAULT

    return mock.patch.object(session, "denoise", mock.MagicMock(wraps=session.denoise, side_effect=noted))


@way
def other_run_pass(session: Session, seen: list[int]) -> Any:
    own = session.run_pass

    def run_pass(segments: Any) -> Any:
        seen.append(1)
        return own(segments)

    return mock.patch.object(session, "run_pass", run_pass)


@pytest.mark.parametrize("name", WAYS)
def test_passes_of_others_are_theirs(run: Any, name: str) -> None:
    """However `denoise` was replaced, it sees every pass."""
    session, sampler = run
    expected, seen = list(drive(sampler(), session)), [0]
    with WAYS[name](session, seen):
        found = list(drive(sampler(), session))
    assert tokens(found) == tokens(expected)
    assert sum(seen) == expected[-1].stats.forwards + (
        expected[-1].stats.projections if name == "other_run_pass" else 0
    )


def test_an_overridden_run_pass_sees_every_pass(bundles: dict[str, Path]) -> None:
    seen = []

    class Own(Session):
        def run_pass(self, segments: Any) -> Any:
            seen.append(len(segments))
            return super().run_pass(segments)

    with Own(bundles["llada"]) as session:
        sampler = CoreSampler(sampler_model(session.bundle), [5, 6], max_new_tokens=8, steps=2)
        list(drive(sampler, session))
        list(drive(sampler.copy(), session.sequence))
        assert seen == [1, 1]


def test_a_signal_leaves_no_call_under_way(bundle: Path) -> None:
    """Wherever it comes, also while its traceback is there: a session is closed by the end of a `with`."""
    armed, stopped, left = [False], 0, 0

    def stop(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    with Session(bundle, SessionOptions(threads=1)) as session:
        before = signal.signal(signal.SIGALRM, stop)
        try:
            for seed in range(3000):
                armed[0] = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + seed % 80))
                    while armed[0]:
                        session.counters()
                except KeyboardInterrupt:
                    stopped += 1
                    left += bool(session._under_way)
                armed[0] = False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert stopped > 100 and left == 0


def test_a_pass_that_a_handler_has_followed_keeps_its_ids(session: Session) -> None:
    """Of any exception: what was encoded is known."""
    sequence, own = session.sequence, Session._check

    def interrupted(self: Session, run: Callable[[], int]) -> None:
        own(self, run)
        raise TimeoutError

    with mock.patch.object(Session, "_check", interrupted), pytest.raises(TimeoutError):
        session.run_pass([Segment(sequence, CANVAS + 3, causal=True, keep_at=0)])
    assert sequence.prefix_length == 8 and sequence.pieces[0].tolist() == [3] * 8
    with pytest.raises(InvalidRequest, match="token -1"):
        session.run_pass([Segment(sequence, CANVAS - 1, causal=True, keep_at=0)])
    assert sequence.pieces[0].tolist() == [3] * 8


def test_a_sampler_takes_part_in_one_company(run: Any) -> None:
    session, sampler = run
    one, other, own = Together(session), Together(session), sampler()
    one.join(0, own, session.open_sequence())
    with pytest.raises(InvalidRequest, match="the sampler takes part in another Together"):
        other.join(0, own, session.open_sequence())
    one.close()
    other.join(0, own, session.open_sequence())
    other.close()
    with pytest.raises(InvalidRequest, match="the sampler is None; pass a CoreSampler"):
        session.run_sampler(None)
