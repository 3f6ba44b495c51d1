"""Sessions, sequences and generations that end, or are taken in turns, while others are under way."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.budgets import tight

from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import (
    CoreSampler,
    Done,
    HeadRequest,
    InvalidOption,
    InvalidPrompt,
    SamplerModel,
    drive,
)
from edgekit.runtime.session import (
    SeenRows,
    Segment,
    Session,
    SessionOptions,
    Together,
    open_session,
)

IDS = np.arange(5)
ALL = HeadRequest()
FEW = Settings(max_new_tokens=8, steps=2)


def limited(bundle: Path, sequences: int) -> SessionOptions:
    """With a budget, under which one sequence more is refused."""
    return tight(bundle, 32 << 20, positions=64, canvas=16, sequences=sequences)


def test_a_sequence_ends_with_its_last_reference_or_its_block(bundle: Path) -> None:
    with Session(bundle, limited(bundle, 2)) as session:
        for _ in range(5):
            with session.open_sequence() as text:
                text.prefill(IDS)
            with pytest.raises(InvalidRequest, match="the sequence is closed"):
                text.prefill(IDS)
            session.open_sequence().prefill(IDS)
        kept = session.open_sequence()
        with pytest.raises(BudgetExceeded, match="open the session with sequences = 3"):
            session.open_sequence()
        kept.prefill(IDS)


def test_sessions_and_sequences_may_be_collected_in_any_order(bundle: Path) -> None:
    for first in (True, False):
        session = Session(bundle, SessionOptions(sequences=3))
        texts: list[Any] = [session.open_sequence(), session.sequence.copy()] if first else []
        circle: list[Any] = [session, *texts]
        circle.append(circle)
        if not first:
            circle.insert(0, session.open_sequence())
        del session, texts, circle
        gc.collect()
    program = (
        "import sys; from edgekit.runtime.session import Session, SessionOptions\n"
        f"s = Session({str(bundle)!r}, SessionOptions(sequences=3)); t = s.open_sequence(); sys.me = [s, t]\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_session_is_not_closed_within_a_call(bundle: Path) -> None:
    with Session(bundle, SessionOptions(sequences=3)) as session:
        text = session.open_sequence()
        entered, refused = threading.Event(), []

        def close() -> None:
            entered.wait()
            with pytest.raises(InvalidRequest, match="the session is in a call, and cannot be closed"):
                session.close()
            text.close()
            refused.append(True)
            leave.set()

        leave = threading.Event()
        worker = threading.Thread(target=close, daemon=True)
        worker.start()

        def call(_: int) -> None:
            entered.set()
            assert leave.wait(60)

        session._within(call)
        worker.join()
        assert refused
        session.denoise(IDS, ALL)
    session.close()
    with pytest.raises(InvalidRequest, match="the session is closed"):
        session.denoise(IDS, ALL)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.run_pass([Segment(s.sequence, IDS, ALL, keep_at=-1)]), "keep_at is -1; use an integer"),
        (lambda s: s.run_pass([Segment(s.sequence, IDS, ALL, seen=[SeenRows(-1, 0, 1)])]), "is -1; use"),
        (lambda s: s.run_pass([Segment(s.sequence, IDS, ALL, seen=[(0, 0, 1)])]), "pass SeenRows"),
        (lambda s: s.run_pass(Segment(s.sequence, IDS, ALL)), "pass a list of Segment"),
        (lambda s: s.run_pass([IDS]), "pass a Segment of a Sequence"),
        (lambda s: s.run_pass([Segment(s.sequence, IDS, {"rows": 1})]), "pass a HeadRequest"),
        (lambda s: s.sequence.crop(2**64), "the length to crop to is 18446744073709551616; use an integer"),
        (lambda s: s.sequence.crop(1.5), "the length to crop to is 1.5; use an integer"),
        (lambda s: s.prefill([1.5, 2.0]), "token ids holds float64 values; pass integers"),
        (lambda s: s.prefill([[1, 2]]), r"token ids has shape \(1, 2\)"),
        (lambda s: s.denoise([[1], [2, 3]], ALL), "pass one flat list of integers"),
        (lambda s: s.denoise([2**70], ALL), "which has more than 64 bits"),
        (lambda s: s.denoise(IDS, HeadRequest(rows=np.zeros((1, 1), np.int64))), "rows has shape"),
        (lambda s: s.denoise(IDS, HeadRequest(rows=np.array([0.5]))), "rows holds float64"),
        (lambda s: s.denoise(IDS, HeadRequest(top_k=10**6)), "top_k is 1000000; the model has"),
        (lambda s: s.denoise(IDS, HeadRequest(temperature="hot")), "temperature is 'hot'; use a number"),
        (lambda s: s.denoise(IDS, HeadRequest(temperature=True)), "temperature is True; use a number"),
        (lambda s: s.denoise(IDS, HeadRequest(temperature=10**400)), "temperature is 1000.*; use a number"),
        (lambda s: s.denoise(IDS, HeadRequest(gumbel_scale=10**400)), "gumbel_scale is 1000.*; use a number"),
        (lambda s: s.denoise(IDS, HeadRequest(gumbel_scale=np.inf)), "gumbel_scale inf is not a number at"),
        (lambda s: s.denoise(IDS, HeadRequest(gumbel_scale=-1)), "gumbel_scale -1.0 is not a number at"),
        (lambda s: s.denoise(IDS, HeadRequest(soft="yes")), "soft is 'yes'; use True or False"),
        (lambda s: s.denoise(IDS, HeadRequest(logits=1)), "logits is 1; use True or False"),
        (lambda s: s.denoise([2**63, -1], ALL), "holds 9223372036854775808 at place 0, which has more"),
        (lambda s: s.prefill([10**5000]), "holds a value of type int at place 0, which has more than 64"),
        (lambda s: s.denoise(IDS, HeadRequest(temperature=1e-45)), "temperature .* it must be"),
        (lambda s: s.denoise(IDS, ALL, np.full((5, s.hidden_size), np.nan)), "what is not finite"),
        (lambda s: open_session(None), "the bundle is None; pass its folder"),
        (lambda s: Session(5), "the bundle is 5; pass its folder"),
        (lambda s: Generator(None), "the bundle is None; pass its folder"),
        (lambda s: Generator(b"folder"), "the bundle is b'folder'; pass its folder"),
        (lambda s: Generator(["folder"]), "the bundle is .'folder'.; pass its folder"),
        (lambda s: CoreSampler.load(SamplerModel({"name": "llada"}, 9, 9), "text"), "not 'text'"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_in_a_line(
    session: Session, call: Callable[[Session], object], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        call(session)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_bytes": -1}, "memory_bytes is -1; use at least 1"),
        ({"memory_bytes": 0}, "memory_bytes is 0; use at least 1"),
        ({"memory_bytes": "1GB"}, "memory_bytes is '1GB'; use a number of bytes"),
        ({"resident_bytes": -5}, "resident_bytes is -5; use at least 0"),
        ({"positions": "x"}, "positions is 'x'; use an integer"),
        ({"canvas": 0}, "canvas is 0; use an integer"),
        ({"sequences": 1.5}, "sequences is 1.5; use an integer"),
    ],
)
def test_session_options_are_looked_at(bundle: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        SessionOptions(**options)
    if next(iter(options)) in ("memory_bytes", "resident_bytes"):
        with pytest.raises(InvalidOption, match=words):
            Generator(bundle, **options)


def test_the_own_sequence_of_another_session_is_refused(session: Session, bundle: Path) -> None:
    with Session(bundle) as other, pytest.raises(InvalidRequest, match="belongs to another session"):
        session.run_pass([Segment(other.sequence, IDS, ALL)])


class Strange:
    """A procedure that returns, or raises, what it is given."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def next(self, answer: object = None) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what

    def copy(self) -> Strange:
        return self


def test_a_procedure_that_asks_nonsense_is_told_so(session: Session) -> None:
    with pytest.raises(InvalidRequest, match=r"Strange\.next returned None; it must return one of Forget"):
        list(drive(Strange(None), session))
    together = Together(session)
    together.join("a", Strange("what"), session.open_sequence())
    ((key, error),) = together.step()
    assert key == "a" and "Strange.next returned 'what'" in str(error)


def sampler(session: Session, seed: int = 0) -> CoreSampler:
    section = session.bundle.manifest.sampler
    model = SamplerModel(
        section, session.vocab_size, session.hidden_size, canvas_length=session.model.canvas_length
    )
    return CoreSampler(model, [3, 4, 5], seed=seed, max_new_tokens=8, steps=3)


def members(session: Session) -> Together:
    together = Together(session)
    for seed in range(2):
        together.join(seed, sampler(session, seed), session.open_sequence())
    return together


def names(told: list[tuple[Any, Any]]) -> list[tuple[Any, str]]:
    return [(key, type(event).__name__) for key, event in told]


def test_nothing_that_was_told_is_lost(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a member that raises what it may not, or a pass that fails once, or is interrupted."""
    together, expected = members(session), []
    while len(together):
        expected += names(together.step())

    together, found = members(session), []
    together.join("x", Strange(ZeroDivisionError("mine")), session.open_sequence())
    while len(together):
        found += names(together.step())
    assert [each for each in found if each[0] != "x"] == expected
    assert [each for each in found if each[0] == "x"] == [("x", "ZeroDivisionError")]

    run_pass, faults = session.run_pass, iter([None, OSError("once"), None, KeyboardInterrupt()])

    def failing(segments: Any) -> Any:
        fault = next(faults, None)
        if fault is not None:
            raise fault
        return run_pass(segments)

    monkeypatch.setattr(session, "run_pass", failing)
    together, found, raised = members(session), [], []
    while len(together):
        try:
            found += names(together.step())
        except (OSError, KeyboardInterrupt) as error:
            raised.append(type(error))
    assert found == expected and raised == [OSError, KeyboardInterrupt]


def test_a_generation_ends_when_another_begins(bundle: Path) -> None:
    with Generator(bundle) as generator:
        alone = [type(event).__name__ for event in generator.generate([3, 4], FEW)]
        older = generator.generate([5, 6], FEW)
        next(older)
        newer = generator.generate([3, 4], FEW)
        found = [next(newer)]
        with pytest.raises(InvalidRequest, match="this generation has ended: .* has begun another one"):
            next(older)
        assert [type(event).__name__ for event in [*found, *newer]] == alone
        many = generator.generate_many([[3], [4], [5]], FEW, at_once=3)
        next(many)
        last = generator.generate_many([[3], [4], [5]], FEW, at_once=3)
        next(last)
        with pytest.raises(InvalidRequest, match="this generation has ended"):
            list(many)
        assert sum(isinstance(event, Done) for _, event in last) == 3
        closed = generator.generate([5, 6], FEW)
        next(closed)
        generator.close()
        with pytest.raises(InvalidRequest, match="its Generator was closed"):
            next(closed)


class Faulty:
    """An array, it says."""

    def __array__(self, *arguments: object) -> np.ndarray:
        raise RuntimeError("a fault of its own")


def test_one_prompt_that_is_refused_leaves_the_others(bundle: Path) -> None:
    prompts: list[Any] = [
        [3, 4], [1] * 5000, None, [10**6], [1.5], [[1], [2, 3]], [2**70], "", " \n", Prompt(""), Prompt(5),
        Prompt("a", system=5), "\ud800", Faulty(), [5],
    ]  # fmt: skip
    wrong = range(1, len(prompts) - 1)
    with Generator(bundle) as generator:
        told: dict[int, list[Any]] = {}
        for number, event in generator.generate_many(prompts, FEW):
            told.setdefault(number, []).append(event)
        assert [n for n in sorted(told) if isinstance(told[n][-1], EdgekitError)] == list(wrong)
        assert all(len(told[n]) == 1 and "\n" not in str(told[n][0]) for n in wrong)
        for number in wrong:
            with pytest.raises(type(told[number][0])) as alone:
                list(generator.generate(prompts[number], FEW))
            assert str(alone.value) == str(told[number][0])
        assert all(isinstance(told[n][-1], Done) for n in (0, len(prompts) - 1))
        for given in (5, None, [3]):
            with pytest.raises(InvalidPrompt, match="^the prompt is .*; give text, or a Prompt$"):
                generator.encode(given)  # type: ignore[arg-type]
        assert generator.encode("a") == generator.encode(Prompt("a"))
        for none in ("words", b"ab", {"a": [3]}, Prompt("a"), 5):
            with pytest.raises(InvalidPrompt, match="^the prompts are .*; pass a list of them$"):
                next(generator.generate_many(none, FEW))  # type: ignore[arg-type]
        endless = ([3] for _ in iter(int, 1))
        with pytest.raises(InvalidPrompt, match=r"^the prompts are <gen.*; pass a list, list\(...\) of it"):
            next(generator.generate_many(endless, FEW))  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="the settings are {}; pass Settings"):
            next(generator.generate_many([[3]], {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        *((each, "the pieces of behind are .*; pass a list of them") for each in ("abc", 5, {1: 2})),
        ([1, 2], "piece 0 of behind is 1; pass one flat list of integers"),
        ([[3], None], "piece 1 of behind is None; pass one flat list of integers"),
        ([[3], [[1], [2, 3]]], r"piece 1 of behind is \[\[1\], \[2, 3\]\]; pass one flat list of integers"),
        ([[[1, 2]]], r"piece 0 of behind has shape \(1, 2\); pass one flat list of integers"),
        *(([each], "piece 0 of behind holds .* values; pass integers") for each in (["a"], [1.5], [True])),
        ([[2**70]], "piece 0 of behind holds 1180591620717411303424 at place 0, which has more than 64 bits"),
        ([[3], []], "piece 1 of behind is empty; leave it out"),
        ([[3], [4, 10**6]], "behind holds token 1000000; the model has .* tokens"),
    ],
)
def test_text_before_a_prompt_that_is_none(bundle: Path, behind: Any, words: str) -> None:
    with Generator(bundle) as generator:
        with pytest.raises(InvalidPrompt, match=f"^{words}$"):
            next(generator.generate([3, 4], FEW, behind))
        expected = list(generator.generate([3, 4], FEW, [[5, 6], [7]]))
        given = [np.array([5, 6], np.uint8), (7,)]
        found = list(generator.generate([3, 4], FEW, given))  # type: ignore[arg-type]
        assert [type(event) for event in found] == [type(event) for event in expected]


@pytest.mark.parametrize("options", [5, "ab", [("steps", 4)], {5: 1}])
def test_settings_without_names_are_refused(bundle: Path, options: Any) -> None:
    settings = Settings(options=options)
    with Generator(bundle) as generator:
        for call in (
            lambda: next(generator.generate([3], settings)),
            lambda: next(generator.generate_many([[3]], settings)),
            lambda: generator.prepare([3], settings),
            lambda: generator.options(settings),
        ):
            with pytest.raises(InvalidOption, match="^the options are .*; pass a dict of values by name$"):
                call()


def test_a_budget_too_small_for_so_many_names_at_once(bundle: Path) -> None:
    with Generator(bundle) as generator:
        list(generator.generate([3] * 500, FEW))
        least = generator.session.plan.least_memory_bytes
    with Generator(bundle, memory_bytes=least + (4 << 20)) as generator:
        many = generator.generate_many([[3] * 500] * 4000, FEW, at_once=4000)
        with pytest.raises(BudgetExceeded, match="take fewer prompts at once: at_once is 4000"):
            next(many)


def test_sequences_that_another_thread_closes_stay_open_for_a_call(bundle: Path) -> None:
    told: set[str] = set()
    with Session(bundle, SessionOptions(sequences=50)) as session:
        handed: list[Any] = []
        over = threading.Event()

        def close() -> None:
            while not over.is_set():
                while handed:
                    handed.pop().close()

        thread = threading.Thread(target=close)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            for _ in range(300):
                text = session.open_sequence()
                handed.append(text)
                try:
                    session.run_pass([Segment(text, IDS, ALL, causal=True, keep_at=0)])
                    told.add("ran")
                except InvalidRequest as error:
                    told.add(str(error))
        finally:
            sys.setswitchinterval(interval)
            over.set()
            thread.join()
    assert told <= {"ran", "the sequence is closed"}


def test_a_generation_that_is_thrown_away_during_a_call_is_quiet(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Generator(bundle) as generator:
        events = generator.generate([3, 4], FEW)
        next(events)
        session = generator.session
        idle = session.idle

        def refused() -> None:
            idle()
            raise InvalidRequest("the session is in another call")

        session.idle = refused  # type: ignore[method-assign]
        del events
        gc.collect()
        session.idle = idle  # type: ignore[method-assign]
    assert "Exception ignored" not in capsys.readouterr().err
