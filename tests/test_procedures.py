"""A denoising procedure written in Python runs on every engine, as those of the core do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_denoiser import FakeDenoiser

from edgekit.runtime.sampling import Committed, Denoiser, Done, HeadOutput, HeadRequest, Stats
from edgekit.runtime.sampling.asks import Ask, Denoise, Forget, Tell
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.session import open_session


class LeftToRight:
    """Fills masks from left to right, one in every step."""

    def __init__(self, prompt: list[int], length: int, mask: int) -> None:
        self.ids, self.at, self.stats = [*prompt, *[mask] * length], len(prompt), Stats()
        self.begun = False

    def next(self, answer: HeadOutput | None = None) -> Ask:
        if not self.begun:
            self.begun = True
            return Forget()
        if answer is not None:
            self.ids[self.at] = int(answer.argmax[0])
            self.at += 1
            self.stats.committed_tokens += 1
            return Tell(Committed(0, np.array(self.ids[self.at - 1 : self.at])))
        if self.at == len(self.ids):
            return Tell(Done(self.stats))
        return Denoise(np.array(self.ids), HeadRequest(rows=np.array([self.at])))

    def copy(self) -> LeftToRight:
        return copy.deepcopy(self)


def told(procedure: LeftToRight, denoiser: Denoiser) -> list[int]:
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
