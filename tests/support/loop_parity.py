"""Whole denoising loops of a bundle beside the PyTorch reference that holds the same codes.

`check_steps`: a loop runs on the reference's answers, and the bundle is asked the same in every pass: the
same canvas, the same embedding of the pass before, a prefix of the same tokens. What it answers is compared
number by number. `check_tokens`: both run loops of their own, and what they decide is compared. Rounding may
turn a decision between two that are nearly equal, after which the loops go different ways: the decisions up
to there are compared, and the first that differs must be one of those, see `Difference`. `check_loop` does
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgekit.export.reference import ReferenceModel
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.generation import Generator, Prompt, Settings, sampler_model
from edgekit.runtime.sampling import (
    Committed,
    Denoiser,
    Draft,
    Event,
    HeadOutput,
    HeadRequest,
    generate,
    settle,
)
from edgekit.runtime.sampling.types import Floats, Ids
from edgekit.runtime.session import Session
from support.reference_denoiser import ReferenceDenoiser


@dataclass(frozen=True)
class Loop:
    """One generation: the manifest's sampler, options, a prompt and the seed of its noise."""

    section: Mapping[str, Any]
    options: Mapping[str, Any]
    prompt: Ids
    seed: int

    def run(self, denoiser: Denoiser) -> list[Event]:
        return list(generate(denoiser, self.section, self.prompt, seed=self.seed, options=self.options))


#: Loops for small random models: length of the prompt and options. What they take fits `LENGTHS` of
#: package_bundles: some exactly, others with padding; prefixes grow from one length of functions to the next.
LOOPS: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "diffusion_gemma": [
        (3, {"max_new_tokens": 48, "max_denoising_steps": 3, "entropy_bound": 20.0}),
        (30, {"max_new_tokens": 32, "max_denoising_steps": 2, "entropy_bound": 40.0, "t_max": 1.1}),
    ],
    "llada": [
        (5, {"gen_length": 24, "block_length": 8, "steps": 12}),
        (7, {"gen_length": 12, "block_length": 6, "steps": 6, "temperature": 0.7}),
        (2, {"gen_length": 6, "block_length": 3, "threshold": 0.01}),
    ],
    "llada_moe": [
        (7, {"gen_length": 20, "block_length": 10, "steps": 8}),
        (4, {"gen_length": 8, "block_length": 4, "steps": 4, "temperature": 0.5}),
    ],
    "dream": [
        (5, {"max_new_tokens": 24, "steps": 10, "alg": "entropy"}),
        (2, {"max_new_tokens": 5, "steps": 5, "alg": "maskgit_plus", "temperature": 0.7}),
        (9, {"max_new_tokens": 16, "steps": 5, "alg": "origin", "temperature": 0.4}),
    ],
}  # fmt: skip


#: Decibels of a pass of these loops in float16: three layers and the head. A layer alone has over 60.
FLOAT16 = {"diffusion_gemma": 42, "llada": 52, "llada_moe": 42, "dream": 58}

#: Of generations with the shipped models.
SETTINGS = {
    "tiny-gemma": Settings(max_new_tokens=256, steps=6, seed=1),
    "tiny-llada": Settings(max_new_tokens=32, steps=8, seed=1),
}


def loops(bundle: Bundle) -> Iterator[Loop]:
    """`LOOPS` of a bundle, each with a prompt and noise of its own; nothing ends them early."""
    model, rng = bundle.model, np.random.default_rng(20)
    canvas = {"canvas_length": model.canvas_length} if model.canvas_length else {}
    for seed, (length, own) in enumerate(LOOPS[model.family]):
        wishes = {**own, **canvas, "eos_token_ids": ()}
        options = settle(sampler_model(bundle), options=wishes).values()
        yield Loop(bundle.manifest.sampler, options, rng.integers(0, model.vocab_size, length), seed)


def prompt_loop(generator: Generator, prompt: str, settings: Settings) -> Loop:
    """The loop that a generator runs for a prompt."""
    ids = np.array(generator.encode(Prompt(prompt)))
    options = generator.options(settings).values()
    return Loop(generator.bundle.manifest.sampler, options, ids, settings.seed)


@dataclass(frozen=True)
class Step:
    """A pass of a loop: what went in and what came out, all scores with it."""

    canvas: Ids
    request: HeadRequest
    output: HeadOutput

    @property
    def noised(self) -> Floats:
        """The scores that the tokens are the argmax of, [R, V]."""
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
    def hidden_size(self) -> int:
        return self._denoiser.hidden_size

    @property
    def pieces(self) -> Sequence[Ids]:
        return self._denoiser.pieces

    @property
    def prefix_length(self) -> int:
        return self._denoiser.prefix_length

    @property
    def uncached(self) -> Ids:
        return self._denoiser.uncached

    @uncached.setter
    def uncached(self, ids: Ids) -> None:
        self._denoiser.uncached = ids

    def reset(self) -> None:
        self._denoiser.reset()
        if self._beside is not None:
            self._beside.reset()

    def prefill(self, ids: Ids) -> None:
        self._denoiser.prefill(ids)
        if self._beside is not None:
            self._beside.prefill(ids)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        output = self._denoiser.denoise(ids, replace(request, logits=True), soft)
        self.steps.append(Step(ids.copy(), request, output))
        if self._beside is not None:
            self._beside.denoise(ids, request, soft)
        return output


@dataclass(frozen=True)
class Difference:
    """A decision of one pass that a bundle takes in another way than the reference.

    Tokens: the two scores (with the noise that is added to them) whose order decides are `margin` apart for
    the reference, and in the bundle's pass that distance is `error` off. Positions that are accepted or not:
    `margin` and `error` are of the number by which the sampler decides, see `leads`. It is nearly equal
    because `margin` is not above `error`, and the errors of the whole pass are bounded by its decibels.
    """

    number: int  # of the pass, from 0
    position: int  # on the canvas
    what: str
    margin: float
    error: float
    decibels: float

    def __str__(self) -> str:
        return (
            f"pass {self.number}, position {self.position}: {self.what} by {self.margin:.2g}, "
            f"which is {self.error:.2g} off in a pass of {self.decibels:.1f} dB"
        )


@dataclass(frozen=True)
class Run:
    """The events of a loop, and its passes."""

    events: list[Event]
    steps: list[Step]

    @property
    def drafts(self) -> list[Draft]:
        return [e for e in self.events if isinstance(e, Draft)]

    @property
    def answers(self) -> list[list[int]]:
        """The committed tokens, canvas by canvas."""
        return [e.ids.tolist() for e in self.events if isinstance(e, Committed)]


def run(denoiser: Denoiser, loop: Loop, beside: Recorded | None = None) -> Run:
    recorded = Recorded(denoiser, beside)
    return Run(loop.run(recorded), recorded.steps)


def check_steps(reference: Run, steps: list[Step], least: float | None = None) -> float:
    """Compare all that a head gives in every pass with what the reference gives to the same: to 1e-3, or with
    `least` decibels of the scores. Returns the fewest decibels of a pass.
    """
    fewest = float("inf")
    near = 1e-3 if least is None else 30 * 10 ** (-least / 20)
    for number, (expected, found) in enumerate(zip(reference.steps, steps, strict=True)):
        fewest = min(fewest, check_scores(number, expected, found, least))
        alike = row_decibels(expected, found) > (0 if least is None else least - 10)
        for name in ("others", "entropy", "log_z", "sample_prob", "soft", "top_z"):
            a, b = getattr(expected.output, name), getattr(found.output, name)
            assert (a is None) == (b is None), name
            # Another token's probability is another number.
            same = alike & (name != "sample_prob" or expected.tokens == found.tokens)
            if a is not None and same.any():
                scale = float(np.abs(a).max())
                np.testing.assert_allclose(
                    b[same] / scale, a[same] / scale, rtol=near, atol=near, err_msg=f"pass {number} {name}"
                )
        assert all(d.margin <= d.error for d in differences(number, expected, found))
    return fewest


def check_loop(
    denoiser: Denoiser,
    model: ReferenceModel,
    loop: Loop,
    least: float | None = None,
    of_own: float | None = None,
) -> list[Difference]:
    """Both comparisons: `least` is that of `check_steps`, `of_own` that of `check_tokens`, whose result this
    returns.
    """
    beside = Recorded(denoiser)
    reference = run(ReferenceDenoiser(model), loop, beside)
    check_steps(reference, beside.steps, least)
    return check_tokens(reference, run(denoiser, loop), loop, of_own)


def check_loops(
    session: Session, model: ReferenceModel, least: float | None = None, which: slice = slice(None)
) -> None:
    """`check_loop` for the family's `LOOPS`, of a bundle in float32 or with `least` decibels a pass."""
    for loop in list(loops(session.bundle))[which]:
        check_loop(session, model, loop, least, 60 if least is None else None)


def check_scores(number: int, expected: Step, found: Step, least: float | None) -> float:
    """Compare a pass's scores: all to 1e-3 of their spread, or with `least` decibels in most rows: where a
    router stands between two experts, half precision may choose the other, and that row is another one.
    Returns the decibels of the median row.
    """
    a, b = expected.output.logits, found.output.logits
    assert a is not None and b is not None
    own = float(np.median(row_decibels(expected, found)))
    if least is None:
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-3 * a.std(), err_msg=f"pass {number}")
    else:
        assert own > least, f"pass {number}: {own:.1f} dB"
    return own


def row_decibels(expected: Step, found: Step) -> Floats:
    """Peak signal to noise ratio of each row's scores, over the peak of the pass, [R]."""
    a, b = expected.output.logits, found.output.logits
    assert a is not None and b is not None
    error = np.sqrt(np.mean((b.astype(np.float64) - a) ** 2, axis=1))
    return np.asarray(20 * np.log10(np.abs(a).max() / np.maximum(error, 1e-30)), np.float32)


def differences(number: int, expected: Step, found: Step) -> Iterator[Difference]:
    """Tokens that the bundle chooses in another way, in one pass over the same canvas."""
    a, b = expected.output, found.output
    assert a.logits is not None and b.logits is not None
    pairs = [(a.logits, b.logits, a.argmax, b.argmax)]
    if a.sample is not None and b.sample is not None:
        pairs.append((expected.noised, found.noised, a.sample, b.sample))
    rows = np.arange(len(expected.canvas)) if expected.request.rows is None else expected.request.rows
    for scores, others, tokens, chosen in pairs:
        for row in np.flatnonzero(tokens != chosen):
            first, second = int(tokens[row]), int(chosen[row])
            margin = float(scores[row, first]) - float(scores[row, second])
            error = margin - (float(others[row, first]) - float(others[row, second]))
            what = f"token {first} is before {second}"
            yield Difference(
                number,
                int(rows[row]),
                what,
                margin,
                abs(error),
                float(np.median(row_decibels(expected, found))),
            )


def leads(loop: Loop, step: Step, count: int) -> Floats:
    """By how much each row is on the side of those that are accepted, `count` rows, [R]: of DiffusionGemma in
    nats of entropy that the bound leaves, of the others in confidence.
    """
    output, options = step.output, SimpleNamespace(**loop.options)
    if loop.section["name"] == "diffusion_gemma":
        order = np.argsort(output.entropy, kind="stable")
        before = np.empty(len(order), np.float32)
        before[order] = np.cumsum(output.entropy[order]) - output.entropy[order]
        return np.float32(options.entropy_bound) - before
    if loop.section["name"] == "dream":
        assert options.alg in ("entropy", "maskgit_plus") and options.top_k is options.top_p is None
    else:
        assert options.remasking == "low_confidence"
    if loop.section["name"] == "dream" and options.alg == "entropy":
        confidence = -output.entropy
    else:
        confidence = 1 / (1 + output.others) if output.sample_prob is None else output.sample_prob
    if getattr(options, "threshold", None) is not None:
        return confidence - np.float32(options.threshold)
    ranked = -np.sort(-confidence)
    border = ranked[count - 1 : count + 1].mean() if count < len(ranked) else -np.inf
    return np.asarray(confidence - border, np.float32)


def check_tokens(reference: Run, found: Run, loop: Loop, least: float | None = None) -> list[Difference]:
    """Compare the passes of two loops up to where they part, if they do: scores, if `least` decibels are
    asked for, drafts, and what is committed. Returns the decisions that differ, all of them between what is
    nearly equal; those of the last pass that is compared are why the loops part.

    Errors come back through self-conditioning, and random models make them ten times as large in every pass:
    what each pass adds is for `check_steps`.

    Raises AssertionError, which says what differs.
    """
    turned: list[Difference] = []
    for number, (a, b) in enumerate(zip(reference.steps, found.steps, strict=False)):
        drafts = reference.drafts[number], found.drafts[number]
        before = drafts[0].canvas_index
        if reference.answers[:before] != found.answers[:before] or not np.array_equal(a.canvas, b.canvas):
            break
        if least is not None:
            check_scores(number, a, b, least)
        here = [*differences(number, a, b), *_acceptance(number, loop, a, b, *drafts)]
        assert all(d.margin <= d.error for d in here), "\n".join(map(str, here))
        turned += here
    else:
        number = len(reference.steps)
        if reference.answers == found.answers:
            return turned
    assert turned and turned[-1].number == number - 1, f"the loops part after pass {number - 1} for no reason"
    return turned


def _acceptance(
    number: int, loop: Loop, a: Step, b: Step, expected: Draft, found: Draft
) -> Iterator[Difference]:
    """Positions that one side accepts and the other does not."""
    if np.array_equal(expected.accepted, found.accepted):
        return
    count = int(expected.accepted.sum())
    ours, theirs = leads(loop, a, count), leads(loop, b, count)
    rows = np.arange(len(a.canvas)) if a.request.rows is None else a.request.rows
    first = 0 if loop.section["name"] == "diffusion_gemma" else len(loop.prompt)
    for position in np.flatnonzero(expected.accepted != found.accepted):
        (row,) = np.flatnonzero(rows == first + position - (loop.section["name"] == "dream"))
        if a.tokens[row] != b.tokens[row]:
            continue  # its confidence is that of another token
        margin, error = float(abs(ours[row])), float(abs(ours[row] - theirs[row]))
        what = f"{'' if expected.accepted[position] else 'not '}accepted"
        yield Difference(
            number, int(first + position), what, margin, error, float(np.median(row_decibels(a, b)))
        )
