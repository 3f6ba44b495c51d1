"""Engines in Python behind the core's session: that of docs/python.md; what engines may and may not do."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import make_bundle
from support.checkpoints import write_checkpoint
from support.head_join import HeadState
from support.native_testing import library

import edgekit
from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import _native
from edgekit.flashload.errors import BudgetExceeded, InvalidRequest
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.base import Engine, EngineBytes, TilePart, statistics_of
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.generation import Generator, Prompt, Settings
from edgekit.runtime.sampling import Committed, HeadRequest, PhiloxNoise
from edgekit.runtime.session import Session, SessionOptions, open_session

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
PROMPT = Prompt("Copy this: Ada 7 cat")


def page_engine() -> type[Engine]:
    """The class that docs/python.md shows; what it does with it is run on a bundle by the test below."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "class NumpyEngine" in block)
    assert len([line for line in block.split("with open_session")[0].splitlines() if line]) <= 50
    names: dict[str, Any] = {}
    exec(block.split("with open_session")[0], names)
    made: type[Engine] = names["NumpyEngine"]
    return made


def answer(generator: Generator) -> list[int]:
    events = generator.generate(PROMPT, Settings(max_new_tokens=16, steps=8, seed=3))
    return list(itertools.chain(*(e.ids.tolist() for e in events if isinstance(e, Committed))))


@pytest.mark.parametrize("resident", [None, 0], ids=["resident", "streamed"])
def test_the_engine_of_the_page_answers_as_onnx_does(
    shipped_bundle: Callable[..., Path], resident: int | None
) -> None:
    path = shipped_bundle("tiny-llada", "onnx")
    with Generator(path) as generator:
        expected = answer(generator)
    with Generator(path, resident_bytes=resident, engine=page_engine()) as generator:
        assert answer(generator) == expected
        assert bool(generator.bytes_read) == (resident == 0)
        assert generator.stats is not None and generator.stats.engine["engine"] == "numpy"


def test_a_model_is_loaded_with_an_engine_of_ones_own(shipped_bundle: Callable[..., Path]) -> None:
    path, few = shipped_bundle("tiny-llada", "onnx"), {"max_new_tokens": 16, "steps": 8, "seed": 3}
    with edgekit.load(path) as model, edgekit.load(path, engine=page_engine()) as other:
        assert other.generate(PROMPT.text, **few).ids == model.generate(PROMPT.text, **few).ids


# --- weights that are given back ----------------------------------------------------------------------------


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A core that fills weights with 0xFF when they are released."""
    testing = library()
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, testing._name)
    testing.ekt_poison_released_runs(1)
    yield
    testing.ekt_poison_released_runs(0)


@pytest.mark.parametrize("model", SHIPPED_MODELS)
@pytest.mark.parametrize("written", ["native", "onnx", "mlx"])
def test_no_engine_reads_weights_that_were_given_back(
    shipped_bundle: Callable[..., Path], written: str, model: str, request: pytest.FixtureRequest
) -> None:
    path = shipped_bundle(model, written)
    with Generator(path) as generator:
        expected = answer(generator)
    request.getfixturevalue("poisoned")
    with Generator(path, resident_bytes=0) as generator:
        assert answer(generator) == expected and generator.bytes_read > 0


def test_an_engine_that_keeps_weights_is_found_out(
    shipped_bundle: Callable[..., Path], poisoned: None
) -> None:
    """The test above can fail."""

    class Keeps(page_engine()):  # type: ignore[misc]
        def layers(self, program: str, inputs: Any, weights: Any) -> Any:
            self.kept = getattr(self, "kept", weights)
            with np.errstate(all="ignore"):
                return super().layers(program, inputs, self.kept)

    path, found = shipped_bundle("tiny-llada", "onnx"), []
    for resident in (None, 0):
        with Session(path, SessionOptions(resident_bytes=resident), engine=Keeps) as session:
            found.append(session.denoise(np.arange(9), HeadRequest()).entropy)
    assert np.isfinite(found[0]).all() and not np.isfinite(found[1]).any()


# --- what engines raise -------------------------------------------------------------------------------------


class Told(Exception):
    pass


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(
        tmp_path_factory.mktemp("engines"), "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2,
    )  # fmt: skip


def onnx(bundle: Bundle) -> Any:
    return OnnxEngine(bundle.folder, bundle.manifest, 1)


def run(session: Session) -> np.ndarray:
    session.reset()
    session.prefill(np.arange(5))
    request = HeadRequest(soft=True, gumbel=PhiloxNoise(3).gumbel(7, session.vocab_size), logits=True)
    out = session.denoise(np.arange(7), request)
    logits = session.denoise(np.arange(7), HeadRequest(logits=True), out.soft).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("resident", [None, 0], ids=["resident", "streamed"])
@pytest.mark.parametrize(
    "function", ["route", "expert", "join", "self_condition", "final", "head_tile", "head_logits"]
)
@pytest.mark.parametrize("error", [Told("the very one"), KeyboardInterrupt(), SystemExit(3)], ids=type)
def test_what_an_engine_raises_is_raised_again(
    gemma: Path, function: str, error: BaseException, resident: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> Any:
        raise error

    with Session(gemma, SessionOptions(resident_bytes=resident), engine=onnx) as session:
        expected = run(session)
        with monkeypatch.context() as patch:
            patch.setattr(session.engine, function, fails)
            with pytest.raises(type(error)) as raised:
                run(session)
            assert raised.value is error
        np.testing.assert_array_equal(run(session), expected)


def test_an_engines_error_keeps_nothing_of_its_callers(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the collector of cycles."""

    def fails(*args: Any) -> Any:
        raise Told

    def failing(session: Session) -> weakref.ref[Any]:
        held = threading.Event()
        with contextlib.suppress(Told):
            run(session)
        return weakref.ref(held)

    with Session(gemma, engine=onnx) as session:
        monkeypatch.setattr(session.engine, "final", fails)
        gc.collect()
        gc.disable()
        try:
            assert failing(session)() is None
        finally:
            gc.enable()


def test_an_engine_that_cannot_say_what_it_takes_opens_nothing(gemma: Path) -> None:
    class Silent(OnnxEngine):
        def memory(self, *args: Any) -> EngineBytes:
            raise Told

    with pytest.raises(Told):
        Session(gemma, engine=lambda bundle: Silent(bundle.folder, bundle.manifest, 1))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interruption_anywhere_ends_the_call(gemma: Path) -> None:
    """Signals that come while the core computes are raised at the entry of the engine's next function."""
    interrupted = 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with Session(gemma, SessionOptions(resident_bytes=0), engine=onnx) as session:
            expected = run(session)
            for i in range(60):
                try:  # around all: the signal may come while the timer is stopped
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + i))
                    try:
                        run(session)
                        run(session)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
            np.testing.assert_array_equal(run(session), expected)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 5


@pytest.mark.parametrize(
    ("function", "made", "words"),
    [
        ("final", np.zeros((1, 3, 4), np.float32), r"OnnxEngine.final gives y as float32\[1, 3, 4\] where"),
        ("final", None, "OnnxEngine.final gives y as NoneType where"),
        ("head_logits", np.zeros((7, 3), np.float32), r"head_logits gives z as float32\[7, 3\] where"),
        ("expert", np.zeros((0, 0), np.float32), r"expert gives y as float32\[0, 0\] where"),
        (
            "head_tile",
            TilePart(*[np.zeros(7, np.float32), np.full(7, 1 << 40), *[np.zeros(7, np.float32)] * 2]),
            "gives token 1099511627776 as the largest of a tile of",
        ),
    ],
)
def test_what_no_engine_may_give_ends_the_pass(
    gemma: Path, function: str, made: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(gemma, engine=onnx) as session:
        monkeypatch.setattr(session.engine, function, lambda *args: made)
        with pytest.raises((EngineFailed, ValueError), match=words):
            session.denoise(np.arange(7), HeadRequest(logits=True))


def test_an_engine_may_not_call_its_session(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(gemma, engine=onnx) as session:
        monkeypatch.setattr(session.engine, "final", lambda *args: session.reset())
        with pytest.raises(InvalidRequest, match="the session is in another call"):
            session.denoise(np.arange(7), HeadRequest())


def test_two_threads_do_not_share_a_session(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(gemma, engine=onnx) as session:
        real, inside, told = session.engine.final, threading.Event(), []  # type: ignore[union-attr]

        def slow(*args: Any) -> Any:
            inside.set()
            told.append(threading.current_thread())
            other.join()
            return real(*args)

        def intrude() -> None:
            inside.wait()
            try:
                session.denoise(np.arange(3), HeadRequest())
            except InvalidRequest as error:
                told.append(error)

        other = threading.Thread(target=intrude)
        other.start()
        monkeypatch.setattr(session.engine, "final", slow)
        session.denoise(np.arange(7), HeadRequest())
    # The engine is called by the thread that called the session.
    assert told[0] is threading.current_thread() and isinstance(told[1], InvalidRequest)


class Nothing(Engine):
    name = "nothing"


def test_a_model_that_an_engine_does_not_run_is_refused_in_a_line(gemma: Path) -> None:
    with (
        Session(gemma, engine=lambda bundle: Nothing()) as session,
        pytest.raises(EngineFailed, match="the nothing engine does not run self-conditioning; export"),
    ):
        session.denoise(np.arange(7), HeadRequest())


# --- the head's tiles ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of 600 in several tiles."""
    folder = tmp_path_factory.mktemp("tiled")
    write_checkpoint(
        folder / "checkpoint", "llada", d_model=64, n_heads=2, mlp_hidden_size=64, n_layers=1,
        vocab_size=600, embedding_size=600,
    )  # fmt: skip
    options = ExportOptions("onnx", scheme=Scheme("int8"), tile_bytes=5000)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


@pytest.mark.parametrize("seed", range(4))
def test_tiles_are_joined_as_in_the_reference(tiled: Path, seed: int) -> None:
    """Scores of any size, equal ones and infinite ones among them, cut into tiles."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((9, 600)) * 10 ** rng.uniform(-2, 2, (9, 1)), 1).astype(np.float32)
    scores[3, rng.integers(0, 600, 300)] = -np.inf
    scores[5] = 7
    spans: list[tuple[int, int]] = []

    class Scores(Engine):
        name = "scores"

        def layers(self, program: str, inputs: Any, weights: Any) -> Any:
            empty = np.zeros((1, *inputs[0]["prefix_k"].shape[1:2], 9, inputs[0]["prefix_k"].shape[3]), "f4")
            spans.clear()
            return inputs[0]["x"], [(empty, empty)]

        def final(self, x: Any, weights: Any) -> Any:
            return x

        def head_tile(self, x: Any, temperature: float, noise: Any, soft: bool, table: Any) -> TilePart:
            start = spans[-1][1] if spans else 0
            spans.append((start, start + len(table["codes"])))
            return statistics_of(scores[:, slice(*spans[-1])], noise)

        def head_logits(self, x: Any, temperature: float, table: Any) -> Any:
            return scores[:, slice(*spans[-1])]

    draw = PhiloxNoise(seed).gumbel(9, 600)
    request = HeadRequest(gumbel=draw, gumbel_scale=0.5, top_k=11, logits=True)
    with Session(tiled, engine=lambda bundle: Scores()) as session, np.errstate(all="ignore"):
        found = session.denoise(np.arange(9), request)
        expected = HeadState(9, 64, request, 600)
        for start, stop in spans:
            noise = draw(start, stop) * np.float32(0.5)
            expected.add(start, statistics_of(scores[:, start:stop], noise))
            expected.add_logits(start, scores[:, start:stop])
        wanted = expected.result()
    assert len(spans) > 3
    for name in ("argmax", "sample", "top_z", "logits"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    for name in ("others", "entropy", "log_z", "sample_prob"):
        pair = getattr(found, name), getattr(wanted, name)
        np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6, err_msg=name)


# --- memory -------------------------------------------------------------------------------------------------


def test_sessions_share_a_budget(tmp_path: Path) -> None:
    """What one has been promised another does not get, also before it is touched."""
    path = make_bundle(
        tmp_path, "llada", Scheme("int8"), dtype="bfloat16", d_model=512, n_heads=8, mlp_hidden_size=1408,
        n_layers=8, vocab_size=2048,
    )  # fmt: skip
    with Session(path, SessionOptions(positions=0, canvas=512)) as session:
        whole = session.plan.needs + session.plan.footprint_bytes
    budget = whole + (4 << 20)
    with Session(path, SessionOptions(budget, positions=0, canvas=512)) as first:
        promised = first.plan.needs + first.plan.footprint_bytes
        with pytest.raises(BudgetExceeded) as refused:
            Session(path, SessionOptions(budget, positions=0, canvas=512))
        assert refused.value.needed_bytes > promised
        enough = SessionOptions(refused.value.needed_bytes + (4 << 20), positions=0, canvas=512)
        with Session(path, enough) as second:
            assert second.plan.process >= promised - (1 << 20)
            assert second.plan.needs + second.plan.footprint_bytes <= (enough.memory_bytes or 0)
    with Session(path, SessionOptions(budget + (64 << 20), positions=0, canvas=512)) as again:
        assert again.plan.process < promised


def test_engines_are_named_by_their_bundles(gemma: Path) -> None:
    assert isinstance(engines.create(Bundle.open(gemma), 1), OnnxEngine)
    with open_session(gemma) as session:
        assert session.engine is not None and session.engine.name == "onnx"
