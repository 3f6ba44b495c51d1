"""Runs the samplers of the native core with a denoiser written in Python, beside the Python loops."""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int64, c_uint8
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from native_testing import library

from edgekit.flashload.errors import EdgekitError, UnsupportedBundle
from edgekit.runtime.sampling import (
    SAMPLERS,
    Committed,
    Done,
    Draft,
    Event,
    InvalidOption,
    NonFiniteLogits,
    PhiloxNoise,
    SamplingError,
)
from edgekit.runtime.sampling.core import CoreSampler, SamplerModel
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.sampling.generation_options import generation_options

OK, INVALID_ARGUMENT, UNSUPPORTED_BUNDLE, NOT_FINITE, STOPPED = 0, 1, 11, 13, 14


@dataclass
class Outcome:
    """What a run gave: events as plain tuples, the error's status and text, and the last state."""

    events: list[tuple[Any, ...]]
    status: int = OK
    message: str = ""
    stats: dict[str, Any] | None = None
    answer: list[int] | None = None


def copy_of(pointer: Any, count: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, (count,)).copy() if count else np.empty(0, dtype=np.int64)


def plain(event: Event) -> tuple[Any, ...]:
    """An event of the Python loops as a tuple."""
    if isinstance(event, Draft):
        accepted = [int(flag) for flag in event.accepted]
        return ("draft", event.canvas_index, event.step, event.start, event.ids.tolist(), accepted)
    if isinstance(event, Committed):
        return ("committed", event.canvas_index, event.ids.tolist())
    return ("done", plain_stats(event))


def plain_stats(event: Done) -> dict[str, Any]:
    return {k: v for k, v in asdict(event.stats).items() if k != "engine"}


#: Statuses of edgekit.h by the errors that they are in Python.
STATUSES = {
    InvalidOption: INVALID_ARGUMENT,
    UnsupportedBundle: UNSUPPORTED_BUNDLE,
    NonFiniteLogits: NOT_FINITE,
}


def native(
    family: str,
    denoiser: Any,
    prompt: Sequence[int],
    options: Mapping[str, Any],
    seed: int = 0,
    *,
    hidden: int = 4,
    stop_after: int | None = None,
) -> Outcome:
    """The core's sampler, driven from Python and left after event number `stop_after`."""
    outcome, sampler = Outcome([]), None
    try:
        sampler = CoreSampler(core_model(family, denoiser, hidden), prompt, seed=seed, options=options)
        for event in drive(sampler, denoiser):
            outcome.events.append(plain(event))
            if len(outcome.events) == stop_after:
                break
    except EdgekitError as error:
        outcome.status, outcome.message = STATUSES[type(error)], str(error)
    if sampler is not None:
        outcome.stats = plain_stats(Done(sampler.stats))
    outcome.answer = [token for event in outcome.events if event[0] == "committed" for token in event[2]]
    return outcome


def python(
    family: str,
    denoiser: Any,
    prompt: Sequence[int],
    options: Mapping[str, Any],
    seed: int = 0,
    *,
    stop_after: int | None = None,
) -> Outcome:
    """The Python loop, closed after event number `stop_after`."""
    outcome = Outcome([])
    sampler = SAMPLERS[family]
    try:
        events: Generator[Event, None, None] = importlib.import_module(sampler.module).generate(
            denoiser, list(prompt), sampler.options({}, **options), PhiloxNoise(seed)
        )
        for event in events:
            outcome.events.append(plain(event))
            if len(outcome.events) == stop_after:
                stats = events.gi_frame.f_locals["stats"]
                outcome.stats = plain_stats(Done(stats)) | {"finish_reason": "cancelled"}
                break
    except SamplingError as error:
        outcome.message = str(error)
    outcome.answer = [token for event in outcome.events if event[0] == "committed" for token in event[2]]
    return outcome


def core_model(family: str, denoiser: Any, hidden: int = 4) -> SamplerModel:
    """What the core's sampler knows of a denoiser."""
    return SamplerModel(
        {"name": family, "config": {}},
        denoiser.vocab_size,
        hidden,
        projects=hasattr(denoiser, "project"),
        bundle="a bundle",
        encoded=denoiser.pieces,
        uncached=denoiser.uncached,
    )


def core(
    family: str,
    denoiser: Any,
    prompt: Sequence[int],
    options: Mapping[str, Any],
    seed: int = 0,
    *,
    saved: int | None = None,
) -> Outcome:
    """The core's sampler, driven from Python. After event number `saved` it is saved and loaded again, for
    the denoiser as it then is.
    """
    outcome = Outcome([])
    model = core_model(family, denoiser)
    settled = as_json(SAMPLERS[family].options({}, **options))
    del settled["ignored_keys"]
    sampler = CoreSampler(model, prompt, seed=seed, options=settled)
    while True:
        for event in drive(sampler, denoiser):
            outcome.events.append(plain(event))
            if len(outcome.events) == saved:
                sampler = CoreSampler.load(model, sampler.save())
                break
        else:
            return outcome
        saved = None


def native_options(family: str, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[int, Any]:
    """The status, and the options as a dictionary or the error's text."""
    core = library()
    core.ekt_sampling_text.restype = c_char_p
    status = core.ekt_sampling_options(
        family.encode(), json.dumps(config).encode(), json.dumps(overrides).encode()
    )
    text = core.ekt_sampling_text().decode()
    return status, text if status else json.loads(text)


def python_options(family: str, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> tuple[int, Any]:
    try:
        options = SAMPLERS[family].options(config, **overrides)
    except SamplingError as error:
        return INVALID_ARGUMENT, str(error)
    return OK, as_json(options)


def as_json(options: Any) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(options).items()}


@dataclass(frozen=True)
class Wishes:
    """What a caller of a whole generation wants; None is what the checkpoint says."""

    max_new_tokens: int | None = None
    steps: int | None = None
    options: Mapping[str, Any] | None = None


def native_generation_options(
    family: str, config: Mapping[str, Any], canvas_length: int | None, wishes: Wishes, prompt: int
) -> tuple[int, Any]:
    """The status, and the options and lengths as a dictionary or the error's text."""
    core = library()
    core.ekt_sampling_text.restype = c_char_p
    given = {k: v for k, v in asdict(wishes).items() if v is not None}
    status = core.ekt_generation_options(
        family.encode(), json.dumps(config).encode(), c_int64(canvas_length or 0),
        json.dumps(given).encode(), c_int64(prompt),
    )  # fmt: skip
    text = core.ekt_sampling_text().decode()
    return status, text if status else json.loads(text)


def python_generation_options(
    family: str, config: Mapping[str, Any], canvas_length: int | None, wishes: Wishes, prompt: int
) -> tuple[int, Any]:
    try:
        options = generation_options(family, config, canvas_length, **vars(wishes))
        lengths = options.lengths(prompt)
    except SamplingError as error:
        return INVALID_ARGUMENT, str(error)
    more = {
        "lengths": [lengths.new_tokens, lengths.prefix, lengths.canvas],
        "new_tokens": options.new_tokens_text(prompt),
    }
    return OK, as_json(options) | more


def answer_text(function: str, *arguments: str) -> str:
    """What a function that answers with text says about texts."""
    core = library()
    core.ekt_sampling_text.restype = c_char_p
    status = getattr(core, function)(*(argument.encode() for argument in arguments))
    text = core.ekt_sampling_text().decode()
    assert status == OK, text
    return text


def pointer(values: np.ndarray) -> Any:
    kinds = {"float32": c_float, "float64": c_double, "int64": c_int64, "uint8": c_uint8}
    return values.ctypes.data_as(POINTER(kinds[values.dtype.name]))
