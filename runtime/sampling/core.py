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
from edgekit.runtime.core_structs import HeadOutputStruct, HeadRequestStruct
from edgekit.runtime.one_driver import OneDriver
from edgekit.runtime.one_owner import OneOwner
from edgekit.runtime.one_user import OneUser
from edgekit.runtime.sampling.answers import FilledOutput, answer_arrays, answer_shapes
from edgekit.runtime.sampling.asks import Ask, Denoise, Encode, Forget, Prefix, Project, Tell
from edgekit.runtime.sampling.core_abi import (
    ERRORS,
    AskStruct,
    Given,
    LengthsStruct,
    SamplerModel,
    StatisticsStruct,
    library,
    wishes,
)
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.sampling.events import Committed, Done, Draft, FinishReason, Stats
from edgekit.runtime.sampling.ids import flat_ids
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.options import MOST_SEED, Lengths, check_int
from edgekit.runtime.sampling.types import HeadOutput, HeadRequest, Ids

#: By the numbers of EK_FINISH_; the first is that of a generation that has not come to its end.
_REASONS: Final[tuple[FinishReason, ...]] = ("length", "eos", "length", "cancelled")


_FORGET, _ENCODE, _DENOISE, _PROJECT, _DRAFT, _COMMITTED, _DONE = range(7)


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
        self._asked: dict[str, tuple[int, ...]] = {}  # shapes of the answer to the last pass
        self._user = OneUser()

    @property
    def lengths(self) -> Lengths:
        """Positions that the generation takes, at most."""
        found = LengthsStruct()
        self._call("ek_sampler_get_lengths", ctypes.byref(found))
        return Lengths(found.new_tokens, found.prefix, found.canvas, found.canvases, found.steps)

    @property
    def stats(self) -> Stats:
        """The counters so far."""
        found = StatisticsStruct()
        self._call("ek_sampler_get_statistics", ctypes.byref(found))
        counters = {
            name: getattr(found, name)
            for name, _ in StatisticsStruct._fields_
            if name not in ("struct_size", "finish_reason")
        }
        return Stats(**counters, finish_reason=_REASONS[found.finish_reason])

    def next(self, answer: HeadOutput | None = None) -> Ask:
        """What to do now. Raises NonFiniteLogits, and then asks the same again; InvalidRequest for an answer
        that does not fit what was asked.
        """
        # What was asked is looked at here, so the core's own guard against two threads comes too late.
        return self._user.call(lambda: self._next(answer), _in_use)

    def _next(self, answer: HeadOutput | None) -> Ask:
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
        ids = _ids(ask.ids, ask.count)
        if ask.kind == _DENOISE:
            soft = None
            if ask.soft:
                soft = array(ask.soft, (ask.count, self._hidden_size)).copy()
            return Denoise(ids, self._request(ask), soft, Prefix(ask.prefix_length, ask.text))
        if ask.kind == _PROJECT:
            return Project(ids, self._request(ask), Prefix(ask.prefix_length, ask.text))
        if ask.kind == _FORGET:
            return Forget()
        if ask.kind == _ENCODE:
            return Encode(ids, Prefix(ask.prefix_length, ask.text))
        kept = _ids(ask.kept, ask.kept_count) if ask.kept else None
        if ask.kind == _DRAFT:
            accepted = copied(ask.accepted, ask.count, np.bool_)
            return Tell(Draft(ask.canvas_index, ask.step, ask.start, ids, accepted), kept)
        if ask.kind == _COMMITTED:
            return Tell(Committed(ask.canvas_index, ids, kept), kept)
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

    def _answer(self, answer: HeadOutput) -> None:
        if isinstance(answer, FilledOutput) and answer.is_of(self._asked):
            output = answer.struct
        else:
            arrays = answer_arrays(answer, self._asked)
            output = HeadOutputStruct(**{name: values.ctypes.data for name, values in arrays.items()})
        self._call("ek_sampler_answer", ctypes.byref(output))

    def _request(self, ask: AskStruct) -> HeadRequest:
        wanted = head_request(ask.request, bool(ask.logits), self._vocab_size)
        self._asked = answer_shapes(wanted, ask.request.row_count, self._vocab_size, self._hidden_size)
        return wanted

    def _call(self, name: str, *arguments: Any) -> None:
        _native.check(getattr(self._library, name)(self._handle, *arguments), ERRORS)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._library.ek_sampler_close(handle)


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
