"""Runs the denoising loops of the native core with a denoiser written in Python, beside the Python loops."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint8, c_uint64
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from native_testing import library

from edgekit.runtime.sampling import (
    SAMPLERS,
    Committed,
    Done,
    Draft,
    Event,
    HeadOutput,
    HeadRequest,
    PhiloxGumbel,
    PhiloxNoise,
    SamplingError,
)
from edgekit.runtime.sampling.generation_options import generation_options

OK, INVALID_ARGUMENT, READ_FAILED, UNSUPPORTED_BUNDLE, NOT_FINITE, STOPPED = 0, 1, 5, 11, 13, 14
REASONS = ("eos", "length", "cancelled")

Ids, Floats = POINTER(c_int64), POINTER(c_float)


class Request(ctypes.Structure):
    _fields_ = [
        ("rows", Ids), ("row_count", c_int64), ("temperature", c_float), ("gumbel", c_int32),
        ("gumbel_scale", c_float), ("seed", c_uint64), ("draw", c_uint64), ("soft", c_int32),
        ("top_k", c_int64), ("logits", Floats),
    ]  # fmt: skip


class Output(ctypes.Structure):
    _fields_ = [
        ("argmax", Ids), ("argmax_prob", Floats), ("entropy", Floats), ("log_z", Floats), ("sample", Ids),
        ("sample_prob", Floats), ("soft", Floats), ("top_ids", Ids), ("top_z", Floats),
    ]  # fmt: skip


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


PREFIX_LENGTH = ctypes.CFUNCTYPE(c_int64)
RESET = ctypes.CFUNCTYPE(c_int)
PREFILL = ctypes.CFUNCTYPE(c_int, Ids, c_int64)
DENOISE = ctypes.CFUNCTYPE(c_int, Ids, c_int64, POINTER(Request), Floats, POINTER(Output))
PROJECT = ctypes.CFUNCTYPE(c_int, POINTER(Request), POINTER(Output))
ON_EVENT = ctypes.CFUNCTYPE(c_int, POINTER(NativeEvent))


class Calls(ctypes.Structure):
    _fields_ = [
        ("vocabulary", c_int64), ("hidden", c_int64), ("prefix_length", PREFIX_LENGTH), ("reset", RESET),
        ("prefill", PREFILL), ("denoise", DENOISE), ("project", PROJECT),
    ]  # fmt: skip


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
    """The callbacks of one denoiser. An exception in one of them ends the run and is kept in `error`."""

    def __init__(self, denoiser: Any, hidden: int) -> None:
        self.denoiser = denoiser
        self.hidden = hidden
        self.error: Exception | None = None
        self.last: tuple[Any, Any] | None = None
        self.calls = Calls(
            denoiser.vocab_size, hidden, PREFIX_LENGTH(lambda: denoiser.prefix_length),
            RESET(self.guarded(denoiser.reset)), PREFILL(self.guarded(self.prefill)),
            DENOISE(self.guarded(self.denoise)), PROJECT(self.guarded(self.project)),
        )  # fmt: skip

    def guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                function(*arguments)
            except Exception as error:
                self.error = error
                return 1
            return 0

        return call

    def prefill(self, ids: Any, count: int) -> None:
        self.denoiser.prefill(copy_of(ids, count))

    def denoise(self, ids: Any, count: int, request: Any, soft: Any, output: Any) -> None:
        own = copy_of(soft, count * self.hidden).reshape(count, self.hidden) if soft else None
        self.last = copy_of(ids, count), own
        self.fill(output[0], self.denoiser.denoise(*self.arguments(request[0])), request[0])

    def project(self, request: Any, output: Any) -> None:
        if hasattr(self.denoiser, "project"):
            answer = self.denoiser.project(self.request(request[0]))
        else:
            answer = self.denoiser.denoise(*self.arguments(request[0]))
        self.fill(output[0], answer, request[0])

    def arguments(self, request: Request) -> tuple[Any, HeadRequest, Any]:
        assert self.last is not None
        return self.last[0], self.request(request), self.last[1]

    def request(self, request: Request) -> HeadRequest:
        gumbel = PhiloxGumbel(request.seed, request.draw, request.row_count, self.denoiser.vocab_size)
        return HeadRequest(
            rows=copy_of(request.rows, request.row_count) if request.rows else None,
            temperature=request.temperature,
            gumbel=gumbel if request.gumbel else None,
            gumbel_scale=request.gumbel_scale,
            soft=bool(request.soft),
            top_k=request.top_k,
            logits=bool(request.logits),
        )

    def fill(self, output: Output, answer: HeadOutput, request: Request) -> None:
        for name, _ in Output._fields_:
            pointer = getattr(output, name)
            assert bool(pointer) == (getattr(answer, name) is not None), name
            if pointer:
                values = getattr(answer, name).reshape(-1)
                np.ctypeslib.as_array(pointer, values.shape)[:] = values
        if request.logits:
            assert answer.logits is not None
            scores = answer.logits.reshape(-1)
            np.ctypeslib.as_array(request.logits, scores.shape)[:] = scores


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
        ctypes.byref(bridge.calls), section, json.dumps(options).encode(), ids.ctypes.data_as(Ids),
        c_int64(len(ids)), c_uint64(seed), callback, ctypes.byref(state),
    )  # fmt: skip
    if bridge.error is not None and outcome.status != READ_FAILED:
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
        events: Generator[Event, None, None] = sampler.generate(
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
    return OK, as_json(options) | {"lengths": [lengths.new_tokens, lengths.prefix, lengths.canvas]}


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
