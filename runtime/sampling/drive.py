"""Runs a sampler over a model: does what it asks, and yields what it tells."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.asks import (
    Denoise,
    Encode,
    Forget,
    Procedure,
    Project,
    Tell,
    check_procedure,
    wrong_ask,
)
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.core_abi import SamplerModel
from edgekit.runtime.sampling.events import Done, Event
from edgekit.runtime.sampling.options import settle
from edgekit.runtime.sampling.types import Denoiser, HeadOutput, Ids, Projector

_NO_IDS: Ids = np.empty(0, np.int64)


def generate(
    denoiser: Denoiser,
    section: Mapping[str, Any],
    prompt: Ids | Sequence[int],
    *,
    seed: int = 0,
    max_new_tokens: int | None = None,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
    canvas_length: int | None = None,
) -> Generator[Event, None, None]:
    """Denoising events of a family's sampler; the last is Done. Equal seeds give equal events. Closing it
    ends the generation where it is, see `drive`.

    `section` is "sampler" of a bundle's manifest; `canvas_length` is the model's, None: any. The others are
    those of `CoreSampler`.

    Raises InvalidPrompt and InvalidOption at the first event, later NonFiniteLogits and what the denoiser
    raises.
    """
    model = SamplerModel(
        section,
        denoiser.vocab_size,
        denoiser.hidden_size,
        projects=isinstance(denoiser, Projector),
        canvas_length=canvas_length,
        uncached=denoiser.uncached,
    )
    try:
        model = replace(model, encoded=denoiser.pieces)
    except InvalidRequest:
        # Text that no encoding gives is nothing to a generation that forgets it first.
        wanted = settle(model, max_new_tokens=max_new_tokens, steps=steps, options=options)
        if wanted.values().get("continue_prefix"):
            raise
    sampler = CoreSampler(
        model, prompt, seed=seed, max_new_tokens=max_new_tokens, steps=steps, options=options
    )
    yield from drive(sampler, denoiser)


def drive(sampler: Procedure, denoiser: Denoiser) -> Generator[Event, None, None]:
    """Yields drafts, committed tokens and Done. Closing it ends the generation where it is: the denoiser then
    holds what was encoded and committed until then.

    A sampler that asks for a Project needs a denoiser that is a Projector. Raises what the two raise, and
    InvalidRequest where `next` returns what is no request, and for what is no sampler or denoiser.
    """
    check_procedure(sampler)
    if isinstance(denoiser, type) or not callable(getattr(denoiser, "denoise", None)):
        raise InvalidRequest(f"the denoiser is {shown(denoiser)}; pass a session, or one of its sequences")
    answer: HeadOutput | None = None
    # A session answers a sampler of the core there; what is left for Python is told, and text. Of the type:
    # an object that stands before a session sees every pass.
    run = getattr(type(denoiser), "run_sampler", None) if type(sampler) is CoreSampler else None
    while True:
        ask = sampler.next(answer) if run is None else run(denoiser, sampler)
        answer = None
        if isinstance(ask, Denoise):
            answer = denoiser.denoise(ask.ids, ask.request, ask.soft)
        elif isinstance(ask, Tell) and isinstance(ask.event, Event):
            # Before anybody hears of it: whoever stops here has it in the conversation.
            if ask.kept is not None:
                denoiser.uncached = ask.kept
            yield ask.event
            if isinstance(ask.event, Done):
                return
        elif isinstance(ask, Encode):
            encode(denoiser, ask.ids)
        elif isinstance(ask, Project) and isinstance(denoiser, Projector):
            answer = denoiser.project(ask.request)
        elif isinstance(ask, Forget):
            denoiser.reset()
            denoiser.uncached = _NO_IDS
        else:
            raise wrong_ask(sampler, ask)


def check_behind(uncached: Ids, ids: Ids) -> None:
    """Raises InvalidRequest for ids to be encoded that do not begin with what is uncached."""
    count = min(len(uncached), len(ids))
    if not np.array_equal(uncached[:count], ids[:count]):
        raise InvalidRequest(
            f"the ids to encode must begin with the {len(uncached)} tokens that are uncached, the end of the "
            "last answer: put `uncached` before them, or ask to Forget the text first"
        )


def encode(denoiser: Denoiser, ids: Ids) -> None:
    """Encode ids, which begin with what was uncached. A prefix that is lost with a failure takes that with
    it.
    """
    uncached, start = denoiser.uncached, denoiser.prefix_length
    check_behind(uncached, ids)
    try:
        denoiser.prefill(ids)
    finally:  # a signal may come behind what was encoded
        now = denoiser.prefix_length
        denoiser.uncached = uncached[max(0, now - start) :] if now else _NO_IDS
