"""A generation over a model of the caller: event for event that of ek_generate, and what callbacks may do."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from native_bundles import native_bundle
from native_generation import ON_EVENT, Statistics, generate, last_error, model_function, on_model, plain
from native_model import (
    CALLBACK_FAILED,
    PREFILL,
    PROJECT,
    RESET,
    Between,
    Model,
    Output,
    failed,
    forwarding,
)
from native_sampler import INVALID_ARGUMENT, NOT_FINITE, OK, STOPPED, UNSUPPORTED_BUNDLE, Outcome, copy_of
from test_native_generate import CASES, LAYERS, MALFORMED_FILE, PROMPT, SETTINGS, python

from edgekit.export.quantize import Scheme
from edgekit.runtime.native_session import NativeSession
from edgekit.runtime.sampling import HeadOutput, HeadRequest
from edgekit.runtime.session import SessionOptions

#: Settings whose loop asks again about a pass.
PROJECTING = [
    ("llada", {"max_new_tokens": 12, "steps": 3, "options": {
        "block_length": 12, "logits_eos_inf": True, "eos_token_ids": [3],
        "logits_budget_bytes": 4 * 384 * 5}}),
    ("dream", {"seed": 2, "max_new_tokens": 8, "steps": 3, "options": {"temperature": 1.0, "top_p": 0.99}}),
]  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], NativeSession]]:
    """An open session of a family."""
    opened: dict[str, NativeSession] = {}

    def of(family: str) -> NativeSession:
        if family not in opened:
            path = native_bundle(
                tmp_path_factory.mktemp(family), family, Scheme("mixed4", 16), **{LAYERS[family]: 2}
            )
            opened[family] = NativeSession(path, SessionOptions(threads=2))
        return opened[family]

    yield of
    for each in opened.values():
        each.close()


def run(own: NativeSession, between: Between | None = None, **settings: Any) -> Outcome:
    """ek_model_generate over callbacks that forward to the session."""
    model = forwarding(own, between)
    return generate(own, PROMPT, call=on_model(own, model), **settings)


@pytest.mark.parametrize(("family", "settings"), CASES + PROJECTING)
def test_a_generation_is_that_of_the_session_itself(
    session: Callable[[str], NativeSession], family: str, settings: dict[str, Any]
) -> None:
    own = session(family)
    expected = generate(own, PROMPT, **settings)
    found = run(own, **settings)
    assert (found.status, expected.status) == (OK, OK), found.message
    assert found.events == expected.events and len(found.events) > 3
    assert (found.stats, found.answer) == (expected.stats, expected.answer)
    if (family, settings) in PROJECTING:
        assert expected.stats is not None and expected.stats["projections"] > 0


@pytest.mark.parametrize("family", SETTINGS)
def test_a_stop_is_at_the_event_that_asked_for_it(
    session: Callable[[str], NativeSession], family: str
) -> None:
    own, settings = session(family), SETTINGS[family][1]
    for stop in (1, 4):
        expected = generate(own, PROMPT, stop_after=stop, **settings)
        found = run(own, stop_after=stop, **settings)
        assert found == expected and found.status == STOPPED and len(found.events) == stop


def test_a_prefix_can_be_continued(session: Callable[[str], NativeSession]) -> None:
    own, turns = session("diffusion_gemma"), []
    settings: dict[str, Any] = {"max_new_tokens": 20, "options": {"continue_prefix": True, "max_length": 60}}
    for way in (generate, lambda own, ids, **rest: run(own, **rest)):
        own.reset()
        own.prefill(np.arange(29))
        turns.append(way(own, PROMPT, steps=2, **settings))
    assert turns[0] == turns[1] and turns[0].status == OK
    assert own.prefix_length > 30
    too_long = run(own, max_new_tokens=256, options={"continue_prefix": True, "max_length": 30})
    assert too_long.status == INVALID_ARGUMENT and "max_length is 30" in too_long.message


class Repeating:
    """The session as a denoiser without `project`, and without soft embeddings where `soft` is false."""

    def __init__(self, session: NativeSession, soft: bool = True) -> None:
        self.session, self.soft = session, soft
        self.bundle, self.model, self.vocab_size = session.bundle, session.model, session.vocab_size
        self.reset, self.prefill = session.reset, session.prefill

    @property
    def prefix_length(self) -> int:
        return self.session.prefix_length

    def denoise(self, ids: Any, request: HeadRequest, soft: Any = None) -> HeadOutput:
        return self.session.denoise(ids, request, soft if self.soft else None)


@pytest.mark.parametrize(("family", "settings"), PROJECTING)
def test_without_project_a_pass_is_repeated(
    session: Callable[[str], NativeSession], family: str, settings: dict[str, Any]
) -> None:
    own = session(family)
    model = forwarding(own)
    model.project = PROJECT(0)
    expected = python(Repeating(own), PROMPT, **settings)  # type: ignore[arg-type]
    found = generate(own, PROMPT, call=on_model(own, model), **settings)
    assert found.events == expected.events and found.stats == expected.stats
    assert found.stats is not None and found.stats["projections"] == 0
    assert found.stats["forwards"] > found.stats["denoising_steps"]


def test_a_model_without_a_hidden_size_has_no_self_conditioning(
    session: Callable[[str], NativeSession],
) -> None:
    own, settings = session("diffusion_gemma"), SETTINGS["diffusion_gemma"][1]
    seen = []

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name == "denoise":
            _, _, soft, request, output = arguments
            seen.append((soft, request[0].soft, output[0].soft))
        return forward()

    model = forwarding(own, between)
    model.hidden_size = 0
    expected = python(Repeating(own, soft=False), PROMPT, **settings)  # type: ignore[arg-type]
    found = generate(own, PROMPT, call=on_model(own, model), **settings)
    assert found.events == expected.events and set(seen) == {(None, 0, None)}
    assert found.events != generate(own, PROMPT, **settings).events, "soft embeddings matter to this model"


@pytest.mark.parametrize(("family", "name"), [
    ("diffusion_gemma", "reset"), ("diffusion_gemma", "prefill"), ("diffusion_gemma", "denoise"),
    ("llada", "denoise"), ("llada", "project"), ("dream", "denoise"), ("dream", "project"),
])  # fmt: skip
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failure_of_a_callback_ends_the_generation_with_its_text(
    session: Callable[[str], NativeSession], family: str, name: str, nth: int
) -> None:
    own = session(family)
    settings = dict(PROJECTING).get(family) or SETTINGS[family][1]
    full, calls = generate(own, PROMPT, **settings), []

    def between(called: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        calls.append(called)
        if calls.count(name) == nth and called == name:
            return failed(own._library, "weights of Layer\N{EN DASH}3 are gone;\nfetch them".encode())
        failed(own._library, b"a text of a callback that goes on")
        return forward()

    found = run(own, between, **settings)
    if name == "reset" and nth == 2:  # it is called once
        assert found == full and calls.count(name) == 1
        return
    assert found.status == CALLBACK_FAILED
    assert found.message == "weights of Layer\N{EN DASH}3 are gone;\\x0afetch them"
    assert calls[-1] == name, "nothing is called after a failure"
    assert found.events == full.events[: len(found.events)] and len(found.events) < len(full.events)
    assert found.stats is not None and found.stats["finish_reason"] == "none"
    assert found.stats["forwards"] == calls.count("denoise")
    assert run(own, **settings) == full, "nothing is left of it"


@pytest.mark.parametrize("text", [None, b""])
@pytest.mark.parametrize("value", [1, -(2**31), CALLBACK_FAILED])
def test_a_failure_without_a_text_says_who_failed(
    session: Callable[[str], NativeSession], text: bytes | None, value: int
) -> None:
    own = session("dream")

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name == "reset":
            failed(own._library, b"a text of a callback that goes on")
            return forward()
        if value == CALLBACK_FAILED:
            return failed(own._library, text)
        return value

    found = run(own, between, **SETTINGS["dream"][0])
    assert found.status == CALLBACK_FAILED and found.events == []
    assert found.message.startswith(f"ek_model.denoise returned {value} and gave no reason")


def test_an_error_of_a_session_behind_a_callback_can_be_passed_on(
    session: Callable[[str], NativeSession],
) -> None:
    own = session("llada")

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name == "denoise" and own._library.ek_session_denoise(own._handle, None, 3, None, None, None):
            return failed(own._library, own._library.ek_last_error())
        return forward()

    assert own._library.ek_session_denoise(own._handle, None, 3, None, None, None) == INVALID_ARGUMENT
    expected = last_error(own)
    found = run(own, between, max_new_tokens=4)
    assert (found.status, found.message) == (CALLBACK_FAILED, expected) and expected


ARRAYS = [
    ("diffusion_gemma", {"steps": 3}, "argmax", "token -1"),
    ("diffusion_gemma", {"steps": 3}, "others", "NaN"),
    ("diffusion_gemma", {"steps": 3}, "entropy", "NaN"),
    ("diffusion_gemma", {"steps": 3}, "log_z", "NaN"),
    ("diffusion_gemma", {"steps": 3}, "sample", "token -1"),
    ("diffusion_gemma", {"steps": 3}, "sample_prob", "NaN"),
    ("diffusion_gemma", {"steps": 3}, "soft", "NaN"),
    ("dream", {"options": {"top_p": 0.5}}, "top_ids", "token -1"),
    ("dream", {"options": {"top_p": 0.5}}, "top_z", "NaN"),
    (*PROJECTING[0], "logits", "NaN"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "array", "words"), ARRAYS)
def test_arrays_must_be_filled(
    session: Callable[[str], NativeSession], family: str, settings: dict[str, Any], array: str, words: str
) -> None:
    """All of them: one entry that stays as it was is found."""
    own = session(family)

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name != "denoise":
            return forward()
        place = getattr(arguments[-1][0], array)
        width = 8 if array in ("argmax", "sample", "top_ids") else 4
        before = ctypes.string_at(place, width)
        status = forward()
        ctypes.memmove(place, before, width)
        return status

    found = run(own, between, **settings)
    assert found.status == CALLBACK_FAILED and found.events == []
    assert words in found.message and f"ek_head_output.{array}" in found.message
    assert found.message.startswith("ek_model.denoise")


@pytest.mark.parametrize("token", [384, -2, 2**62])
def test_ids_are_those_of_the_vocabulary(session: Callable[[str], NativeSession], token: int) -> None:
    own = session("dream")
    assert own.vocab_size == 384

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        status = forward()
        if name == "denoise":
            output, request = arguments[-1][0], arguments[-2][0]
            ids = ctypes.cast(output.argmax, ctypes.POINTER(ctypes.c_int64))
            ids[request.row_count - 1] = token
        return status

    found = run(own, between, **SETTINGS["dream"][0])
    assert found.status == CALLBACK_FAILED and f"token {token} in ek_head_output.argmax" in found.message


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(
    session: Callable[[str], NativeSession], family: str, value: float
) -> None:
    own = session(family)

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        status = forward()
        if name == "denoise":
            ctypes.cast(arguments[-1][0].log_z, ctypes.POINTER(ctypes.c_float))[1] = value
            ctypes.cast(arguments[-1][0].argmax, ctypes.POINTER(ctypes.c_int64))[1] = -1
        return status

    found = run(own, between, **SETTINGS[family][0])
    assert found.status == NOT_FINITE and "the scores of 1 of" in found.message


@pytest.mark.parametrize(("family", "settings"), [(f, s) for f, s in CASES + PROJECTING if s])
def test_callbacks_are_given_what_the_header_says(
    session: Callable[[str], NativeSession], family: str, settings: dict[str, Any]
) -> None:
    own = session(family)
    passes: list[int] = []

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name == "reset":
            return forward()
        if name == "prefill":
            assert arguments[1] > 0 and arguments[0]
            return forward()
        request, output = arguments[-2][0], arguments[-1][0]
        if name == "denoise":
            assert arguments[1] > 0
            passes.append(arguments[1])
        assert request.struct_size == ctypes.sizeof(request) and not request.reserved
        assert output.struct_size == ctypes.sizeof(output) and not output.reserved
        if request.rows:
            rows = copy_of(
                ctypes.cast(request.rows, ctypes.POINTER(ctypes.c_int64)), request.row_count
            ).tolist()
            assert rows and min(rows) >= 0 and max(rows) < passes[-1]
        else:
            assert request.row_count == passes[-1]
        assert all((output.argmax, output.others, output.entropy, output.log_z))
        assert bool(request.gumbel) == bool(output.sample) == bool(output.sample_prob)
        assert bool(request.soft) == bool(output.soft)
        assert (request.top_k > 0) == bool(output.top_ids) == bool(output.top_z)
        return forward()

    seen: list[str] = []

    def guarded(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        try:
            return between(name, arguments, forward)
        except Exception as error:
            seen.append(repr(error))
            return 1

    assert run(own, guarded, **settings).status == OK and not seen


def test_noise_of_a_request_makes_its_sample(session: Callable[[str], NativeSession]) -> None:
    """As the header says it: the token with the largest z + gumbel_scale * noise, tile by tile."""
    own, checked = session("dream"), []
    noise = own._library.ek_gumbel_noise
    noise.argtypes = [ctypes.c_uint64] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        status = forward()
        if name == "denoise" and arguments[3][0].gumbel:
            request, count = arguments[3][0], arguments[3][0].row_count
            z = np.empty((count, own.vocab_size), np.float32)
            scores = Output(logits=z.ctypes.data)
            again = type(request).from_buffer_copy(request)
            again.gumbel = 0
            assert not own._library.ek_session_project(own._handle, ctypes.byref(again), ctypes.byref(scores))
            best = np.full(count, -np.inf, np.float32)
            sample = np.zeros(count, np.int64)
            for first in range(0, own.vocab_size, 83):
                tokens = min(83, own.vocab_size - first)
                tile = np.empty((tokens, count), np.float32)
                assert not noise(request.seed, request.draw, first, tokens, count, tile.ctypes.data)
                values = z[:, first : first + tokens] + np.float32(request.gumbel_scale) * tile.T
                better = values.max(1) > best
                sample[better] = first + values.argmax(1)[better]
                best = np.maximum(best, values.max(1))
            found = copy_of(ctypes.cast(arguments[4][0].sample, ctypes.POINTER(ctypes.c_int64)), count)
            checked.append(np.array_equal(found, sample))
        return status

    assert run(own, between, max_new_tokens=9, steps=4, options={"temperature": 0.9}).status == OK
    assert len(checked) == 4 and all(checked)


def test_a_callback_may_run_another_generation(session: Callable[[str], NativeSession]) -> None:
    own, other = session("llada"), session("dream")
    expected, inner = generate(own, PROMPT, max_new_tokens=4), []
    of_other = generate(other, PROMPT, max_new_tokens=3)

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        if name == "denoise":
            inner.append(run(other, max_new_tokens=3))
        return forward()

    assert run(own, between, max_new_tokens=4) == expected
    assert len(inner) == 4 and all(each == of_other for each in inner)


def test_models_generate_on_threads_of_their_own(session: Callable[[str], NativeSession]) -> None:
    expected = {f: generate(session(f), PROMPT, **SETTINGS[f][1]) for f in ("llada", "dream")}
    found: dict[str, list[Any]] = {family: [] for family in expected}

    def work(family: str) -> None:
        caller = threading.get_ident()

        def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
            found[family].append(threading.get_ident() == caller)
            return forward()

        found[family].append(run(session(family), between, **SETTINGS[family][1]))

    threads = [threading.Thread(target=work, args=(family,)) for family in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for family, (*own_thread, outcome) in found.items():
        assert outcome == expected[family] and own_thread and all(own_thread)


#: Members that no model has, and words of the message.
WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("dream", {"reserved": 2}, INVALID_ARGUMENT, "ek_model.reserved is 2; set it to 0"),
    ("dream", {"vocabulary": 0}, INVALID_ARGUMENT, "ek_model.vocabulary is 0; it must be 1..2147483647"),
    ("dream", {"vocabulary": 2**40}, INVALID_ARGUMENT, "ek_model.vocabulary is 1099511627776"),
    ("dream", {"hidden_size": -1}, INVALID_ARGUMENT, "ek_model.hidden_size is -1"),
    ("dream", {"canvas_length": -5}, INVALID_ARGUMENT, "ek_model.canvas_length is -5"),
    ("dream", {"max_positions": -1}, INVALID_ARGUMENT, "ek_model.max_positions is -1"),
    ("dream", {"prefix_length": -1}, INVALID_ARGUMENT, "ek_model.prefix_length is -1"),
    ("dream", {"max_positions": 6}, INVALID_ARGUMENT, "pass the model's 6 positions"),
    ("dream", {"sampler": None}, INVALID_ARGUMENT, "ek_model.sampler is null; give that section of the"),
    ("dream", {"sampler": b"{"}, MALFORMED_FILE, "ek_model.sampler: not valid JSON"),
    ("dream", {"sampler": b"[]"}, MALFORMED_FILE, "ek_model.sampler"),
    ("dream", {"sampler": b'{"config": {}}'}, MALFORMED_FILE, "name"),
    ("dream", {"sampler": b'{"name": "dream"}'}, MALFORMED_FILE, "config"),
    ("dream", {"sampler": b'{"name": "mdlm", "config": {}}'}, UNSUPPORTED_BUNDLE, "family 'mdlm'"),
    ("dream", {"sampler": b'{"name": "llada", "config": {}}'}, INVALID_ARGUMENT, "mask_token_id"),
    ("dream", {"denoise": None}, INVALID_ARGUMENT, "ek_model.denoise is null; give a callback"),
    ("diffusion_gemma", {"reset": None}, INVALID_ARGUMENT, "ek_model.reset is null; give a callback"),
    ("diffusion_gemma", {"prefill": None}, INVALID_ARGUMENT, "ek_model.prefill is null, but the loop of"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "members", "status", "words"), WRONG)
def test_wrong_models_are_refused_before_the_first_pass(
    session: Callable[[str], NativeSession], family: str, members: dict[str, Any], status: int, words: str
) -> None:
    own, calls = session(family), []

    def between(name: str, arguments: tuple[Any, ...], forward: Callable[[], int]) -> int:
        calls.append(name)
        return forward()

    model = forwarding(own, between)
    for name, value in members.items():
        kind = dict(Model._fields_)[name]
        setattr(model, name, kind(0) if value is None and name != "sampler" else value)
    found = generate(own, PROMPT, call=on_model(own, model))
    assert (found.status, found.events) == (status, []), found.message
    assert words in found.message and "\n" not in found.message and set(calls) <= {"reset"}
    assert set((found.stats or {}).values()) == {0, "none"}


def test_a_model_that_keeps_nothing_needs_no_reset(session: Callable[[str], NativeSession]) -> None:
    own = session("llada")
    model = forwarding(own)
    model.reset = RESET(0)
    found = generate(own, PROMPT, call=on_model(own, model), max_new_tokens=4)
    assert found == generate(own, PROMPT, max_new_tokens=4)


def test_nulls_are_refused_or_have_a_meaning(session: Callable[[str], NativeSession]) -> None:
    own = session("dream")
    ids, none = np.array(PROMPT, np.int64), ON_EVENT(0)
    model, statistics = forwarding(own), Statistics(finish_reason=-7, forwards=-7)
    call = model_function(own)
    rest = ids.ctypes.data, len(ids), None, none, None
    assert call(None, *rest, ctypes.byref(statistics)) == INVALID_ARGUMENT
    assert last_error(own) == "the model is null" and set(plain(statistics).values()) == {0, "none"}
    assert call(ctypes.byref(model), None, 3, None, none, None, None) == INVALID_ARGUMENT
    assert "no token ids" in last_error(own)
    assert call(ctypes.byref(model), ids.ctypes.data, -1, None, none, None, None) == INVALID_ARGUMENT
    assert "a prompt of -1 tokens" in last_error(own)
    # 128 tokens and as many steps are what a checkpoint says that says nothing.
    model.sampler = json.dumps({"name": "dream", "config": {"mask_token_id": 3, "steps": 2}}).encode()
    assert call(ctypes.byref(model), *rest, ctypes.byref(statistics)) == OK
    assert statistics.forwards == 2 and statistics.committed_tokens == 128
    assert call(ctypes.byref(model), *rest, None) == OK


def test_structs_of_other_sizes(session: Callable[[str], NativeSession]) -> None:
    own = session("dream")
    settings = dict(PROJECTING)["dream"]
    model = forwarding(own)
    model.struct_size = Model.project.offset
    found = generate(own, PROMPT, call=on_model(own, model), **settings)
    assert found.status == OK and found.stats is not None and found.stats["projections"] == 0
    for wrong, words in ((0, "ek_model: struct_size is 0"), (ctypes.sizeof(Model) + 8, "update the library")):
        model.struct_size = wrong
        found = generate(own, PROMPT, call=on_model(own, model), **settings)
        assert found.status == INVALID_ARGUMENT and words in found.message
    model.struct_size = Model.denoise.offset
    found = generate(own, PROMPT, call=on_model(own, model), **settings)
    assert found.status == INVALID_ARGUMENT and "ek_model.denoise is null" in found.message


def test_the_callbacks_of_a_prefix_come_in_pairs(session: Callable[[str], NativeSession]) -> None:
    own = session("diffusion_gemma")
    model = forwarding(own)
    model.reset, model.prefill = RESET(0), PREFILL(0)
    found = generate(own, PROMPT, call=on_model(own, model))
    assert found.status == INVALID_ARGUMENT and "ek_model.prefill is null" in found.message
