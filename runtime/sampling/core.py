"""The families' samplers, which are the native core's: `ek_sampler` of `edgekit.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_uint64, c_void_p
from typing import Any, Final, NoReturn

import numpy as np

from edgekit.flashload import _native
from edgekit.flashload.core_memory import array, copied
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.core_structs import (
    GenerationStatisticsStruct,
    HeadOutputStruct,
    HeadRequestStruct,
    PassSegmentStruct,
)
from edgekit.runtime.one_driver import OneDriver
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.one_user import OneUser
from edgekit.runtime.sampling.answers import FilledOutput, answer_arrays, answer_shapes
from edgekit.runtime.sampling.asks import (
    Answer,
    Ask,
    Crop,
    Denoise,
    Encode,
    Forget,
    Pass,
    PassRows,
    Prefix,
    Project,
    SeenRows,
    Tell,
)
from edgekit.runtime.sampling.core_abi import (
    ERRORS,
    AskStruct,
    Given,
    LengthsStruct,
    SamplerModel,
    library,
    wishes,
)
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.sampling.events import Committed, Done, Draft, FinishReason, Stats
from edgekit.runtime.sampling.ids import flat_ids
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.options import MOST_SEED, Lengths, check_int
from edgekit.runtime.sampling.types import HeadRequest, Ids

#: By the numbers of EK_FINISH_; the first is that of a generation that has not come to its end.
_REASONS: Final[tuple[FinishReason, ...]] = ("length", "eos", "length", "cancelled")


#: That `hurry` takes.
MOST_PASSES: Final = 1 << 22

_FORGET, _ENCODE, _DENOISE, _PROJECT, _DRAFT, _COMMITTED, _DONE, _PASS, _CROP = range(9)


class CoreSampler(OneOwner, OneDriver):
    """A family's denoising procedure. Implements `Procedure`; not for use by several threads at once."""

    def __init__(
        self,
        model: SamplerModel,
        prompt: Ids | Sequence[int],
        *,
        seed: int = 0,
        max_new_tokens: int | None = None,
        steps: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`max_new_tokens`, `steps` and `options` by name win over the section's config, see `settle`.

        Raises InvalidOption, InvalidPrompt, PromptTooLong for what passes the model's positions,
        UnsupportedBundle for an unknown family, and NativeError.
        """
        check_int("seed", seed, 0, MOST_SEED)
        given, handle = Given(model), c_void_p()
        ids = prompt_ids(prompt, model.vocab_size)
        wanted = wishes(seed, max_new_tokens, steps, options)
        self._handle: int | None = None
        self._library = library()
        self._set_up(model.vocab_size, model.hidden_size, model.bundle)
        create = self._library.ek_sampler_create
        own = ctypes.byref(given.struct), ids.ctypes.data, ids.size, ctypes.byref(wanted)
        _native.check(create(*own, ctypes.byref(handle)), ERRORS)
        self._handle = handle.value

    @classmethod
    def load(cls, model: SamplerModel, state: bytes | bytearray | memoryview) -> CoreSampler:
        """The sampler that was saved. It asks for its text to be encoded first, and goes on to the same
        tokens.

        Raises MalformedFile, UnsupportedVersion, ChecksumMismatch, InvalidOption for a state of another
        bundle, and InvalidRequest for what is no bytes.
        """
        if not isinstance(state, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a saved state is bytes, not {shown(state)}")
        state = bytes(state)
        core, handle, given = library(), c_void_p(), Given(model)
        _native.check(
            core.ek_sampler_load(ctypes.byref(given.struct), state, len(state), ctypes.byref(handle)),
            ERRORS,
        )
        return cls._of(core, handle, model.vocab_size, model.hidden_size, model.bundle)

    @classmethod
    def _of(
        cls, library: ctypes.CDLL, handle: c_void_p, vocab_size: int, hidden_size: int, bundle: str | None
    ) -> CoreSampler:
        own = cls.__new__(cls)
        own._library = library
        own._set_up(vocab_size, hidden_size, bundle)
        own._handle = handle.value
        return own

    def _set_up(self, vocab_size: int, hidden_size: int, bundle: str | None) -> None:
        self._vocab_size, self._hidden_size = vocab_size, hidden_size
        #: What `SamplerModel.bundle` said.
        self.bundle = bundle
        self._asked: list[dict[str, tuple[int, ...]]] = []  # shapes of the answers to the last pass
        self._several = False  # they are those of several segments
        self._user = OneUser()

    @property
    def lengths(self) -> Lengths:
        """Positions that the generation takes, at most."""
        found = LengthsStruct()
        self._call("ek_sampler_get_lengths", ctypes.byref(found))
        return Lengths(
            found.new_tokens,
            found.prefix,
            found.canvas,
            found.canvases,
            found.steps,
            segments=found.segments,
        )

    @property
    def stats(self) -> Stats:
        """The counters so far."""
        found = GenerationStatisticsStruct()
        self._call("ek_sampler_get_statistics", ctypes.byref(found))
        counters = {
            name: getattr(found, name)
            for name, _ in GenerationStatisticsStruct._fields_
            if name not in ("struct_size", "finish_reason", "seconds")  # a sampler does not measure
        }
        return Stats(**counters, finish_reason=_REASONS[found.finish_reason])

    def next(self, answer: Answer | None = None) -> Ask:
        """What to do now. Raises NonFiniteLogits, and then asks the same again; InvalidRequest for an answer
        that does not fit what was asked.
        """
        # What was asked is looked at here, so the core's own guard against two threads comes too late.
        return self._user.call(lambda: self._next(answer), _in_use)

    def _next(self, answer: Answer | None) -> Ask:
        if answer is not None:
            self._answer(answer)
        ask = AskStruct()
        self._call("ek_sampler_next", ctypes.byref(ask))
        return self._asking(ask)

    def run(self, call: Callable[[Any, Any], None]) -> Ask:
        """As `next`, with passes done: `call` has a session run the sampler of a handle and fill an ask."""
        return self._user.call(lambda: self._run(call), _in_use)

    def _run(self, call: Callable[[Any, Any], None]) -> Ask:
        ask = AskStruct()
        call(self._handle, ctypes.byref(ask))
        return self._asking(ask)

    def _asking(self, ask: AskStruct) -> Ask:
        if ask.kind == _PASS:
            return self._pass(ask)
        if ask.kind == _CROP:
            return Crop(ask.prefix_length)
        ids = _ids(ask.ids, ask.count)
        if ask.kind == _DENOISE:
            soft = None
            if ask.soft:
                soft = array(ask.soft, (ask.count, self._hidden_size)).copy()
            return Denoise(ids, self._one_request(ask), soft, Prefix(ask.prefix_length, ask.text))
        if ask.kind == _PROJECT:
            return Project(ids, self._one_request(ask), Prefix(ask.prefix_length, ask.text))
        if ask.kind == _FORGET:
            return Forget()
        if ask.kind == _ENCODE:
            return Encode(ids, Prefix(ask.prefix_length, ask.text))
        kept = _ids(ask.kept, ask.kept_count) if ask.kept else None
        if ask.kind == _DRAFT:
            accepted = copied(ask.accepted, ask.count, np.bool_)
            return Tell(Draft(ask.canvas_index, ask.step, ask.start, ids, accepted), kept)
        if ask.kind == _COMMITTED:
            text = None if ask.text_count == ask.count else ids[: ask.text_count]
            return Tell(Committed(ask.canvas_index, ids, text), kept)
        return Tell(Done(self.stats), kept)

    def copy(self) -> CoreSampler:
        """Another one in the same state. One that goes on over another text than the original, which
        `Sequence.copy` copies with what is kept, must `restore` its own first.
        """
        handle = c_void_p()
        self._call("ek_sampler_copy", ctypes.byref(handle))
        return self._of(self._library, handle, self._vocab_size, self._hidden_size, self.bundle)

    __copy__ = copy

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidRequest("a CoreSampler cannot be pickled; save() gives its state, load() takes it")

    def ask_again(self) -> None:
        """Tell that what was asked for was not done, as a pass that failed: `next` asks for it again. What is
        told is told once.
        """
        self._call("ek_sampler_answer", None)

    def hurry(self, passes: int) -> None:
        """End the generation within so many further denoising passes, 1 or more: the last of them settles all
        that is open. A pass that was asked for before is not counted. The same calls at the same places give
        the same tokens.

        Raises InvalidOption for no such number, and InvalidRequest for a procedure that cannot.
        """
        check_int("passes", passes, 1, MOST_PASSES)
        self._call("ek_sampler_hurry", passes)

    def reseed(self, seed: int) -> None:
        """Draw from another seed from here on, as copies do that are to differ; what was drawn stays. A step
        whose pass has no answer yet is begun again.

        Raises InvalidOption for what is no seed, and InvalidRequest within such a step while its text is
        encoded again.
        """
        check_int("seed", seed, 0, MOST_SEED)
        self._call("ek_sampler_reseed", seed)

    def restore(self) -> None:
        """Ask for all text to be forgotten and encoded again, for a model that does not hold it."""
        self._call("ek_sampler_restore")

    def save(self) -> bytes:
        """The state. A step under way is begun again when it is loaded. Raises InvalidRequest where the model
        has no name of its bundle.
        """
        size = c_uint64()
        self._call("ek_sampler_save", None, 0, ctypes.byref(size))
        state = ctypes.create_string_buffer(size.value)
        self._call("ek_sampler_save", state, size.value, ctypes.byref(size))
        return state.raw

    def _answer(self, answer: Answer) -> None:
        if not self._several:
            shapes = self._asked[0] if self._asked else {}
            output, _held = _output(answer, shapes)
            return self._call("ek_sampler_answer", ctypes.byref(output))
        answers = list(answer) if isinstance(answer, Sequence) else [answer]
        if len(answers) != len(self._asked):
            raise InvalidRequest(f"{len(answers)} answers; the pass has {len(self._asked)} requests")
        given = [_output(each, shapes) for each, shapes in zip(answers, self._asked, strict=True)]
        outputs = (HeadOutputStruct * len(given))(*[output for output, _ in given])
        self._call("ek_sampler_answer_pass", outputs, len(outputs))

    def _one_request(self, ask: AskStruct) -> HeadRequest:
        self._asked, self._several = [], False
        return self._request(ask.request, bool(ask.logits))

    def _request(self, request: HeadRequestStruct, logits: bool) -> HeadRequest:
        wanted = head_request(request, logits, self._vocab_size)
        rows = request.row_count
        self._asked.append(answer_shapes(wanted, rows, self._vocab_size, self._hidden_size))
        return wanted

    def _pass(self, ask: AskStruct) -> Pass:
        self._asked, self._several = [], True
        segments = ctypes.cast(ask.segments, ctypes.POINTER(PassSegmentStruct))
        rows = [self._rows(segments[i]) for i in range(ask.segment_count)]
        return Pass(rows, Prefix(ask.prefix_length, ask.text))

    def _rows(self, given: PassSegmentStruct) -> PassRows:
        places, request = _ids(given.positions, given.count), None
        if given.request:
            request = self._request(HeadRequestStruct.from_address(given.request), logits=False)
        seen = None
        if given.seen:
            found = [given.seen[i] for i in range(given.seen_count)]
            seen = [SeenRows(None if s.segment < 0 else s.segment, s.first, s.count) for s in found]
        ids, block = _ids(given.ids, given.count), given.block if given.causal else 0
        keep = given.keep_at >= 0
        at = given.keep_at if keep else int(places[0])
        own = None if np.array_equal(places, at + np.arange(len(ids))) else places
        return PassRows(ids, at, request, block, seen, keep, given.adapter, own, given.keep_count)

    def _call(self, name: str, *arguments: Any) -> None:
        _native.check(getattr(self._library, name)(self._handle, *arguments), ERRORS)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._library.ek_sampler_close(handle)


def _output(
    answer: Any, shapes: dict[str, tuple[int, ...]]
) -> tuple[HeadOutputStruct, dict[str, np.ndarray]]:
    """An answer as the core takes it, and the arrays that it points at."""
    if isinstance(answer, FilledOutput) and answer.is_of(shapes):
        return answer.struct, {}
    arrays = answer_arrays(answer, shapes)
    struct = HeadOutputStruct(**{name: values.ctypes.data for name, values in arrays.items()})
    return struct, arrays


def _in_use() -> InvalidRequest:
    return InvalidRequest("the sampler is in a call of another thread; take turns, or copy it for each")


def head_request(wanted: HeadRequestStruct, logits: bool, vocab_size: int) -> HeadRequest:
    """What an `ek_head_request` of the library asks for; its rows are copied."""
    noise = PhiloxGumbel(wanted.seed, wanted.draw, wanted.row_count, vocab_size)
    return HeadRequest(
        rows=_ids(wanted.rows, wanted.row_count) if wanted.rows else None,
        temperature=wanted.temperature,
        gumbel=noise if wanted.gumbel else None,
        gumbel_scale=wanted.gumbel_scale,
        soft=bool(wanted.soft),
        roles=bool(wanted.roles),
        top_k=wanted.top_k,
        logits=logits,
    )


def text_number(text: int, ids: Ids) -> int:
    """The number of the text that ids [T] make behind another one, see `asks.Prefix`."""
    ids, number = np.ascontiguousarray(ids, np.int64), c_uint64()
    _native.check(library().ek_text_number(text, ids.ctypes.data, ids.size, ctypes.byref(number)), ERRORS)
    return number.value


def _ids(address: int | None, count: int) -> Ids:
    """A copy of token ids of the library."""
    return copied(address, count, np.int64)


def prompt_ids(prompt: Ids | Sequence[int], vocab_size: int) -> Ids:
    """A prompt as int64 [P]. Raises InvalidPrompt unless it is a flat list of integers of 64 bits."""

    def beyond(token: str, place: int) -> str:
        return (
            f"prompt token {token} at position {place} is outside the model's vocabulary of {vocab_size} "
            "tokens; use the tokenizer of this model"
        )

    return flat_ids(prompt, "the prompt", InvalidPrompt, beyond)
