"""Samplers over a session, which are its own generations, and what callers of `ek_sampler_*` may pass."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.fake_denoiser import ProjectingDenoiser
from support.native_bundles import native_bundle
from support.native_generation import Options, Statistics, generate
from support.native_sampler import INVALID_ARGUMENT, OK, PROMPT_TOO_LONG, UNSUPPORTED_BUNDLE
from support.sampler_runs import plain
from test_native_generate import CASES, LAYERS, MALFORMED_FILE, PROMPT, SETTINGS
from test_native_samplers import OPTIONS, first_pass, sampler

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.core_structs import HeadOutputStruct
from edgekit.runtime.sampling import Event
from edgekit.runtime.sampling.answers import answer_shapes
from edgekit.runtime.sampling.asks import Denoise, Project
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.core_abi import AskStruct, LengthsStruct, Model, SamplerModel, library
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from edgekit.runtime.session import Session, SessionOptions

INVALID_STATE = 15
FORGET, ENCODE, DENOISE, PROJECT, DRAFT, COMMITTED, DONE = range(7)
#: Settings whose sampler asks again about a pass.
PROJECTING: list[tuple[str, dict[str, Any]]] = [
    ("llada", {"max_new_tokens": 12, "steps": 3, "options": {
        "block_length": 12, "logits_eos_inf": True, "eos_token_ids": [3],
        "logits_budget_bytes": 4 * 384 * 5}}),
    ("dream", {"seed": 2, "max_new_tokens": 8, "steps": 3, "options": {"temperature": 1.0, "top_p": 0.99}}),
]  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Session]]:
    """An open session of a family."""
    opened: dict[str, Session] = {}

    def of(family: str) -> Session:
        if family not in opened:
            path = native_bundle(
                tmp_path_factory.mktemp(family), family, Scheme("mixed4", 16), **{LAYERS[family]: 2}
            )
            opened[family] = Session(path, SessionOptions(threads=2))
        return opened[family]

    yield of
    for each in opened.values():
        each.close()


def facts(own: Session, **changes: Any) -> SamplerModel:
    """What a sampler is told of an open session, and of the text that it holds."""
    given: dict[str, Any] = {
        "section": own.bundle.manifest.sampler, "vocab_size": own.vocab_size, "hidden_size": own.hidden_size,
        "canvas_length": own.model.canvas_length, "max_positions": own.model.max_positions,
        "encoded": own.pieces, "uncached": own.uncached,
    }  # fmt: skip
    return SamplerModel(**(given | changes))


def driven(own: Session, prompt: list[int], **settings: Any) -> Iterator[Event]:
    return drive(CoreSampler(facts(own), prompt, **settings), own)


@pytest.mark.parametrize(("family", "settings"), CASES + PROJECTING)
def test_a_sampler_over_a_session_is_its_generation(
    session: Callable[[str], Session], family: str, settings: dict[str, Any]
) -> None:
    own = session(family)
    expected = generate(own, PROMPT, **settings)
    own.reset()  # what it has kept the session in Python knows nothing of
    assert expected.status == OK and len(expected.events) > 3
    assert [plain(event) for event in driven(own, PROMPT, **settings)] == expected.events
    if (family, settings) in PROJECTING:
        assert expected.stats is not None and expected.stats["projections"] > 0


@pytest.mark.parametrize("stop", [1, 2, 4, 5, 100])
def test_a_conversation_goes_on_where_a_generation_was_left(
    session: Callable[[str], Session], stop: int
) -> None:
    """As that of ek_generate after a stop: with what was committed, encoded and not."""
    own, turns = session("diffusion_gemma"), []
    first: dict[str, Any] = {"steps": 2, "max_new_tokens": 33, "seed": 5}
    second: dict[str, Any] = first | {"options": {"continue_prefix": True}}
    own.reset()
    begun = generate(own, PROMPT, stop_after=stop, **first)
    went_on = generate(own, [4, 9], **second)
    turns.append((begun.events, went_on.events, own.prefix_length))
    own.reset()
    left = [plain(event) for event in itertools.islice(driven(own, PROMPT, **first), stop)]
    gone_on = [plain(event) for event in driven(own, [4, 9], **second)]
    turns.append((left, gone_on, own.prefix_length))
    assert turns[0] == turns[1] and went_on.status == OK
    assert stop < 100 or begun.status == OK


class Watched:
    """A session whose passes are looked at, and which asks for nothing again without `project`."""

    def __init__(self, own: Session, look: Callable[[Ids, HeadRequest, Any], None]) -> None:
        self.own, self.look = own, look

    def __getattr__(self, name: str) -> Any:
        if name == "project":
            raise AttributeError(name)
        return getattr(self.own, name)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        self.look(ids, request, soft)
        return self.own.denoise(ids, request, soft)


@pytest.mark.parametrize(("family", "settings"), PROJECTING)
def test_a_model_that_does_not_project_is_asked_for_the_pass_again(
    session: Callable[[str], Session], family: str, settings: dict[str, Any]
) -> None:
    own, passes = session(family), []
    expected = [plain(event) for event in driven(own, PROMPT, **settings)]
    again = CoreSampler(facts(own, projects=False), PROMPT, **settings)
    watched: Any = Watched(own, lambda *asked: passes.append(asked))
    found = [plain(event) for event in drive(again, watched)]
    assert found[:-1] == expected[:-1]
    stats = again.stats
    assert stats.projections == 0 and stats.forwards == len(passes) > stats.denoising_steps


def test_a_model_without_a_hidden_size_has_no_self_conditioning(
    session: Callable[[str], Session],
) -> None:
    own, seen = session("diffusion_gemma"), []
    settings = SETTINGS["diffusion_gemma"][1]
    plainly = CoreSampler(facts(own, hidden_size=0), PROMPT, **settings)
    watched: Any = Watched(own, lambda ids, request, soft: seen.append((request.soft, soft)))
    found = [plain(event) for event in drive(plainly, watched)]
    assert set(seen) == {(False, None)}
    assert found != [plain(event) for event in driven(own, PROMPT, **settings)], (
        "soft embeddings matter to it"
    )


def ids_at(address: int | None, count: int) -> Ids:
    """A copy."""
    if not address:
        return np.empty(0, np.int64)
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_int64)), (count,)).copy()


@pytest.mark.parametrize(("family", "settings"), CASES + PROJECTING)
def test_asks_hold_what_the_header_says(
    session: Callable[[str], Session], family: str, settings: dict[str, Any]
) -> None:
    own, passes = session(family), 0
    asking, ask = CoreSampler(facts(own), PROMPT, **settings), AskStruct()
    while True:
        asking._call("ek_sampler_next", ctypes.byref(ask))
        request, kind, ids = ask.request, ask.kind, ids_at(ask.ids, ask.count)
        assert ask.struct_size == ctypes.sizeof(ask) and not ask.reserved
        assert request.struct_size == ctypes.sizeof(request) and not request.roles
        assert bool(ask.ids) == (ask.count > 0) == (kind not in (FORGET, DONE))
        assert bool(ask.accepted) == (kind == DRAFT) and (not ask.soft or kind == DENOISE)
        assert bool(ask.kept) == (ask.kept_count > 0) and (not ask.kept or kind in (COMMITTED, DONE))
        if kind == DONE:
            break
        if kind == FORGET:
            own.reset()
        if kind == ENCODE:
            own.prefill(ids)
        if kind not in (DENOISE, PROJECT):
            assert request.row_count == 0 and not request.rows
            continue
        passes += 1
        rows = ids_at(request.rows, request.row_count)
        assert request.row_count == (rows.size or ask.count)
        assert not request.rows or (rows.size and rows.min() >= 0 and rows.max() < ask.count)
        assert 0 <= request.top_k <= own.vocab_size and request.temperature > 0
        # The Python class makes the same of it.
        again = asking.copy().next()
        assert isinstance(again, Denoise if kind == DENOISE else Project) and np.array_equal(again.ids, ids)
        wanted = again.request
        assert np.array_equal(rows if request.rows else [], [] if wanted.rows is None else wanted.rows)
        asking._asked = [answer_shapes(wanted, request.row_count, own.vocab_size, own.hidden_size)]
        if isinstance(again, Denoise):
            asking._answer(own.denoise(ids, wanted, again.soft))
        else:
            asking._answer(own.project(wanted))
    assert passes > 1


@pytest.mark.parametrize("family", OPTIONS)
def test_samplers_are_independent_of_each_other(family: str) -> None:
    """Those of other threads, too."""

    def run() -> list[Any]:
        denoiser = ProjectingDenoiser(40)
        return [plain(event) for event in drive(sampler(family, denoiser), denoiser)]

    expected, found = run(), []
    threads = [threading.Thread(target=lambda: found.append(run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# --- what callers pass ------------------------------------------------------------------------------------


class Call:
    """ek_sampler_create with a model that fits, but for what a test changes."""

    def __init__(self, **changes: Any) -> None:
        self.library, self.handle = library(), ctypes.c_void_p(1)
        section = b'{"name": "dream", "config": {"mask_token_id": 39, "max_new_tokens": 9, "steps": 5}}'
        given: dict[str, Any] = {"vocabulary": 40, "hidden_size": 4, "projects": 1, "sampler": section}
        self.model = Model(**(given | changes))

    def create(self, prompt: list[int] | None = None, count: int | None = None, options: Any = None) -> int:
        ids = np.array([3, 1] if prompt is None else prompt, np.int64)
        own = ctypes.byref(self.model), ids.ctypes.data, ids.size if count is None else count, options
        return int(self.library.ek_sampler_create(*own, ctypes.byref(self.handle)))

    @property
    def message(self) -> str:
        text: bytes = self.library.ek_last_error()
        return text.decode()

    def close(self) -> None:
        self.library.ek_sampler_close(self.handle)


#: Members that no model has, and words of the message.
WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"vocabulary": 0}, INVALID_ARGUMENT, "ek_sampler_model.vocabulary is 0; it must be 1..2147483647"),
    ({"vocabulary": 2**40}, INVALID_ARGUMENT, "ek_sampler_model.vocabulary is 1099511627776"),
    ({"hidden_size": -1}, INVALID_ARGUMENT, "ek_sampler_model.hidden_size is -1"),
    ({"hidden_size": 2**40}, INVALID_ARGUMENT, "ek_sampler_model.hidden_size is 1099511627776"),
    ({"canvas_length": -5}, INVALID_ARGUMENT, "ek_sampler_model.canvas_length is -5"),
    ({"max_positions": -1}, INVALID_ARGUMENT, "ek_sampler_model.max_positions is -1"),
    ({"max_positions": 6}, PROMPT_TOO_LONG, "pass the model's 6 positions"),
    ({"sampler": None}, INVALID_ARGUMENT, "ek_sampler_model.sampler is null; give that section of the"),
    ({"sampler": b"{"}, MALFORMED_FILE, "ek_sampler_model.sampler: not valid JSON"),
    ({"sampler": b"[]"}, MALFORMED_FILE, "ek_sampler_model.sampler"),
    ({"sampler": b'{"config": {}}'}, MALFORMED_FILE, "name"),
    ({"sampler": b'{"name": "dream"}'}, MALFORMED_FILE, "config"),
    ({"sampler": b'{"name": "mdlm", "config": {}}'}, UNSUPPORTED_BUNDLE, "family 'mdlm'"),
    ({"sampler": b'{"name": "llada", "config": {}}'}, INVALID_ARGUMENT, "mask_token_id"),
    ({"encoded_pieces": -1}, INVALID_ARGUMENT, "encoded_pieces is -1"),
    ({"encoded_pieces": 1}, INVALID_ARGUMENT, "encoded_pieces is 1, the array null"),
    ({"uncached_count": 2}, INVALID_ARGUMENT, "uncached_count is 2, the array null"),
    ({"uncached_count": 2**40}, INVALID_ARGUMENT, "uncached_count is 1099511627776"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "status", "words"), WRONG)
def test_facts_that_no_model_has_are_refused(members: dict[str, Any], status: int, words: str) -> None:
    call = Call(**members)
    assert call.create() == status and not call.handle
    assert words in call.message and "\n" not in call.message


@pytest.mark.parametrize(("encoded", "lengths", "words"), [
    ([1, -2], [2], "encoded holds token -2"), ([1, 40], [1, 1], "encoded holds token 40"),
    ([1], [0], "piece_lengths is 0"), ([1], [-1], "piece_lengths is -1"), ([1], [2**40], "piece_lengths is"),
])  # fmt: skip
def test_text_that_no_model_holds_is_refused(encoded: list[int], lengths: list[int], words: str) -> None:
    ids, pieces = np.array(encoded, np.int64), np.array(lengths, np.int64)
    held = {"encoded": ids.ctypes.data, "piece_lengths": pieces.ctypes.data, "encoded_pieces": len(pieces)}
    call = Call(**held)
    assert call.create() == INVALID_ARGUMENT and words in call.message
    left = np.array([3, 40], np.int64)
    call = Call(uncached=left.ctypes.data, uncached_count=2)
    assert call.create() == INVALID_ARGUMENT and "uncached holds token 40" in call.message


def test_nulls_are_refused_or_have_a_meaning() -> None:
    call = Call()
    library, ids = call.library, np.array([3, 1], np.int64)
    model, out = ctypes.byref(call.model), ctypes.byref(call.handle)
    for arguments, words in (
        ((None, ids.ctypes.data, 2, None, out), "the model is null"),
        ((model, None, 2, None, out), "no token ids"),
        ((model, ids.ctypes.data, -1, None, out), "a prompt of -1 tokens"),
        ((model, ids.ctypes.data, 2**62, None, out), "a prompt of"),
        ((model, ids.ctypes.data, 2, None, None), "no place for the sampler"),
    ):
        assert library.ek_sampler_create(*arguments) == INVALID_ARGUMENT and words in call.message
    for name in ("get_lengths", "get_statistics", "next", "answer", "copy", "restore", "save"):
        function = getattr(library, f"ek_sampler_{name}")
        assert function(*[0 if kind is ctypes.c_uint64 else None for kind in function.argtypes]) != OK
        assert "the sampler is null" in call.message or "no place" in call.message
    library.ek_sampler_close(None)
    assert call.create() == OK
    for name in ("get_lengths", "get_statistics", "next"):
        assert getattr(library, f"ek_sampler_{name}")(call.handle, None) == INVALID_ARGUMENT
        assert "is null" in call.message
    ask = AskStruct()
    assert library.ek_sampler_next(call.handle, ctypes.byref(ask)) == OK and ask.kind == 0, "nothing was lost"
    assert library.ek_sampler_next(call.handle, ctypes.byref(ask)) == OK and ask.kind == 2
    assert library.ek_sampler_next(call.handle, ctypes.byref(ask)) == INVALID_STATE
    for _ in range(2):  # of a pass that failed
        assert library.ek_sampler_answer(call.handle, None) == OK
    assert library.ek_sampler_next(call.handle, ctypes.byref(ask)) == OK and ask.kind == 2, "asked for again"
    assert library.ek_sampler_save(call.handle, None, 0, None) == INVALID_ARGUMENT
    call.close()


def test_structs_of_other_sizes() -> None:
    size = ctypes.sizeof(Model)
    for wrong, words in ((0, "ek_sampler_model: struct_size is 0"), (size + 8, "update the library")):
        call = Call()
        call.model.struct_size = wrong
        assert call.create() == INVALID_ARGUMENT and words in call.message
    call = Call(uncached_count=-1)
    call.model.struct_size = Model.uncached_count.offset
    assert call.create() == OK, "what is not in a shorter struct is not looked at"
    call.close()
    call = Call()
    options = Options()
    options.struct_size = ctypes.sizeof(Options) + 8
    assert (
        call.create(options=ctypes.byref(options)) == INVALID_ARGUMENT
        and "update the library" in call.message
    )
    assert call.create() == OK
    for kind, name in ((AskStruct, "next"), (LengthsStruct, "get_lengths"), (Statistics, "get_statistics")):
        function, struct = getattr(call.library, f"ek_sampler_{name}"), kind()
        struct.struct_size = 3
        pointer: Any = ctypes.byref(struct)
        assert function(call.handle, pointer) == INVALID_ARGUMENT and "struct_size is 3" in call.message
    ask = AskStruct(kind=77)
    ask.struct_size = AskStruct.kind.offset
    assert call.library.ek_sampler_next(call.handle, ctypes.byref(ask)) == OK
    assert ask.kind == 77 and ask.struct_size == AskStruct.kind.offset
    call.close()


def test_an_answer_of_another_size_is_refused_and_a_shorter_one_lacks_its_end() -> None:
    denoiser = ProjectingDenoiser(40)
    own = sampler("dream", denoiser)
    ask = first_pass(own, denoiser)
    arrays = {k: v for k, v in vars(denoiser.denoise(ask.ids, ask.request)).items() if v is not None}
    kept = {
        k: np.ascontiguousarray(v, np.int64 if v.dtype.kind == "i" else np.float32) for k, v in arrays.items()
    }
    output = HeadOutputStruct(**{name: array.ctypes.data for name, array in kept.items()})
    for wrong, words in ((0, "struct_size is 0"), (ctypes.sizeof(output) + 8, "update the library")):
        output.struct_size = wrong
        assert own._library.ek_sampler_answer(own._handle, ctypes.byref(output)) == INVALID_ARGUMENT
        assert words.encode() in own._library.ek_last_error()
    output.struct_size = HeadOutputStruct.top_ids.offset
    assert own._library.ek_sampler_answer(own._handle, ctypes.byref(output)) == INVALID_ARGUMENT
    assert b"top_ids is null" in own._library.ek_last_error()
    output.struct_size = ctypes.sizeof(output)
    assert own._library.ek_sampler_answer(own._handle, ctypes.byref(output)) == OK


def test_a_sampler_is_used_by_one_thread_at_a_time() -> None:
    """Others are refused in a line, and the sampler goes on."""
    section = {"name": "llada", "config": {"mask_token_id": 3, "eos_token_ids": [1]}}
    sampler = CoreSampler(SamplerModel(section, 1 << 16, 0), list(range(4, 60_000)), max_new_tokens=512)
    failed: list[str] = []
    done = threading.Event()

    def copies() -> None:
        while not done.is_set():
            try:
                sampler.copy()
            except InvalidRequest as error:
                failed.append(str(error))
                done.set()

    threads = [threading.Thread(target=copies) for _ in range(4)]
    for thread in threads:
        thread.start()
    done.wait(60)
    done.set()
    for thread in threads:
        thread.join()
    assert failed and "the sampler is in a call of another thread; take turns" in failed[0]
    sampler.next()
    assert isinstance(sampler.next(), Denoise)
