"""A sampler goes on over the text and the pass that it was driven over, or is refused: another text gives
other tokens, and nobody could tell.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asking import Asks

from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Denoise,
    Done,
    Draft,
    Encode,
    Event,
    HeadRequest,
    Prefix,
    Project,
    Tell,
    drive,
)
from edgekit.runtime.sampling.core import text_number
from edgekit.runtime.session import Segment, Session, SessionOptions, Together, open_session

CANVAS = np.zeros(8, np.int64)
BEST = HeadRequest()
OTHER_TEXT = "goes on behind .* there: drive it over the sequence that it was driven over"
OTHER_PASS = "more of its last pass, and another pass has run over the sequence since"


@pytest.fixture
def texts(bundle: Path) -> Iterator[Session]:
    with open_session(bundle, SessionOptions(sequences=4, threads=2)) as session:
        yield session


def sampler(session: Session, prompt: tuple[int, ...] = (5, 6), **others: Any) -> CoreSampler:
    return CoreSampler(
        sampler_model(session.bundle), list(prompt), **{"max_new_tokens": 40, "steps": 3} | others
    )


def tokens(events: list[Event]) -> list[int]:
    return [int(each) for event in events if isinstance(event, Committed) for each in event.ids]


def begun(own: CoreSampler, denoiser: Any) -> None:
    """Drive it to its first draft."""
    events = drive(own, denoiser)
    assert isinstance(next(events), Draft)
    events.close()


def in_company(session: Session, own: Any, sequence: Any = None) -> list[Any]:
    """What `Together` tells of it, to its end."""
    together, told = Together(session), []
    together.join(0, own, sequence or session.sequence)
    while len(together):
        told += [event for _, event in together.step()]
    return told


@pytest.mark.parametrize("company", [False, True])
def test_a_sampler_is_refused_over_another_text(texts: Session, company: bool) -> None:
    """Over a sequence without it, over one that somebody else has changed; restored it goes on."""
    expected = tokens(list(drive(sampler(texts), texts)))
    for change in (lambda s: texts.open_sequence(), cropped, prefilled, replaced, kept, lambda s: s):
        own, sequence = sampler(texts), texts.open_sequence()
        begun(own, sequence)
        other = change(sequence)
        saved = own.copy()
        if other is sequence and change not in (cropped, prefilled, replaced, kept):
            assert tokens(in_company(texts, own, other) if company else list(drive(own, other))) == expected
        else:
            with pytest.raises(InvalidRequest, match=OTHER_TEXT):
                raise in_company(texts, own, other)[-1] if company else list(drive(own, other))[-1]  # type: ignore[misc]
            saved.restore()
            assert tokens(list(drive(saved, other))) == expected
        sequence.close()
        other.close()


def cropped(sequence: Any) -> Any:
    sequence.crop(1)
    return sequence


def prefilled(sequence: Any) -> Any:
    sequence.prefill(np.array([9]))
    return sequence


def replaced(sequence: Any) -> Any:
    """A text of the same length."""
    sequence.crop(1)
    sequence.prefill(np.array([7]))
    return sequence


def kept(sequence: Any) -> Any:
    """Rows of the same ids, which are no text: they see each other."""
    sequence.session.run_pass([Segment(sequence, np.array([5, 6]), keep_at=0)])
    return sequence


def test_equal_texts_have_equal_numbers(texts: Session) -> None:
    """In whatever pieces and sessions; what is no text has that of none."""
    one, other = texts.open_sequence(), texts.open_sequence()
    assert one.prefix == other.prefix == Prefix(0, 2)
    one.prefill(np.arange(9))
    other.prefill(np.arange(4))
    assert one.prefix != other.prefix
    branch = other.copy()
    other.prefill(np.arange(4, 9))
    assert one.prefix == other.prefix and one.prefix.length == 9 and branch.prefix.length == 4
    ids = np.arange(9)
    assert text_number(text_number(2, ids[:4]), ids[4:]) == text_number(2, ids) == one.prefix.text
    assert (text_number(0, ids), text_number(1, ids), text_number(7, ids[:0])) == (0, 1, 7)
    one.crop(4)
    assert one.prefix == branch.prefix
    texts.run_pass([Segment(one, np.arange(4, 9), causal=True, keep_at=4)])
    assert one.prefix == other.prefix
    texts.run_pass([Segment(one, np.arange(2), keep_at=9)])
    assert one.prefix == Prefix(11, 1)
    one.crop(9)
    assert one.prefix == other.prefix
    one.reset()
    assert one.prefix == Prefix(0, 2)


def test_two_generations_do_not_share_a_sequence(texts: Session) -> None:
    """Not even with prompts of one length, driven in turns or in company."""
    first, second = drive(sampler(texts), texts), drive(sampler(texts, (8, 9)), texts)
    next(first)
    next(second)
    with pytest.raises(InvalidRequest, match="another of that length is there"):
        list(first)
    together, sequence = Together(texts), texts.open_sequence()
    together.join(0, sampler(texts), sequence)
    while not together.step():
        pass
    begun(sampler(texts, (8, 9)), sequence)
    told = [event for _ in range(2) for _, event in together.step()]
    assert isinstance(told[-1], InvalidRequest) and "another of that length" in str(told[-1])


def test_a_text_is_not_changed_between_its_pieces(texts: Session) -> None:
    """By others: what is cropped is encoded again, what is put there is refused."""
    ids = np.arange(texts.prefill_rows * 2 + 3) % 40
    for changed in (False, True):
        together, sequence = Together(texts), texts.open_sequence()
        together.join("t", Asks(Encode(ids), wanted), sequence)
        assert together.step() == [] and sequence.prefix_length == texts.prefill_rows
        sequence.crop(4)
        if changed:
            sequence.prefill(np.array([39]))
        told: list[Any] = []
        while len(together):
            told += [event for _, event in together.step()]
        if changed:
            assert isinstance(told[-1], InvalidRequest) and "changed by somebody else" in str(told[-1])
        else:
            assert isinstance(told[-1], Done) and np.concatenate(sequence.pieces).tolist() == ids.tolist()
        sequence.close()


wanted = Tell(Draft(0, 0, 0, CANVAS, CANVAS > 0))


@pytest.mark.parametrize("company", [False, True])
def test_a_project_is_of_the_samplers_own_pass(texts: Session, company: bool) -> None:
    def other() -> Tell:
        texts.denoise(CANVAS + 1, BEST)
        return wanted

    asks = [Denoise(CANVAS, BEST), wanted, Project(CANVAS, BEST), other, Project(CANVAS, BEST)]
    if company:
        told = in_company(texts, Asks(*asks), texts.sequence)
        assert [type(each) for each in told] == [Draft, Draft, InvalidRequest]
        error: Any = told[-1]
    else:
        events = drive(Asks(*asks), texts)
        assert [type(next(events)) for _ in range(2)] == [Draft, Draft]
        with pytest.raises(InvalidRequest) as caught:
            next(events)
        error = caught.value
    assert OTHER_PASS in str(error)
    other_text = texts.open_sequence()
    other_text.denoise(CANVAS, BEST)
    copy = other_text.copy()
    assert copy.last_pass == other_text.last_pass != texts.last_pass, "the hidden states of the same pass"


def test_samplers_and_sequences_take_part_once(texts: Session, bundle: Path) -> None:
    together, own, sequence = Together(texts), sampler(texts), texts.open_sequence()
    together.join("a", own, sequence)
    with pytest.raises(InvalidRequest, match="the sampler takes part already"):
        together.join("b", own, texts.sequence)
    elsewhere = Together(texts)
    with pytest.raises(InvalidRequest, match="takes part in another Together"):
        elsewhere.join("b", sampler(texts), sequence)
    together.leave("a")
    elsewhere.join("b", sampler(texts), sequence)
    elsewhere.close()
    assert len(elsewhere) == 0
    del elsewhere
    together.join("a", sampler(texts), sequence)
    while len(together):
        together.step()
    Together(texts).join("c", sampler(texts), sequence)  # who is done has left, so has who is gone
    Together(texts).join("d", sampler(texts), sequence)
    sequence.close()
    with pytest.raises(InvalidRequest, match="the sequence is closed"):
        together.join("a", sampler(texts), sequence)
    with pytest.raises(InvalidRequest, match=r"the key is \[\]"):
        together.leave([])  # type: ignore[arg-type]


def test_samplers_belong_to_a_bundle(texts: Session) -> None:
    """Those that say so."""
    model = sampler_model(texts.bundle)
    for bundle, fits in (("another", False), (None, True), (texts.bundle.digest, True)):
        own = CoreSampler(replace(model, bundle=bundle), [5, 6], max_new_tokens=8, steps=2)
        assert own.copy().bundle == bundle
        if fits:
            assert tokens(list(drive(own.copy(), texts))) == tokens(in_company(texts, own))
        else:
            with pytest.raises(InvalidRequest, match="the sampler is of another bundle than"):
                next(drive(own, texts))
            with pytest.raises(InvalidRequest, match="the sampler is of another bundle than"):
                Together(texts).join(0, own, texts.sequence)


def test_what_was_asked_and_not_done_is_asked_again(texts: Session) -> None:
    """As where Ctrl-C comes between the two."""
    expected = tokens(list(drive(sampler(texts), texts)))
    for done in (False, True):
        texts.sequence.crop(1)  # there is something to forget
        own = sampler(texts)
        ask = texts.run_sampler(own)
        while not isinstance(ask, Encode):
            assert type(texts.run_sampler(own)) is type(ask), "nobody has done it"
            texts.reset()
            ask = texts.run_sampler(own)
        if done:
            texts.prefill(ask.ids)
        assert tokens(list(drive(own, texts))) == expected


def test_errors_leave_sequences_free(texts: Session) -> None:
    """Without the collector of cycles: nothing of the core's errors keeps what its callers held."""
    sequence = texts.open_sequence()

    def fails() -> None:
        together = Together(texts)
        together.join(0, sampler(texts), sequence)
        together.step()
        texts.run_pass([Segment(sequence, CANVAS - 1, BEST)])

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(InvalidRequest) as caught:
            fails()
        del caught
        assert sequence.driver is None
    finally:
        gc.enable()
    with Together(texts) as together:
        together.join(0, sampler(texts), sequence)
    assert sequence.driver is None and len(together) == 0


def test_a_sampler_that_is_restored_in_company_says_so(texts: Session) -> None:
    own, together = sampler(texts), Together(texts)
    together.join(0, own, texts.sequence)
    while not together.step():
        pass
    own.restore()
    told = [event for _ in range(2) for _, event in together.step()]
    assert "the sampler was restored, or driven by somebody else" in str(told[-1])


def test_a_closed_session_is_not_entered(bundle: Path) -> None:
    session = open_session(bundle)
    session.close()
    with pytest.raises(InvalidRequest, match="the session is closed"), session:
        pass


def test_the_plan_has_room_for_what_was_opened(bundle: Path) -> None:
    for count in (1, 2, 5):
        needed = 1
        for _ in range(3):
            try:
                options = SessionOptions(needed, positions=64, canvas=32, sequences=count)
                with open_session(bundle, options) as session:
                    assert session.plan.most_sequences >= count
                break
            except BudgetExceeded as error:
                needed = error.needed_bytes
        else:
            pytest.fail("the budget that was named is not enough")


def test_a_step_within_a_step_is_refused(texts: Session) -> None:
    together = Together(texts)
    together.join("a", Asks(lambda: together.step()), texts.sequence)
    ((key, error),) = together.step()
    assert key == "a" and "a step is under way" in str(error) and len(together) == 0
    together.join("a", Asks(lambda: together.leave("a"), wanted), texts.sequence)
    ((key, error),) = together.step()
    assert key == "a" and "returned None" in str(error) and len(together) == 0


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no canvas": (lambda: Denoise(None, BEST), "the ids of a Denoise of Asks is None"),  # type: ignore[arg-type]
    "no request": (lambda: Denoise(CANVAS, None), "the request of a Denoise of Asks is None"),  # type: ignore[arg-type]
    "no second request": (lambda: Project(CANVAS, None), "the request of a Project of Asks is None"),  # type: ignore[arg-type]
    "no text": (lambda: Encode(None), "the ids of an Encode of Asks is None"),  # type: ignore[arg-type]
    "letters": (lambda: Encode("hello"), "the ids of an Encode of Asks is 'hello'"),  # type: ignore[arg-type]
    "a canvas of two dimensions": (lambda: Denoise(CANVAS[None], BEST), r"has shape \(1, 8\)"),
    "letters kept": (lambda: Tell(wanted.event, "x"), "what is kept of a Tell of Asks is 'x'"),  # type: ignore[arg-type]
    "fractions kept": (lambda: Tell(wanted.event, CANVAS + 0.5), "holds float64 values"),
    "tokens kept that no model has": (lambda: Tell(wanted.event, CANVAS - 1), "uncached text holds token -1"),
    "an end by exception": (
        lambda: next(iter(())),
        "Asks.next raised StopIteration; it ends by returning Tell",
    ),
    "a prefix that is none": (lambda: Denoise(CANVAS, BEST, None, 3), "the prefix of a Denoise of Asks is 3"),  # type: ignore[arg-type]
    "nothing": (lambda: None, "Asks.next returned None; it must return one of Forget"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_have_one_line_alone_and_in_company(texts: Session, case: str) -> None:
    ask, said = WRONG[case]
    with pytest.raises(InvalidRequest, match=said) as alone:
        list(drive(Asks(ask), texts))
    (error,) = in_company(texts, Asks(ask))
    assert type(error) is InvalidRequest and str(error) == str(alone.value)


def test_a_next_takes_an_answer(texts: Session) -> None:
    class Alone:
        def next(self) -> Any: ...

    with pytest.raises(
        InvalidRequest, match=r"Alone.next cannot be called with an answer; give it next\(self"
    ):
        next(drive(Alone(), texts))  # type: ignore[arg-type]


def test_text_without_a_prefix_is_refused_alone_and_in_company(
    shipped_bundle: Callable[..., Path],
) -> None:
    with open_session(shipped_bundle("tiny-llada")) as session:
        for ids in ([], [3]):
            with pytest.raises(EdgekitError, match="encodes no prefix") as alone:
                list(drive(Asks(Encode(np.array(ids, np.int64))), session))
            (error,) = in_company(session, Asks(Encode(np.array(ids, np.int64))))
            assert str(error) == str(alone.value)


def test_a_session_goes_with_its_last_reference(bundle: Path) -> None:
    """Memory, files and threads with it, without the collector of cycles; a sequence keeps its session."""
    gc.collect()
    gc.disable()
    try:
        session = open_session(bundle)
        list(drive(sampler(session, max_new_tokens=8, steps=2), session))
        gone, sequence = weakref.ref(session), session.sequence
        assert sequence is session.sequence
        sequence.prefill(np.array([3]))
        del session
        sequence.prefill(np.array([4]))
        text = sequence.session.sequence.pieces  # type: ignore[attr-defined]
        assert gone() is not None and [each.tolist() for each in text][-1] == [4]
        del sequence
        assert gone() is None
    finally:
        gc.enable()
