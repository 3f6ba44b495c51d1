"""Results of a caller's own engine are looked at: a wrong shape, or nothing, is one line, no wrong token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import make_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.runtime.engines.base import Engine
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.errors import EngineFailed, UnsupportedBundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, open_session


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


def run(session: Session) -> None:
    out = session.denoise(np.arange(7), HeadRequest(soft=session.model.causal_prefix, logits=True))
    session.denoise(np.arange(7), HeadRequest(logits=True), out.soft)


def short(found: np.ndarray) -> np.ndarray:
    return found[..., :-1]


def other(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        for name, made in changes.items():
            setattr(found, name, made(getattr(found, name)))
        return found

    return change


NONE: Callable[[Any], None] = lambda found: None  # noqa: E731


@pytest.mark.parametrize("family", ["gemma", "llada"])
@pytest.mark.parametrize(
    ("function", "change", "words"),
    [
        ("memory", NONE, "memory gives NoneType where EngineBytes"),
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


class NoArguments(Engine):
    name = "none"


class Mlx(Engine):
    name, format = "mine", "mlx"

    def __init__(self, bundle: object) -> None:
        pass


@pytest.mark.parametrize(
    ("engine", "kind", "words"),
    [
        (NoArguments, InvalidRequest, "NoArguments cannot be called with a bundle; give it __init__"),
        (NoArguments(), InvalidRequest, "pass its class, or a function that makes one of a bundle"),
        (lambda bundle: "text", InvalidRequest, "made 'text'; an engine derives from"),
        (Mlx, UnsupportedBundle, "Mlx runs mlx bundles, this one is onnx; export it with --format mlx"),
        (7, InvalidRequest, "the engine is 7; pass its class"),
    ],
)  # fmt: skip
def test_what_makes_no_engine_is_refused(
    llada: Path, engine: Any, kind: type[EdgekitError], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        open_session(llada, engine=engine)
    assert "\n" not in str(refused.value)
