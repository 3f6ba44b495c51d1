"""Whole denoising loops of a bundle beside the PyTorch reference that holds the same codes.

`check_steps` runs one loop on the reference's answers and asks the bundle the same at every step: the same
canvas, the same embedding of the step before, a prefix of the same tokens. What it answers is compared number
by number. `check_tokens` lets both run loops of their own and compares what they decide. Rounding may turn a
decision between two that are nearly equal, after which the loops go different ways: the decisions up to there
are compared, and the first that differs must be one of those, see `Difference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from package_bundles import decibels, routing
from reference_denoiser import ReferenceDenoiser

from edgekit.export.reference import ReferenceModel
from edgekit.runtime.sampling import (
    SAMPLERS,
    Committed,
    Denoiser,
    Draft,
    Event,
    HeadOutput,
    HeadRequest,
    PhiloxNoise,
)
from edgekit.runtime.sampling.types import Floats, Ids


@dataclass(frozen=True)
class Loop:
    """One generation: a sampler by its name, its options, a prompt and the seed of its noise."""

    sampler: str
    options: Any
    prompt: Ids
    seed: int

    def run(self, denoiser: Denoiser) -> list[Event]:
        noise = PhiloxNoise(self.seed)
        return list(SAMPLERS[self.sampler].generate(denoiser, self.prompt, self.options, noise))


@dataclass(frozen=True)
class Step:
    """A pass of a loop: what went in and what came out, all scores with it."""

    canvas: Ids
    request: HeadRequest
    output: HeadOutput
    #: Of every requested row, whether no router stood between two experts; see `routing`.
    settled: np.ndarray

    @property
    def noised(self) -> Floats:
        """What the tokens are the argmax of, [R, V]."""
        assert self.output.logits is not None
        if self.request.gumbel is None:
            return self.output.logits
        noise = self.request.gumbel(0, self.output.logits.shape[1])
        return self.output.logits + np.float32(self.request.gumbel_scale) * noise

    @property
    def tokens(self) -> Ids:
        """The token of every row, [R]."""
        return self.output.argmax if self.output.sample is None else self.output.sample


class Recorded:
    """A denoiser that keeps what it was asked and what it answered; `beside` is asked the same each time."""

    def __init__(self, denoiser: Denoiser, beside: Recorded | None = None) -> None:
        self._denoiser, self._beside = denoiser, beside
        self.steps: list[Step] = []

    @property
    def vocab_size(self) -> int:
        return self._denoiser.vocab_size

    @property
    def prefix_length(self) -> int:
        return self._denoiser.prefix_length

    def reset(self) -> None:
        self._denoiser.reset()
        if self._beside is not None:
            self._beside.reset()

    def prefill(self, ids: Ids) -> None:
        self._denoiser.prefill(ids)
        if self._beside is not None:
            self._beside.prefill(ids)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        with routing() as chosen:
            output = self._denoiser.denoise(ids, replace(request, logits=True), soft)
        # An engine's own routers are not watched: those of the reference say which positions are settled.
        settled = np.logical_and.reduce([*chosen, np.ones(len(ids), bool)])
        rows = slice(None) if request.rows is None else request.rows
        self.steps.append(Step(ids.copy(), request, output, settled[rows]))
        if self._beside is not None:
            self._beside.denoise(ids, request, soft)
        return output


@dataclass
class Agreement:
    """How close the answers to the same questions were: the largest difference of any score, in standard
    deviations of the scores, and the fewest decibels of a step's scores.
    """

    passes: int = 0
    largest: float = 0.0
    decibels: float = float("inf")

    def add(self, expected: Step, found: Step) -> None:
        assert expected.output.logits is not None and found.output.logits is not None
        error = np.abs(found.output.logits - expected.output.logits)[expected.settled]
        self.passes += 1
        if error.size:
            self.largest = max(self.largest, float(error.max() / expected.output.logits.std()))
            own = decibels(
                found.output.logits[expected.settled], expected.output.logits[expected.settled]
            )
            self.decibels = min(self.decibels, own)


def steps_of(denoiser: Denoiser, model: ReferenceModel, loop: Loop) -> list[tuple[Step, Step]]:
    """Every step of the reference's loop, with the bundle's answer to the same."""
    found = Recorded(denoiser)
    reference = Recorded(ReferenceDenoiser(model), found)
    loop.run(reference)
    return list(zip(reference.steps, found.steps, strict=True))
