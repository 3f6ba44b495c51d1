"""Runs the denoising loops of the native core with a denoiser written in Python, beside the Python loops."""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint8, c_uint64
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from native_model import CALLBACK_FAILED, DENOISE, PREFILL, PROJECT, RESET, Model, Output, Request, failed
from native_testing import library

from edgekit.runtime.sampling import (
    SAMPLERS,
    Committed,
    Done,
    Draft,
    Event,
    HeadOutput,
    HeadRequest,
    PhiloxNoise,
    SamplingError,
)
from edgekit.runtime.sampling.core import CoreSampler, SamplerModel, head_request
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.sampling.generation_options import generation_options

OK, INVALID_ARGUMENT, UNSUPPORTED_BUNDLE, NOT_FINITE, STOPPED = 0, 1, 11, 13, 14
REASONS = ("eos", "length", "cancelled")

Ids, Floats = POINTER(c_int64), POINTER(c_float)


class Counters(ctypes.Structure):
    _fields_ = [
        ("denoising_steps", c_int64), ("forwards", c_int64), ("projections", c_int64), ("prefills", c_int64),
        ("committed_tokens", c_int64), ("canvases", c_int64), ("finish_reason", c_int32),
    ]  # fmt: skip


class NativeEvent(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32), ("canvas_index", c_int64), ("step", c_int64), ("start", c_int64),
        ("count", c_int64), ("ids", Ids), ("accepted", POINTER(c_uint8)), ("stats", Counters),
    ]  # fmt: skip


class State(ctypes.Structure):
    _fields_ = [
        ("stats", Counters), ("answer", Ids), ("answer_count", c_int64), ("draft", Ids),
        ("draft_count", c_int64), ("draft_start", c_int64),
    ]  # fmt: skip


ON_EVENT = ctypes.CFUNCTYPE(c_int, POINTER(NativeEvent))


@dataclass
class Outcome:
    """What a run gave: events as plain tuples, the error's status and text, and the last state."""

    events: list[tuple[Any, ...]]
    status: int = OK
    message: str = ""
    stats: dict[str, Any] | None = None
    answer: list[int] | None = None
    draft: list[int] | None = None


def copy_of(pointer: Any, count: int) -> np.ndarray:
    return np.ctypeslib.as_array(pointer, (count,)).copy() if count else np.empty(0, dtype=np.int64)


def counters(stats: Counters) -> dict[str, Any]:
    values = {name: getattr(stats, name) for name, _ in Counters._fields_}
    return values | {"finish_reason": REASONS[stats.finish_reason]}


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


def plain_native(event: NativeEvent) -> tuple[Any, ...]:
    ids = copy_of(event.ids, event.count).tolist()
    if event.kind == 0:
        accepted = copy_of(event.accepted, event.count).tolist()
        return ("draft", event.canvas_index, event.step, event.start, ids, accepted)
    return ("committed", event.canvas_index, ids) if event.kind == 1 else ("done", counters(event.stats))


class Bridge:
    """One denoiser as an ek_model. An exception in a callback ends the run and is kept in `error`."""

    def __init__(self, denoiser: Any, hidden: int) -> None:
        self.denoiser = denoiser
        self.hidden = hidden
        self.error: Exception | None = None
        projects = hasattr(denoiser, "project")
        self.model = Model(
            vocabulary=denoiser.vocab_size, hidden_size=hidden, prefix_length=denoiser.prefix_length,
            reset=RESET(self.guarded(denoiser.reset)), prefill=PREFILL(self.guarded(self.prefill)),
            denoise=DENOISE(self.guarded(self.denoise)),
            project=PROJECT(self.guarded(self.project) if projects else 0),
        )  # fmt: skip

    def guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                function(*arguments[:-1])
            except Exception as error:
                self.error = error
                return failed(library(), str(error).encode())
            return 0

        return call

    def prefill(self, ids: int, count: int) -> None:
        self.denoiser.prefill(array_at(ids, count, np.int64))

    def denoise(self, ids: int, count: int, soft: int | None, request: Any, output: Any) -> None:
        own = array_at(soft, count * self.hidden, np.float32).reshape(count, self.hidden) if soft else None
        wanted = self.request(request[0], output[0])
        self.fill(output[0], self.denoiser.denoise(array_at(ids, count, np.int64), wanted, own))

    def project(self, request: Any, output: Any) -> None:
        self.fill(output[0], self.denoiser.project(self.request(request[0], output[0])))

    def request(self, request: Request, output: Output) -> HeadRequest:
        return head_request(request, bool(output.logits), self.denoiser.vocab_size)

    def fill(self, output: Output, answer: HeadOutput) -> None:
        for name, values in vars(answer).items():
            place = getattr(output, name)
            assert bool(place) == (values is not None), name
            if place:
                kind = np.int64 if name in ("argmax", "sample", "top_ids") else np.float32
                flat = np.ascontiguousarray(values, kind)
                ctypes.memmove(place, flat.ctypes.data, flat.nbytes)


def array_at(address: int | None, count: int, kind: type[np.generic]) -> np.ndarray:
    """A copy of `count` numbers."""
    return np.frombuffer(ctypes.string_at(address, count * kind().nbytes), kind).copy()


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
    """The native loop; the callback asks to stop at event number `stop_after`."""
    core = library()
    core.ekt_sampling_text.restype = c_char_p
    bridge = Bridge(denoiser, hidden)
    outcome = Outcome([])

    def on_event(event: Any) -> int:
        outcome.events.append(plain_native(event[0]))
        return len(outcome.events) != stop_after

    state = State()
    ids = np.array(prompt, dtype=np.int64)
    section = json.dumps({"name": family, "config": {}}).encode()
    callback = ON_EVENT(on_event)
    outcome.status = core.ekt_sampling_generate(
        ctypes.byref(bridge.model), section, json.dumps(options).encode(), ids.ctypes.data_as(Ids),
        c_int64(len(ids)), c_uint64(seed), callback, ctypes.byref(state),
    )  # fmt: skip
    if bridge.error is not None and outcome.status != CALLBACK_FAILED:
        raise bridge.error
    outcome.message = core.ekt_sampling_text().decode()
    outcome.stats = counters(state.stats)
    outcome.answer = copy_of(state.answer, state.answer_count).tolist()
    outcome.draft = copy_of(state.draft, state.draft_count).tolist()
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
