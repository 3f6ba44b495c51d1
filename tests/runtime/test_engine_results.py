"""Results of a caller's own engine are looked at: a wrong shape, or nothing, is one line, no wrong token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import make_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.runtime.engines.base import Engine, EngineBytes, TilePart
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.errors import EngineFailed, UnsupportedBundle
from edgekit.runtime.sampling import HeadOutput, HeadRequest, NonFiniteLogits, PhiloxNoise, generate
from edgekit.runtime.session import Session, SessionOptions, open_session


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With experts and self-conditioning."""
    return make_bundle(
        tmp_path_factory.mktemp("results"), "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2
    )


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("dense"), "llada", Scheme("int8"), n_layers=2)


def changed(function: str, change: Callable[[Any], Any]) -> Callable[[Any], Engine]:
    """An engine as ONNX's, whose function gives what `change` makes of its result."""

    class Changed(OnnxEngine):
        def __init__(self, bundle: Any) -> None:
            super().__init__(bundle.folder, bundle.manifest, 1)

    def call(self: Any, *arguments: Any) -> Any:
        return change(getattr(OnnxEngine, function)(self, *arguments))

    setattr(Changed, function, call)
    return Changed


def run(session: Session) -> list[HeadOutput]:
    if session.model.causal_prefix:
        session.reset()
        session.prefill(np.arange(5))
    noise = PhiloxNoise(3).gumbel(7, session.vocab_size)
    request = HeadRequest(soft=session.model.causal_prefix, logits=True, gumbel=noise)
    out = session.denoise(np.arange(7), request)
    return [out, session.denoise(np.arange(7), HeadRequest(logits=True), out.soft)]


def numbers(answers: list[HeadOutput]) -> list[dict[str, list[Any]]]:
    return [{k: v.tolist() for k, v in vars(each).items() if v is not None} for each in answers]


def short(found: np.ndarray) -> np.ndarray:
    return found[..., :-1]


def other(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        for name, made in changes.items():
            setattr(found, name, made(getattr(found, name)))
        return found

    return change


NONE: Callable[[Any], None] = lambda found: None  # noqa: E731
INF, NAN = np.float32(np.inf), np.float32(np.nan)


@pytest.mark.parametrize("family", ["gemma", "llada"])
@pytest.mark.parametrize(
    ("function", "change", "words"),
    [
        ("memory", NONE, "memory gives NoneType where EngineBytes"),
        *(("memory", lambda found, n=n: EngineBytes(scratch=n), "memory gives scratch as .* where a number")
          for n in (-1, 1.5, "x", None, True, 2**63, 2**64, float("nan"))),
        ("memory", lambda found: EngineBytes(activations="x"), "memory gives activations as 'x' where a"),
        ("memory", lambda found: EngineBytes(head=-2**70), "memory gives head as -1180591620717411303424"),
        ("memory", lambda found: EngineBytes(allowance=[]), "memory gives allowance as .. where a number"),
        ("layers", NONE, "layers gives NoneType where y, and a list of k and v"),
        ("layers", lambda made: (made[0], []), "layers gives k and v of 0 layers where those of 1"),
        ("layers", lambda made: (short(made[0]), made[1]), r"layers gives y as float32\[1, 7, \d+\] where"),
        ("layers", lambda made: (made[0], [(made[1][0][0], None)]), "layers gives v as NoneType where"),
        ("route", NONE, "route gives NoneType where a Routing"),
        ("route", other(x=short), "route gives x as float32"),
        ("route", other(index=lambda i: i.astype(np.float32)), "index as float32.* where integers"),
        ("route", other(index=lambda i: i + 10**6), "the router chose experts from 10000"),
        ("route", other(weight=short), "route gives weight as"),
        ("expert", short, "expert gives y as"),
        ("expert", NONE, "expert gives y as NoneType"),
        ("join", short, "join gives y as"),
        ("self_condition", short, "self_condition gives y as"),
        ("final", NONE, "final gives y as NoneType"),
        ("final", lambda found: found.astype(str), "final gives y as <U"),
        ("head_tile", lambda found: "part", "head_tile gives part where a TilePart"),
        ("head_tile", other(top=short), "head_tile gives max as"),
        ("head_tile", other(arg=lambda a: a + 0.5), "head_tile gives argmax as float64.* where integers"),
        ("head_tile", other(sum_others=lambda a: a - 1e6), "gives -.* as sum_others of a tile where a"),
        ("head_tile", other(sum_others=lambda a: a + INF), "gives inf as sum_others of a tile where a"),
        ("head_tile", other(sum_others=lambda a: np.full(a.shape, 1e300)), "gives inf as sum_others"),
        ("head_tile", other(sum_z_others=lambda a: a * NAN), "gives -?nan as sum_z_others of a tile where a"),
        ("head_tile", other(score=lambda a: a * NAN), "gives -?nan as score of a tile where a number"),
        ("head_tile", other(sample_z=lambda a: a * NAN), "gives -?nan as sample_z of a tile where a number"),
        ("head_tile", other(sample=lambda a: a + 0.5), "head_tile gives sample as float64.* where integers"),
        ("head_logits", short, r"head_logits gives z as float32\[7, \d+\] where \[7, \d+\] is expected"),
        ("head_logits", NONE, "head_logits gives z as NoneType"),
    ],
)  # fmt: skip
def test_wrong_results_are_refused(
    family: str, function: str, change: Any, words: str, request: pytest.FixtureRequest
) -> None:
    experts = function in ("route", "expert", "join", "self_condition")
    if (family == "llada" and experts) or (family == "gemma" and function == "layers"):
        pytest.skip("the model has no such thing")
    bundle = request.getfixturevalue(family)
    with (
        pytest.raises(EngineFailed, match=words) as refused,
        open_session(bundle, engine=changed(function, change)) as session,
    ):
        run(session)
    assert "mend the engine" in str(refused.value) and "\n" not in str(refused.value)


def test_scores_of_too_few_tokens_are_refused_where_statistics_are_made_of_them(llada: Path) -> None:
    class Plain(changed("head_logits", short)):  # type: ignore[misc]
        head_tile = Engine.head_tile

    with open_session(llada, engine=Plain) as session, pytest.raises(EngineFailed, match="Plain.head_logits"):
        session.denoise(np.arange(7), HeadRequest())


def test_scores_that_are_nan_stay_those_of_the_model(llada: Path) -> None:
    """Where the largest is NaN, nothing else is looked at."""

    def broken(found: TilePart) -> TilePart:
        found.top[2], found.sum_others[2], found.sum_z_others[2] = NAN, -5, NAN
        if found.score is not None and found.sample_z is not None:
            found.score[2] = found.sample_z[2] = NAN
        return found

    copied = other(top=np.copy, sum_others=np.copy, sum_z_others=np.copy)
    noisy = other(
        score=lambda a: None if a is None else a.copy(), sample_z=lambda a: a if a is None else a.copy()
    )
    with open_session(llada, engine=changed("head_tile", lambda p: broken(noisy(copied(p))))) as session:
        for answer in run(session):
            assert np.isnan(answer.log_z).tolist() == [row == 2 for row in range(7)]
        with pytest.raises(NonFiniteLogits, match="the scores of 1 of"):
            list(generate(session, session.bundle.manifest.sampler, [3, 4], max_new_tokens=8, steps=1))


def test_tokens_that_are_ruled_out_add_nothing(llada: Path) -> None:
    """An engine without `head_tile`, whose scores are minus infinity for all but a few tokens."""

    def few(z: np.ndarray) -> np.ndarray:
        ruled_out = z.copy()
        ruled_out[:, 3:] = -np.inf
        return ruled_out

    class Few(changed("head_logits", few)):  # type: ignore[misc]
        head_tile = Engine.head_tile

    with open_session(llada, engine=Few) as session:
        out = session.denoise(np.arange(7), HeadRequest(logits=True))
    assert out.logits is not None
    taken = np.isfinite(out.logits)
    assert 3 <= taken[0].sum() < 100 and (taken == taken[0]).all()
    z = out.logits[:, taken[0]].astype(np.float64)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(out.entropy, -(p * np.log(p)).sum(1), rtol=1e-5)


def functions(family: str) -> list[str]:
    common = ["memory", "final", "head_tile", "head_logits"]
    return [*common, *(["layers"] if family == "llada" else ["route", "expert", "join", "self_condition"])]


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("family", ["gemma", "llada"])
def test_what_an_engine_raises_ends_no_loop(family: str, kind: Any, request: pytest.FixtureRequest) -> None:
    """A session in a generator, which these two would end, or make a RuntimeError of."""

    def answers(engine: Any) -> Iterator[HeadOutput]:
        with open_session(request.getfixturevalue(family), engine=engine) as session:
            yield from run(session)

    for function in functions(family):

        def fail(found: Any) -> Any:
            raise kind(7)

        with pytest.raises(EngineFailed if kind in (StopIteration, GeneratorExit) else kind) as raised:
            list(answers(changed(function, fail)))
        if isinstance(raised.value, EngineFailed):
            expected = f"Changed.{function} raised {kind.__name__}, which ends loops; mend the engine"
            assert str(raised.value) == expected


@pytest.mark.parametrize("family", ["gemma", "llada"])
def test_what_an_engine_is_given_cannot_be_changed(family: str, request: pytest.FixtureRequest) -> None:
    """Masks, angles and kept keys are those of later passes, x of other tiles, `phase` of all sessions."""
    tried: dict[str, int] = {}

    def spoil(name: str, given: Any) -> None:
        if isinstance(given, np.ndarray):
            tried[name] = tried.get(name, 0) + 1
            with pytest.raises(ValueError, match="read-only"):
                given += 1
        elif isinstance(given, dict):
            for key, array in given.items():
                spoil(key, array)
        elif isinstance(given, list):
            for each in given:
                spoil(name, each)

    class Spoils(OnnxEngine):
        def __init__(self, bundle: Any) -> None:
            super().__init__(bundle.folder, bundle.manifest, 1)

    def spoiling(function: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            # What experts work on is made for them alone, and `join` has results of `route`.
            for argument in {"expert": (), "join": arguments[1:2]}.get(function, arguments):
                spoil(function, argument)
            return getattr(OnnxEngine, function)(self, *arguments)

        return call

    for function in functions(family)[1:]:
        setattr(Spoils, function, spoiling(function))
    bundle, found = request.getfixturevalue(family), []
    for engine in (None, Spoils):
        with open_session(bundle, SessionOptions(threads=1), engine=engine) as session:
            found.append(numbers(run(session)))
    assert found[0] == found[1]
    inputs = {"x", "cos", "sin", "mask", "phase", "prefix_k", "prefix_v"}
    own = {"final", "head_tile", "head_logits"} | ({"self_condition"} if family == "gemma" else set())
    assert tried.keys() >= inputs | own


@pytest.mark.parametrize("found", [None, [1], 5, "text", {5: 1}])
def test_statistics_are_values_by_name(llada: Path, found: Any) -> None:
    with open_session(llada, engine=changed("statistics", lambda _: found)) as session:
        assert session._plug is not None
        with pytest.raises(
            EngineFailed, match="^Changed.statistics gives .* where a dict of values by name is"
        ):
            session._plug.statistics()
    with open_session(llada, engine=changed("statistics", lambda _: {"engine": "mine", "n": 3})) as session:
        assert session._plug is not None
        assert session._plug.statistics() == {"engine": "mine", "n": 3}


def test_statistics_end_no_loop(llada: Path) -> None:
    def stop(found: Any) -> Any:
        raise StopIteration

    with open_session(llada, engine=changed("statistics", stop)) as session:
        assert session._plug is not None
        with pytest.raises(
            EngineFailed, match="^Changed.statistics raised StopIteration, which ends loops; "
        ):
            session._plug.statistics()


class NoArguments(Engine):
    name = "none"


def named(name: Any) -> Any:
    class Named(Engine):
        def __init__(self, bundle: object) -> None:
            if name is not Ellipsis:
                self.name = name

    return Named


class Mlx(Engine):
    name, format = "mine", "mlx"

    def __init__(self, bundle: object) -> None:
        raise AssertionError("it is not made for another format")


class Unknown(Mlx):
    format = "onx"


class NoMethod(Engine):
    name, layers = "mine", 3  # type: ignore[assignment]

    def __init__(self, bundle: object) -> None:
        pass


@pytest.mark.parametrize(
    ("engine", "kind", "words"),
    [
        (NoArguments, InvalidRequest, "NoArguments cannot be called with a bundle; give it __init__"),
        (NoArguments(), InvalidRequest, "pass its class, or a function that makes one of a bundle"),
        (lambda bundle: "text", InvalidRequest, "made 'text'; an engine derives from"),
        (Mlx, UnsupportedBundle, "runs mlx bundles, this one is onnx; .* --target mac --format mlx"),
        (Unknown, InvalidRequest, "Unknown.format: unknown format 'onx'; did you mean onnx.*"),
        (NoMethod, InvalidRequest, "NoMethod.layers is 3; make it a method"),
        (7, InvalidRequest, "the engine is 7; pass its class"),
        *((named(n), InvalidRequest, "Named made an engine whose name is .*; give it one line of text")
          for n in (..., None, 5, b"own", "", "a\0b", "a\nb", "\ud800")),
    ],
)  # fmt: skip
def test_what_makes_no_engine_is_refused(
    llada: Path, engine: Any, kind: type[EdgekitError], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        open_session(llada, engine=engine)
    assert "\n" not in str(refused.value)


def test_scores_that_are_all_minus_infinity_are_not_decided_on(llada: Path) -> None:
    def none(found: TilePart) -> TilePart:
        found.top, found.sum_others = np.full_like(found.top, -INF), np.zeros_like(found.sum_others)
        found.sum_z_others = np.zeros_like(found.sum_z_others)
        return found

    with open_session(llada, engine=changed("head_tile", none)) as session:
        assert all((answer.log_z == -INF).all() for answer in run(session))
        with pytest.raises(NonFiniteLogits, match="the scores of "):
            list(generate(session, session.bundle.manifest.sampler, [3, 4], max_new_tokens=8, steps=1))
