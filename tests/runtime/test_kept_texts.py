"""What sequences know of the text that they keep, and the room that a budget has for it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.budgets import tight
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from edgekit.runtime.generation import Generator, Settings, sampler_model
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Done,
    HeadRequest,
    InvalidOption,
    drive,
    generate,
)
from edgekit.runtime.session import SeenRows, Segment, Sequence, Session, SessionOptions, Together

LOGITS = HeadRequest(logits=True)
CANVAS = np.arange(8)


@pytest.fixture
def other(bundle: Path) -> Iterator[Session]:
    with Session(bundle) as opened:
        yield opened


def keep(text: Sequence, count: int, at: int | None = None, **more: Any) -> None:
    """Have a pass keep `count` ids behind the text, or from a position on."""
    at = text.prefix_length if at is None else at
    ids = (np.arange(count) * 7 + at) % 50
    text.session.run_pass([Segment(text, ids, keep_at=at, **({"causal": True} | more))])


def logits(text: Sequence | Session) -> np.ndarray:
    scores = text.denoise(CANVAS, LOGITS).logits
    assert scores is not None
    return scores


def encoded_again(pieces: list[np.ndarray], other: Session) -> np.ndarray:
    other.reset()
    for piece in pieces:
        other.prefill(piece)
    return logits(other)


def test_pieces_tell_the_text_that_passes_have_kept(session: Session, other: Session) -> None:
    text = session.sequence
    text.prefill(np.arange(20))
    keep(text, 9)
    assert [len(piece) for piece in text.pieces] == [20, 9]
    np.testing.assert_array_equal(encoded_again(text.pieces, other), logits(text))
    text.crop(24)
    keep(text, 5, request=HeadRequest())
    keep(text, 6, at=23)  # in place of all behind it
    assert [len(piece) for piece in text.pieces] == [20, 3, 6]
    np.testing.assert_array_equal(encoded_again(text.pieces, other), logits(text))
    with text.copy() as branch:
        keep(branch, 4)
        assert [len(piece) for piece in branch.pieces] == [20, 3, 6, 4]
    assert [len(piece) for piece in text.pieces] == [20, 3, 6]


@pytest.mark.parametrize(
    ("at", "more", "known"),
    [
        (12, {}, 16),  # rows behind them saw the old ones
        (20, {"causal": False}, 20),
        (20, {"seen": [SeenRows(None, 0, 10)]}, 20),
    ],
)
def test_a_text_that_no_encoding_gives_has_no_pieces(
    session: Session, at: int, more: dict[str, Any], known: int
) -> None:
    text = session.sequence
    text.prefill(np.arange(20))
    keep(text, 4, at=at, **more)
    keep(text, 3)
    words = rf"of the {text.prefix_length} kept positions only the first {known} can be encoded again"
    for wants in (lambda: text.pieces, lambda: session.pieces, lambda: text.copy().pieces):
        with pytest.raises(InvalidRequest, match=words):
            wants()
    text.crop(at)
    assert sum(map(len, text.pieces)) == at
    keep(text, 3)
    assert sum(map(len, text.pieces)) == at + 3


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in blocks of four rows that see each other."""
    return native_bundle(tmp_path_factory.mktemp("sdar"), "sdar", Scheme("mixed4", 16), num_hidden_layers=2)


@pytest.mark.parametrize(
    ("length", "known"), [(1, 0), (4, 4), (6, 4), (10, 10), (12, 10), (14, 14), (17, 14), (19, 19)]
)
def test_a_block_that_has_lost_its_end_is_no_text(blocks: Path, length: int, known: int) -> None:
    """Its rows have seen what is gone. Blocks are counted from where a call began to encode, and its last one
    may be shorter.
    """
    with Session(blocks) as session, Session(blocks) as other:
        text = session.sequence
        text.prefill(np.arange(10))
        text.prefill(np.arange(20, 29))
        text.crop(length)
        if known < length:
            assert text.prefix.text == 1, "it has the number of no text"
            words = rf"of the {length} kept positions only the first {known} can .* a block has lost its end"
            with pytest.raises(InvalidRequest, match=words):
                _ = text.pieces
            keep(text, 4, block=4)
            with pytest.raises(InvalidRequest, match=rf"of the {length + 4} kept .* the first {known} can"):
                _ = text.pieces
            text.crop(known)
        assert sum(map(len, text.pieces)) == known
        keep(text, 4, block=4)
        np.testing.assert_array_equal(encoded_again(text.pieces, other), logits(text))
        assert text.prefix == other.prefix


def test_a_generation_behind_such_a_text_is_refused_and_another_is_not(session: Session) -> None:
    text, section = session.sequence, session.bundle.manifest.sampler
    keep(text, 6, causal=False)
    few: dict[str, Any] = {"max_new_tokens": 8, "steps": 2}
    with pytest.raises(InvalidRequest, match="only the first 0 can be encoded again"):
        next(generate(session, section, [3], options={"continue_prefix": True}, **few))
    events = list(generate(session, section, [3], options={"continue_prefix": False}, **few))
    assert isinstance(events[-1], Done)


def test_a_failed_pass_leaves_the_pieces(session: Session, other: Session) -> None:
    text = session.sequence
    text.prefill(np.arange(20))
    with pytest.raises(InvalidRequest, match="vocabulary"):
        session.run_pass([Segment(text, np.array([10**6]), causal=True, keep_at=4)])
    np.testing.assert_array_equal(encoded_again(text.pieces, other), logits(text))


def test_a_saved_generation_goes_on_behind_what_passes_have_kept(session: Session, other: Session) -> None:
    text, draw = session.sequence, np.random.default_rng(0)
    for seed in range(3):
        text.reset()
        text.prefill(draw.integers(3, 40, 12))
        keep(text, 15)
        model = replace(sampler_model(session.bundle), encoded=text.pieces, uncached=text.uncached)
        options = {"continue_prefix": True}
        sampler = CoreSampler(model, [5, 6], seed=seed, max_new_tokens=64, steps=4, options=options)
        events = drive(sampler, session)
        next(events)
        state = sampler.save()
        rest = [event.ids.tolist() for event in events if isinstance(event, Committed)]
        loaded = drive(CoreSampler.load(model, state), other)
        assert rest and rest == [event.ids.tolist() for event in loaded if isinstance(event, Committed)]


def test_nothing_follows_the_texts_of_several_prompts(bundle: Path) -> None:
    few = Settings(max_new_tokens=8, steps=2)
    on = replace(few, options={"continue_prefix": True})

    def answer(generator: Generator, settings: Settings) -> list[list[int]]:
        return [e.ids.tolist() for e in generator.generate([9, 8], settings) if isinstance(e, Committed)]

    with Generator(bundle) as generator:
        expected = answer(generator, few)
        for number, event in generator.generate_many([[3, 4], [5]], few):
            assert not isinstance(event, Exception), number
        assert generator.encoded == []
        assert answer(generator, on) == expected
        with pytest.raises(InvalidOption, match="continue_prefix"):
            list(generator.generate_many([[3]], on))


def test_branches_that_come_and_go_leave_room(bundle: Path, other: Session) -> None:
    options = tight(bundle, positions=200, canvas=16, sequences=2)
    with Session(bundle, options) as session:
        text = session.sequence
        text.prefill(np.arange(10))
        for i in range(100):
            with text.copy() as branch:
                branch.prefill(np.arange(200 - text.prefix_length) % 50)
                text.prefill(np.array([i % 50]))
        np.testing.assert_array_equal(encoded_again(text.pieces, other), logits(text))
        with text.copy() as branch:
            branch.prefill(np.arange(90) % 50)
            text.prefill(np.arange(90) % 40)


def test_rows_that_are_replaced_together_say_what_to_open(bundle: Path) -> None:
    lengths: dict[str, int] = {"positions": 100, "canvas": 100, "sequences": 3}

    def replace_all(options: SessionOptions) -> None:
        with Session(bundle, options) as session:
            texts = [session.sequence, session.open_sequence(), session.open_sequence()]
            for text in texts:
                text.prefill(np.arange(100) % 50)
            segments = [Segment(text, np.arange(8), causal=True, keep_at=92) for text in texts]
            session.run_pass(segments)
            for text in texts:
                assert [len(piece) for piece in text.pieces] == [92, 8]

    with pytest.raises(BudgetExceeded, match=r"open the session with sequences = (\d+)") as raised:
        replace_all(tight(bundle, **lengths))
    wanted = int(str(raised.value).rsplit(" ", 1)[-1])
    assert wanted > 3 and raised.value.needed_bytes > 0
    replace_all(tight(bundle, **(lengths | {"sequences": wanted})))


class Stopped:
    """A sampler that a signal stops once, before or behind a step."""

    def __init__(self, sampler: CoreSampler) -> None:
        self.sampler, self.stops, self.asks = sampler, True, 0

    def next(self, answer: Any = None) -> Any:
        if answer is not None and self.stops:
            self.stops = False
            raise KeyboardInterrupt
        return self.sampler.next(answer)

    def copy(self) -> Any:
        raise NotImplementedError


def test_an_answer_waits_for_a_sampler_that_was_stopped(session: Session) -> None:
    model = sampler_model(session.bundle)

    def together(stopped: bool) -> list[Any]:
        sampler = CoreSampler(model, [5, 6], seed=1, max_new_tokens=64, steps=4)
        driver, events = Together(session), []
        driver.join(0, Stopped(sampler) if stopped else sampler, session.sequence)
        while len(driver):
            try:
                events += driver.step()
            except KeyboardInterrupt:
                assert stopped
        return [event.ids.tolist() for _, event in events if isinstance(event, Committed)]

    assert together(stopped=True) == together(stopped=False) != []


def test_a_piece_whose_pass_a_signal_has_followed_is_encoded_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = CoreSampler(sampler_model(session.bundle), np.arange(600) % 50, max_new_tokens=8, steps=1)
    driver, run, stops = Together(session), session.run_pass, iter([False, True, True, False, False])

    def stopped(segments: Any) -> Any:
        answers = run(segments)
        if next(stops, False):
            raise KeyboardInterrupt
        return answers

    monkeypatch.setattr(session, "run_pass", stopped)
    driver.join(0, sampler, session.sequence)
    interrupted = 0
    while len(driver) and session.prefix_length < 600:
        try:
            driver.step()
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == 2 and session.prefix_length == 600
    ids = np.concatenate(session.pieces)
    np.testing.assert_array_equal(ids, np.arange(600) % 50)


def test_copies_have_handles_of_their_own(session: Session) -> None:
    text = session.open_sequence()
    text.prefill(CANVAS)
    for make in (copy.copy, copy.deepcopy):
        other = make(text)
        other.prefill(CANVAS)
        other.close()
        assert text.prefix_length == 8
    with pytest.raises(InvalidRequest, match="a Session cannot be copied"):
        copy.copy(session)


def test_copies_crops_and_prefills_within_the_plan_are_never_refused(bundle: Path, other: Session) -> None:
    refused = 0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        count, positions = int(draw.integers(1, 4)), int(draw.integers(30, 200))
        options = tight(bundle, positions=positions, canvas=int(draw.integers(1, 64)), sequences=count)
        with Session(bundle, options) as session:
            texts = [session.sequence]
            for _ in range(60):
                text, does = texts[draw.integers(len(texts))], draw.integers(6)
                if does == 0 and len(texts) < count:
                    texts.append(text.copy())
                elif does == 1 and len(texts) > 1:
                    texts.pop(1 + draw.integers(len(texts) - 1)).close()
                elif does == 2:
                    try:
                        text.crop(int(draw.integers(text.prefix_length + 1)))
                    except InvalidRequest as error:
                        assert "too far back" in str(error)
                        refused += 1
                elif text.prefix_length < positions:
                    most = positions - text.prefix_length
                    text.prefill(
                        draw.integers(0, 50, most if does == 3 else 1 + draw.integers(min(most, 20)))
                    )
            for text in texts:
                kept = text.pieces
                (answer,) = session.run_pass([Segment(text, CANVAS[: options.canvas], LOGITS)])
                assert answer is not None and answer.logits is not None
                again = encoded_again(kept, other) if options.canvas >= 8 else answer.logits
                np.testing.assert_array_equal(answer.logits, again)
    assert refused > 0


def test_windows_let_go_where_passes_reach_back_and_beyond(bundle: Path) -> None:
    with Session(bundle, tight(bundle, positions=256, canvas=16)) as session:
        text = session.sequence
        text.prefill(np.arange(10))
        while text.prefix_length + 15 < 240:
            keep(text, 16, at=text.prefix_length - 1)
        assert sum(map(len, text.pieces)) == text.prefix_length > 220


def test_segments_longer_than_the_models_canvas_are_planned_for(bundle: Path) -> None:
    with Session(bundle) as session:
        canvas = 4 * session.prefill_rows
    with Session(bundle, tight(bundle, positions=4 * canvas, canvas=canvas)) as session:
        for _ in range(4):
            keep(session.sequence, canvas)
        assert session.prefix_length == 4 * canvas


def second_turn(session: Session) -> tuple[CoreSampler, list[int]]:
    """A sampler that goes on behind an answer whose end is uncached, and the text before it."""
    model, options = sampler_model(session.bundle), {"eos_token_ids": []}
    answer: list[int] = []
    few: dict[str, Any] = {"max_new_tokens": 32, "steps": 2}
    for event in drive(CoreSampler(model, [7, 8], options=options, **few), session):
        answer += event.ids.tolist() if isinstance(event, Committed) else []
    held = replace(model, encoded=session.pieces, uncached=session.uncached)
    assert len(session.uncached)
    prompt = np.arange(3 * session.prefill_rows) % 40
    return CoreSampler(held, prompt, options=options | {"continue_prefix": True}, **few), [7, 8, *answer]


def text_of(session: Session) -> list[int]:
    return [int(token) for piece in [*session.pieces, session.uncached] for token in piece]


def test_text_that_is_encoded_is_uncached_no_longer(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a member leaves before all of it is encoded, and where a signal follows the encoding."""
    sampler, before = second_turn(session)
    driver = Together(session)
    driver.join(0, sampler, session.sequence)
    while session.prefix_length <= len(before):
        uncached = len(session.uncached)
        driver.step()
        assert text_of(session)[: len(before)] == before and len(session.uncached) <= uncached
    driver.leave(0)
    assert len(text_of(session)) > len(before)

    session.reset()
    sampler, before = second_turn(session)
    prefill = session.prefill

    def stopped(ids: np.ndarray) -> None:
        prefill(ids)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "prefill", stopped)
    with pytest.raises(KeyboardInterrupt):
        list(drive(sampler, session))
    assert not len(session.uncached) and text_of(session)[: len(before)] == before


class StoppedOnce:
    """The core, with a signal behind the next pass."""

    def __init__(self, library: Any) -> None:
        self.library, self.stops = library, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def ek_session_pass(self, *arguments: Any) -> int:
        status: int = self.library.ek_session_pass(*arguments)
        if self.stops:
            self.stops = False
            raise KeyboardInterrupt
        return status


def test_a_signal_behind_a_pass_leaves_no_wrong_pieces(session: Session) -> None:
    text, library = session.sequence, session._library
    text.prefill(np.arange(20))
    session._library = StoppedOnce(library)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        keep(text, 4, at=16)
    assert [len(piece) for piece in text.pieces] == [16, 4]
    text.crop(16)
    session._library = StoppedOnce(library)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        keep(text, 4)
    assert [len(piece) for piece in text.pieces] == [16, 4]


def test_a_signal_at_the_entry_of_a_call_leaves_the_session_closable(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bundle, SessionOptions(sequences=3))

    def stopped() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for _ in range(20):  # more than there is room for, if any stayed
        monkeypatch.setattr(session, "_close_dropped", stopped)
        with pytest.raises(KeyboardInterrupt):
            session.open_sequence()
    session.open_sequence().prefill(CANVAS)
    session.close()
