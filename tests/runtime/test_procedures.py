"""A denoising procedure written in Python runs on every engine, as those of the core do."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_denoiser import FakeDenoiser

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Denoise,
    Denoiser,
    HeadOutput,
    HeadRequest,
    SamplerModel,
    Tell,
    drive,
)
from edgekit.runtime.session import open_session

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def page_procedure() -> tuple[str, str]:
    """The class that docs/python.md shows, and what it does with it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "class LeftToRight" in block)
    made, shown = block.split("with open_session", 1)
    return made, "with open_session" + shown


MADE, SHOWN = page_procedure()
NAMES: dict[str, Any] = {}
exec(MADE, NAMES)
LeftToRight = NAMES["LeftToRight"]


def told(procedure: Any, denoiser: Denoiser) -> list[int]:
    """The tokens that it commits."""
    return [int(t) for event in drive(procedure, denoiser) if isinstance(event, Committed) for t in event.ids]


def by_hand(denoiser: Denoiser, prompt: list[int], length: int, mask: int) -> list[int]:
    ids = np.array(prompt + [mask] * length)
    for at in range(len(prompt), len(ids)):
        ids[at] = denoiser.denoise(ids, HeadRequest(rows=np.array([at]))).argmax[0]
    return ids[len(prompt) :].tolist()


@pytest.mark.parametrize("written", ["native", "onnx"])
def test_a_python_procedure_runs_on_an_engine(shipped_bundle: Callable[..., Path], written: str) -> None:
    with open_session(shipped_bundle("tiny-llada", written)) as session:
        found = told(LeftToRight([5, 9, 2], 6, 3), session)
        assert found == by_hand(session, [5, 9, 2], 6, 3) and len(found) == 6


def test_its_copies_go_on_by_themselves() -> None:
    own, denoiser, copies = LeftToRight([1, 2], 5, 39), FakeDenoiser(40), []
    expected = by_hand(denoiser, [1, 2], 5, 39)
    for event in drive(own, denoiser):
        if isinstance(event, Committed):
            copies.append(own.copy())
    for done, branch in enumerate(copies, 1):
        assert expected[:done] + told(branch, denoiser) == expected


def test_the_readme_runs_it(
    shipped_bundle: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "llada").symlink_to(shipped_bundle("tiny-llada", "native"), target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    exec(SHOWN, dict(NAMES))
    *events, done = capsys.readouterr().out.splitlines()
    assert len(events) == 6 and all(e.startswith("Committed(") for e in events) and done.startswith("Done(")


def waiting() -> tuple[CoreSampler, HeadOutput, FakeDenoiser]:
    """A sampler that waits for an answer, and the answer."""
    section = {"name": "dream", "config": {"mask_token_id": 39, "eos_token_id": 1}}
    sampler, denoiser = CoreSampler(SamplerModel(section, 40, 0), [5, 6], steps=4), FakeDenoiser(40)
    while True:
        ask = sampler.next()
        if isinstance(ask, Denoise):
            return sampler, denoiser.denoise(ask.ids, ask.request), denoiser


def test_an_answer_must_have_the_shapes_that_were_asked_for() -> None:
    sampler, answer, _ = waiting()
    rows = len(answer.argmax)
    for changes, words in (
        (
            {"argmax": answer.argmax[:-1]},
            rf"HeadOutput.argmax is int64\[{rows - 1}\]; the pass was asked for",
        ),
        ({"log_z": answer.log_z[:0]}, rf"HeadOutput.log_z is float32\[0\]; .* numbers \[{rows}\]"),
        ({"entropy": answer.entropy[:, None]}, rf"HeadOutput.entropy is float32\[{rows}, 1\]"),
        ({"argmax": answer.argmax.astype(float)}, "HeadOutput.argmax is float64.* asked for integers"),
        ({"others": ["a"] * rows}, "HeadOutput.others is <U1"),
        ({"argmax": None}, "HeadOutput.argmax is None, but the pass was asked for it"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            sampler.next(replace(answer, **changes))
    with pytest.raises(InvalidRequest, match="the answer is 'x'; pass a HeadOutput"):
        sampler.next("x")  # type: ignore[arg-type]
    assert isinstance(sampler.next(answer), Tell)


def test_samplers_are_copied_and_not_pickled() -> None:
    sampler, answer, denoiser = waiting()
    for make in (copy.copy, copy.deepcopy):
        other = make(sampler)
        asks = [other.next() for _ in range(1)]
        assert isinstance(asks[0], Denoise)
        other.next(denoiser.denoise(asks[0].ids, asks[0].request))
    with pytest.raises(InvalidRequest, match="cannot be pickled; save"):
        pickle.dumps(sampler)
    assert isinstance(sampler.next(answer), Tell)
