"""Weights that are given back while a session is open: results, prefix and a generation under way stay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import make_bundle
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload import _native
from edgekit.runtime.sampling import Committed, HeadRequest, generate
from edgekit.runtime.session import Session, SessionOptions

CASES: dict[str, Callable[[Path], Path]] = {
    "experts": lambda folder: native_bundle(
        folder, "diffusion_gemma", Scheme("mixed4", 16), num_hidden_layers=3
    ),
    "untied": lambda folder: native_bundle(folder, "llada", Scheme("mixed4", 16), n_layers=3),
    "plugged": lambda folder: make_bundle(folder, "llada", n_layers=3),
}


@pytest.fixture(scope="module", params=CASES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASES[request.param](tmp_path_factory.mktemp("limit"))


def limit(session: Session, count: int) -> None:
    library = _native.functions({"ek_session_limit_resident": (c_void_p, c_uint64)})
    _native.check(library.ek_session_limit_resident(c_void_p(session._handle), c_uint64(count)))


def look(session: Session) -> list[Any]:
    canvas = np.arange(3, 19)
    return [
        a for a in vars(session.denoise(canvas, HeadRequest(top_k=3, logits=True))).values() if a is not None
    ]


@pytest.mark.parametrize("share", [2, 5, 100])
def test_passes_say_the_same(bundle: Path, share: int) -> None:
    with Session(bundle) as session:
        if session.model.causal_prefix:
            session.prefill(np.arange(7, 47))
        before, pinned = look(session), session.plan.pinned_bytes
        limit(session, pinned // share)
        assert session.plan.pinned_bytes == pinned, "not before a pass"
        for _ in range(3):
            for old, new in zip(before, look(session), strict=True):
                np.testing.assert_array_equal(old, new)
        plan, told = session.plan, session.statistics()
        assert plan.pinned_bytes <= pinned // share and told["pinned_bytes"] == plan.pinned_bytes
        assert sum(u.nbytes for u in plan.units if u.pinned) == plan.pinned_bytes
        assert plan.pinned_bytes + plan.streamed_bytes <= plan.weights_bytes
        assert plan.ring_bytes > 0 and told["bytes_read"] > 0
        limit(session, pinned)
        session.idle()
        assert session.plan.pinned_bytes == plan.pinned_bytes, "what was given back does not come again"
        limit(session, 0)
        session.idle()
        assert session.plan.pinned_bytes == 0, "where nothing runs"
        assert session.prefix_length == (40 if session.model.causal_prefix else 0)
        for old, new in zip(before, look(session), strict=True):
            np.testing.assert_array_equal(old, new)


def test_a_generation_under_way_goes_on(bundle: Path) -> None:
    def tokens(options: SessionOptions, limits: list[int]) -> list[int]:
        found = []
        with Session(bundle, options) as session:
            sampler, canvas = session.bundle.manifest.sampler, session.model.canvas_length
            settings = {"seed": 3, "max_new_tokens": 24, "steps": 5}
            for step, event in enumerate(
                generate(session, sampler, [5, 6, 7], canvas_length=canvas, **settings)
            ):
                if step < len(limits):
                    limit(session, limits[step])
                if isinstance(event, Committed):
                    found += event.ids.tolist()
            assert not limits or session.plan.pinned_bytes <= min(limits)
        return found

    with Session(bundle) as session:
        whole = session.plan.pinned_bytes
    expected = tokens(SessionOptions(), [])
    assert expected
    assert tokens(SessionOptions(), [whole, whole // 2, whole // 3, 0]) == expected
    assert tokens(SessionOptions(resident_bytes=whole // 2), [whole // 4, 0]) == expected


def test_bad_arguments() -> None:
    library = _native.functions({"ek_session_limit_resident": (c_void_p, c_uint64)})
    assert library.ek_session_limit_resident(ctypes.c_void_p(), c_uint64(5)) == 1
