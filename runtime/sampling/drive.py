"""Runs a sampler over a model: does what it asks, and yields what it tells."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, cast

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.asked import (
    asked,
    check_behind,
    check_prefix,
    check_procedure,
    encoded_of,
    is_repeated,
    wrong_ask,
)
from edgekit.runtime.sampling.asks import (
    Answer,
    Ask,
    Crop,
    Denoise,
    Encode,
    Forget,
    Pass,
    PassRows,
    Procedure,
    Project,
    Tell,
)
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.core_abi import SamplerModel
from edgekit.runtime.sampling.events import Done, Event
from edgekit.runtime.sampling.options import settle
from edgekit.runtime.sampling.types import Denoiser, HeadOutput, Ids, Projector

_NO_IDS: Ids = np.empty(0, np.int64)
F = TypeVar("F", bound=Callable[..., Any])


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
    _check_denoiser(denoiser)
    model = SamplerModel(
        section,
        denoiser.vocab_size,
        denoiser.hidden_size,
        projects=isinstance(denoiser, Projector),
        canvas_length=canvas_length,
        uncached=denoiser.uncached,
        prefix_block=getattr(denoiser, "prefix_block", 1),
        shift_logits=getattr(denoiser, "shift_logits", False),
        role_head=getattr(denoiser, "role_head", False),
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

    A sampler that asks for a Project needs a denoiser that is a Projector, one that asks for a Pass or a Crop
    a session or one of its sequences. Raises what the two raise, and
    InvalidRequest where `next` returns what is no request, and for what is no sampler or denoiser.
    """
    check_procedure(sampler)
    _check_denoiser(denoiser)
    try:
        yield from _drive(sampler, denoiser)
    except GeneratorExit:
        raise
    except BaseException:
        if isinstance(sampler, CoreSampler):  # whoever drives it next is asked for what was not done
            sampler.ask_again()
        raise


def _drive(sampler: Procedure, denoiser: Denoiser) -> Generator[Event, None, None]:
    answer: Answer | None = None
    passed: int | None = None  # which pass a Project is of
    run = _run_sampler(sampler, denoiser)
    while True:
        ask = asked(sampler, answer) if run is None else run()
        answer = None
        if isinstance(ask, Denoise) or (isinstance(ask, Project) and isinstance(denoiser, Projector)):
            answer = _answer(ask, sampler, denoiser, passed)
            passed = getattr(denoiser, "last_pass", None)
        elif isinstance(ask, Pass):
            answer = _passes(denoiser, sampler, ask)
        elif isinstance(ask, Crop):
            if denoiser.prefix_length > ask.length:
                _cropped(denoiser, sampler, ask)
        elif isinstance(ask, Tell):
            # Before anybody hears of it: whoever stops here has it in the conversation.
            if ask.kept is not None:
                denoiser.uncached = ask.kept
            yield ask.event
            if isinstance(ask.event, Done):
                return
        elif isinstance(ask, Encode):
            done = encoded_of(ask, denoiser)
            if done == 0 or done < len(ask.ids):
                encode(denoiser, ask.ids[done:])
        elif isinstance(ask, Forget):
            denoiser.reset()
            denoiser.uncached = _NO_IDS
        else:
            wrong_ask(sampler, ask)


def _answer(ask: Denoise | Project, sampler: Procedure, denoiser: Denoiser, passed: int | None) -> HeadOutput:
    check_prefix(ask, denoiser)
    if isinstance(ask, Denoise):
        return denoiser.denoise(ask.ids, ask.request, ask.soft)
    if is_repeated(sampler, passed, getattr(denoiser, "last_pass", None)):
        return denoiser.denoise(ask.ids, ask.request)
    return cast(Projector, denoiser).project(ask.request)


class _Passes(Protocol):
    def run_rows(self, segments: Sequence[PassRows]) -> list[HeadOutput]: ...
    def crop(self, length: int) -> None: ...


def _passes(denoiser: Denoiser, sampler: Procedure, ask: Pass) -> list[HeadOutput]:
    check_prefix(ask, denoiser)
    if not hasattr(denoiser, "run_rows"):
        wrong_denoiser(denoiser, sampler, ask)
    return cast(_Passes, denoiser).run_rows(ask.segments)


def _cropped(denoiser: Denoiser, sampler: Procedure, ask: Crop) -> None:
    if not hasattr(denoiser, "crop"):
        wrong_denoiser(denoiser, sampler, ask)
    cast(_Passes, denoiser).crop(ask.length)


def wrong_denoiser(denoiser: Denoiser, sampler: Procedure, ask: Ask) -> NoReturn:
    """Raises InvalidRequest for a denoiser that cannot do what a sampler asks."""
    raise InvalidRequest(
        f"{type(sampler).__name__} asks for a {type(ask).__name__}, which {type(denoiser).__name__} cannot "
        "do: drive it over a session, or one of its sequences"
    )


def _check_denoiser(given: object) -> None:
    if isinstance(given, type) or not callable(getattr(given, "denoise", None)):
        raise InvalidRequest(f"the denoiser is {shown(given)}; pass a session, or one of its sequences")


_WITHIN_CORE: set[object] = set()


def within_core(method: F) -> F:
    """Marks a method of a class whose `run_sampler` does within the core what it does."""
    _WITHIN_CORE.add(method)
    return method


class _RunsSamplers(Protocol):
    def run_sampler(self, sampler: CoreSampler) -> Ask: ...


def _run_sampler(sampler: Procedure, denoiser: Denoiser) -> Callable[[], Ask] | None:
    """What runs the passes of a sampler of the core within the core, as a session can; what is left is told,
    and text. None for a denoiser whose passes are somebody else's: a subclass, a wrapper, a test.
    """
    owner = getattr(denoiser, "session", denoiser)
    methods = (
        getattr(denoiser, "denoise", None),
        getattr(denoiser, "project", None),
        getattr(owner, "run_pass", None),
    )
    if type(sampler) is CoreSampler and all(getattr(m, "__func__", None) in _WITHIN_CORE for m in methods):
        return partial(cast(_RunsSamplers, denoiser).run_sampler, sampler)
    return None


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
