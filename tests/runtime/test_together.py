"""Members of `Together` that are refused: each leaves with its error, and the others go on as if alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asking import Asks
from support.budgets import tight

from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Denoise,
    Done,
    Draft,
    Encode,
    Event,
    HeadOutput,
    HeadRequest,
    InvalidOption,
    Project,
    Tell,
    drive,
)
from edgekit.runtime.session import Segment, Session, Together, open_session

CANVAS = np.zeros(8, np.int64)
BEST = HeadRequest()


def generation(session: Session, seed: int = 1) -> CoreSampler:
    return CoreSampler(sampler_model(session.bundle), [5, 6], seed=seed, max_new_tokens=40, steps=3)


def found(events: list[Event]) -> list[Any]:
    return [
        (each.start, each.ids.tolist()) if isinstance(each, Draft) else each.ids.tolist()
        for each in events
        if not isinstance(each, Done)
    ]


REFUSED: dict[str, tuple[list[Any], type[Exception], str]] = {
    "a canvas beyond the budget": ([Denoise(np.zeros(100, np.int64), BEST)], BudgetExceeded, "canvas = 100"),
    "a text beyond the budget": ([Encode(np.zeros(300, np.int64))], BudgetExceeded, "positions = 300"),
    "a token beyond the vocabulary": ([Denoise(CANVAS + 10**6, BEST)], InvalidRequest, "token 1000000"),
    "a token at a text's end": (
        [Encode(np.array([1] * 40 + [-1]))],
        InvalidRequest,
        "token -1 at position 40",
    ),
    "a row out of range": ([Denoise(CANVAS, HeadRequest(rows=np.array([8])))], InvalidRequest, "row 8 is"),
    "no ids": ([Denoise(CANVAS[:0], BEST)], InvalidRequest, "at least one"),
    "floats": ([Denoise(CANVAS.astype(np.float32), BEST)], InvalidRequest, "holds float32 values"),
    "floats as text": ([Encode(CANVAS.astype(np.float32))], InvalidRequest, "holds float32 values"),
    "nothing as text": ([Encode(None)], InvalidRequest, "Encode of Asks is None"),  # type: ignore[arg-type]
    "a projection before a pass": ([Project(CANVAS, BEST)], InvalidRequest, "needs a denoise before it"),
    "an unknown request": ([Denoise(CANVAS, "best")], InvalidRequest, "give a HeadRequest"),  # type: ignore[arg-type]
    "later on": (
        [Encode(CANVAS), Denoise(CANVAS, BEST), Project(CANVAS, HeadRequest(temperature=0.0))],
        InvalidRequest,
        "temperature 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_is_refused_leaves_and_the_others_go_on(bundle: Path, case: str) -> None:
    asks, kind, said = REFUSED[case]
    with Session(bundle, tight(bundle, positions=96, canvas=64, sequences=4)) as session:
        expected = [found(list(drive(generation(session, seed), session))) for seed in range(2)]
        together, told = Together(session), {key: [] for key in (0, 1, "x")}  # type: dict[Any, list[Any]]
        session.reset()
        together.join(0, generation(session, 0), session.sequence)
        together.join("x", Asks(*asks), session.open_sequence())
        together.join(1, generation(session, 1), session.open_sequence())
        while len(together):
            for key, event in together.step():
                told[key].append(event)
        assert [found(told[seed]) for seed in range(2)] == expected
        assert any(isinstance(each, Committed) for each in told[0])
        (error,) = told["x"]
        assert type(error) is kind and said in str(error), error


def test_several_are_refused_at_once(session: Session) -> None:
    together = Together(session)
    closed = session.open_sequence()
    together.join("a", Asks(Denoise(CANVAS - 1, BEST)), session.sequence)
    together.join("b", Asks(Denoise(CANVAS, BEST)), closed)
    together.join(
        "c", Asks(Denoise(CANVAS, BEST), Tell(Draft(0, 0, 0, CANVAS, CANVAS > 0))), session.open_sequence()
    )
    closed.close()
    told = together.step()
    assert [key for key, _ in told] == ["b", "a", "c", "c"] and not len(together)
    assert "the sequence is closed" in str(told[0][1]) and "token -1" in str(told[1][1])
    assert isinstance(told[2][1], Draft) and isinstance(told[3][1], Done)


def test_a_pass_that_is_refused_names_the_segment(session: Session) -> None:
    right, wrong = Segment(session.sequence, CANVAS, BEST), Segment(session.open_sequence(), CANVAS - 1, BEST)
    shape = Segment(session.sequence, CANVAS, BEST, soft=np.zeros((1, 1), np.float32))
    for segments, number in (([right, wrong], 1), ([wrong, right], 0), ([right, right, shape], 2)):
        with pytest.raises(InvalidRequest) as caught:
            session.run_pass(segments)
        assert caught.value.segment == number
    with pytest.raises(InvalidRequest) as caught:
        session.run_pass([])
    assert caught.value.segment is None
    with pytest.raises(InvalidRequest) as caught:
        session.sequence.crop(5)
    assert caught.value.segment is None, "not that of an earlier error"


@pytest.mark.parametrize(
    ("join", "said"),
    [
        (
            lambda own, other: ("k", "text", own.sequence),
            "the sampler is 'text'; pass an object with a method next",
        ),
        (lambda own, other: ("k", CoreSampler, own.sequence), "the sampler is <class"),
        (lambda own, other: ("k", Asks(), None), "the sequence is None; pass what open_sequence gives"),
        (lambda own, other: ("k", Asks(), own), "pass what open_sequence gives"),
        (lambda own, other: ("k", Asks(), other.sequence), "belongs to another session"),
        (lambda own, other: (["k"], Asks(), own.sequence), r"the key is \['k'\]"),
    ],
)
def test_what_cannot_join_is_refused(
    session: Session, bundle: Path, join: Callable[[Session, Session], Any], said: str
) -> None:
    together = Together(session)
    with Session(bundle) as other, pytest.raises(InvalidRequest, match=said):
        together.join(*join(session, other))
    assert len(together) == 0 and together.step() == []
    with pytest.raises(InvalidRequest, match="'k' does not take part"):
        together.leave("k")


def test_wrong_arguments_have_one_line(session: Session, bundle: Path) -> None:
    with pytest.raises(InvalidRequest, match="the session is None"):
        Together(None)  # type: ignore[arg-type]
    for sampler in (None, Asks, "text"):
        with pytest.raises(InvalidRequest, match="the sampler is "):
            next(drive(sampler, session))  # type: ignore[arg-type]
    for denoiser in (None, "gemma", Session):
        with pytest.raises(InvalidRequest, match="the denoiser is "):
            next(drive(Asks(), denoiser))  # type: ignore[arg-type]
    for model in ("gemma", None):
        with pytest.raises(InvalidOption, match="the model is .*; pass a SamplerModel"):
            CoreSampler(model, [2])  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="the model is .*; pass a SamplerModel"):
            CoreSampler.load(model, b"")  # type: ignore[arg-type]
    for options in ({"memory_bytes": 1}, 5):
        with pytest.raises(InvalidOption, match="the options are .*; pass SessionOptions"):
            open_session(bundle, options)  # type: ignore[arg-type]


def test_text_that_is_uncached_is_never_dropped(session: Session) -> None:
    """By a procedure that goes on without it: alone, and in company."""
    session.sequence.prefill(CANVAS)
    behind, left = np.array([7, 8, 9]), np.array([3, 4])
    for ids in (behind, np.array([3]), np.array([3, 4, 7])):
        session.uncached = left
        before = session.prefix_length
        asks = [Encode(ids), Denoise(CANVAS, BEST), Tell(Draft(0, 0, 0, CANVAS, CANVAS > 0))]
        begins = int(ids[0]) == 3
        other = session.sequence.copy()
        together = Together(session)
        together.join(0, Asks(*asks), other)
        (_, event), *_ = together.step() or together.step()
        if begins:
            assert isinstance(event, Draft) and isinstance(next(drive(Asks(*asks), session)), Draft)
        else:
            assert "must begin with the 2 tokens that are uncached" in str(event)
            with pytest.raises(InvalidRequest, match="must begin with the 2 tokens that are uncached"):
                next(drive(Asks(*asks), session))
        for text in (session.sequence, other):
            kept = max(0, 2 - len(ids)) if begins else 2
            assert text.uncached.tolist() == left[2 - kept :].tolist()
            assert text.prefix_length == before + (len(ids) if begins else 0)
        other.close()


@pytest.mark.parametrize("fails", ["denoise", "answer"])
def test_the_core_runs_what_a_sampler_asks_as_python_does(session: Session, fails: str) -> None:
    """Event by event, behind a `next` without an answer too; what does not belong together is refused."""
    expected = found(list(drive(Driven(generation(session)), session)))
    assert expected == found(list(drive(generation(session), session)))
    session.reset()
    sampler, events = generation(session), []
    ask = sampler.next()
    while not isinstance(ask, Denoise):
        if isinstance(ask, Encode):
            session.prefill(ask.ids)
        ask = sampler.next()
    if fails == "answer":
        with pytest.raises(InvalidRequest, match="the pass was asked for it"):
            sampler.next(HeadOutput(None, None, None, None))  # type: ignore[arg-type]
    while not isinstance(ask := session.run_sampler(sampler), Tell) or not isinstance(ask.event, Done):
        if isinstance(ask, Encode):
            session.prefill(ask.ids)
        elif isinstance(ask, Tell):
            events.append(ask.event)
    assert found(events) == expected
    model = replace(sampler_model(session.bundle), hidden_size=session.hidden_size + 1)
    other = CoreSampler(model, [5, 6], max_new_tokens=8)
    with pytest.raises(InvalidRequest, match="the sampler is for a model of .* hidden size"):
        session.run_sampler(other)


class Driven:
    """A sampler of the core that `drive` takes for one in Python."""

    def __init__(self, own: CoreSampler) -> None:
        self.own = own

    def next(self, answer: HeadOutput | None = None) -> Any:
        return self.own.next(answer)

    def copy(self) -> Driven:
        return Driven(self.own.copy())
