"""The families' samplers, which are the native core's: `ek_sampler` of `edgekit.h`."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edgekit.flashload import _native
from edgekit.runtime.native_structs import HeadOutputStruct, HeadRequestStruct, Struct
from edgekit.runtime.sampling.asks import Ask, Denoise, Encode, Forget, Project, Tell
from edgekit.runtime.sampling.errors import InvalidOption, NonFiniteLogits
from edgekit.runtime.sampling.events import Committed, Done, Draft, FinishReason, Stats
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.options import Lengths, check_int
from edgekit.runtime.sampling.types import HeadOutput, HeadRequest, Ids

_ERRORS: Final = {1: InvalidOption, 13: NonFiniteLogits}
#: By the numbers of EK_FINISH_; the first is that of a generation that has not come to its end.
_REASONS: Final[tuple[FinishReason, ...]] = ("length", "eos", "length", "cancelled")


class _Model(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("projects", c_int32), ("vocabulary", c_int64), ("hidden_size", c_int64),
        ("canvas_length", c_int64), ("max_positions", c_int64), ("sampler", c_char_p), ("bundle", c_char_p),
        ("encoded", c_void_p), ("piece_lengths", c_void_p), ("encoded_pieces", c_int64),
        ("uncached", c_void_p), ("uncached_count", c_int64),
    )  # fmt: skip


class _Options(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("seed", c_uint64), ("max_new_tokens", c_int64),
        ("steps", c_int64), ("options", c_char_p),
    )  # fmt: skip


class _Lengths(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_int32), ("new_tokens", c_int64), ("prefix", c_int64),
        ("canvas", c_int64),
    )  # fmt: skip


class _Statistics(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("finish_reason", c_int32), ("denoising_steps", c_int64),
        ("forwards", c_int64), ("projections", c_int64), ("prefills", c_int64), ("committed_tokens", c_int64),
        ("canvases", c_int64),
    )  # fmt: skip


class _Ask(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("kind", c_int32), ("ids", c_void_p), ("count", c_int64),
        ("soft", c_void_p), ("request", HeadRequestStruct), ("logits", c_int32), ("reserved", c_int32),
        ("canvas_index", c_int64), ("step", c_int64), ("start", c_int64), ("accepted", c_void_p),
        ("kept", c_void_p), ("kept_count", c_int64),
    )  # fmt: skip


_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ek_sampler_create": (POINTER(_Model), c_void_p, c_int64, POINTER(_Options), POINTER(c_void_p)),
    "ek_sampler_get_lengths": (c_void_p, POINTER(_Lengths)),
    "ek_sampler_get_statistics": (c_void_p, POINTER(_Statistics)),
    "ek_sampler_next": (c_void_p, POINTER(_Ask)),
    "ek_sampler_answer": (c_void_p, POINTER(HeadOutputStruct)),
    "ek_sampler_copy": (c_void_p, POINTER(c_void_p)),
    "ek_sampler_restore": (c_void_p,),
    "ek_sampler_save": (c_void_p, c_void_p, c_uint64, POINTER(c_uint64)),
    "ek_sampler_load": (POINTER(_Model), c_char_p, c_uint64, POINTER(c_void_p)),
}

_FORGET, _ENCODE, _DENOISE, _PROJECT, _DRAFT, _COMMITTED, _DONE = range(7)


def _library() -> ctypes.CDLL:
    return _native.functions(_SIGNATURES, "ek_sampler_close")


@dataclass(frozen=True, eq=False)
class SamplerModel:
    """What a sampler knows of the model that answers.

    `section` is "sampler" of the bundle's manifest: {"name": ..., "config": {...}}. `hidden_size` is 0 for a
    model without self-conditioning. `projects`: it is a Projector. `canvas_length` and `max_positions` None:
    any, unknown. `bundle` names what saved states are bound to; None: they cannot be saved. `encoded`, in
    pieces, and `uncached` are the text that it holds, for the option `continue_prefix`.
    """

    section: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    projects: bool = True
    canvas_length: int | None = None
    max_positions: int | None = None
    bundle: str | None = None
    encoded: Sequence[Ids] = ()
    uncached: Ids = field(default_factory=lambda: np.empty(0, np.int64))


class CoreSampler:
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
        """`options` by name win over the section's config, `max_new_tokens` and `steps` over both.

        Raises InvalidOption for options, a prompt or lengths that do not fit the model, and NativeError.
        """
        check_int("seed", seed, 0, 2**64 - 1)
        ids = np.ascontiguousarray(prompt, np.int64)
        wanted = _Options(
            seed=seed,
            max_new_tokens=max_new_tokens or 0,
            steps=steps or 0,
            options=None if options is None else json.dumps(dict(options)).encode(),
        )
        given, handle = _Given(model), c_void_p()
        self._handle: int | None = None
        self._library = _library()
        self._vocab_size, self._hidden_size = model.vocab_size, model.hidden_size
        create = self._library.ek_sampler_create
        own = ctypes.byref(given.struct), ids.ctypes.data, ids.size, ctypes.byref(wanted)
        _native.check(create(*own, ctypes.byref(handle)), _ERRORS)
        self._handle = handle.value

    @classmethod
    def load(cls, model: SamplerModel, state: bytes) -> CoreSampler:
        """The sampler that was saved. It asks for its text to be encoded first, and goes on to the same
        tokens.

        Raises MalformedFile, UnsupportedVersion, ChecksumMismatch, and InvalidOption for a state of another
        bundle.
        """
        library, handle, given = _library(), c_void_p(), _Given(model)
        _native.check(
            library.ek_sampler_load(ctypes.byref(given.struct), state, len(state), ctypes.byref(handle)),
            _ERRORS,
        )
        return cls._of(library, model.vocab_size, model.hidden_size, handle)

    @classmethod
    def _of(cls, library: ctypes.CDLL, vocab_size: int, hidden_size: int, handle: c_void_p) -> CoreSampler:
        own = cls.__new__(cls)
        own._library, own._vocab_size, own._hidden_size = library, vocab_size, hidden_size
        own._handle = handle.value
        return own

    @property
    def lengths(self) -> Lengths:
        """Positions that the generation takes, at most."""
        found = _Lengths()
        self._call("ek_sampler_get_lengths", ctypes.byref(found))
        return Lengths(found.new_tokens, found.prefix, found.canvas)

    @property
    def stats(self) -> Stats:
        """The counters so far."""
        found = _Statistics()
        self._call("ek_sampler_get_statistics", ctypes.byref(found))
        counters = {
            name: getattr(found, name)
            for name, _ in _Statistics._fields_
            if name not in ("struct_size", "finish_reason")
        }
        return Stats(**counters, finish_reason=_REASONS[found.finish_reason])

    def next(self, answer: HeadOutput | None = None) -> Ask:
        """What to do now. Raises NonFiniteLogits, and then asks the same again."""
        if answer is not None:
            self._answer(answer)
        ask = _Ask()
        self._call("ek_sampler_next", ctypes.byref(ask))
        ids = _ids(ask.ids, ask.count)
        if ask.kind == _DENOISE:
            soft = None
            if ask.soft:
                soft = _array(ask.soft, c_float, np.float32, ask.count * self._hidden_size)
                soft = soft.reshape(ask.count, self._hidden_size)
            return Denoise(ids, head_request(ask.request, bool(ask.logits), self._vocab_size), soft)
        if ask.kind == _PROJECT:
            return Project(ids, head_request(ask.request, bool(ask.logits), self._vocab_size))
        if ask.kind == _FORGET:
            return Forget()
        if ask.kind == _ENCODE:
            return Encode(ids)
        kept = _ids(ask.kept, ask.kept_count) if ask.kept else None
        if ask.kind == _DRAFT:
            accepted = _array(ask.accepted, c_uint8, np.uint8, ask.count).astype(np.bool_)
            return Tell(Draft(ask.canvas_index, ask.step, ask.start, ids, accepted), kept)
        return Tell(Committed(ask.canvas_index, ids) if ask.kind == _COMMITTED else Done(self.stats), kept)

    def copy(self) -> CoreSampler:
        """Another one in the same state. Two that go on over one model must each `restore` their text."""
        handle = c_void_p()
        self._call("ek_sampler_copy", ctypes.byref(handle))
        return self._of(self._library, self._vocab_size, self._hidden_size, handle)

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
        arrays = {
            name: np.ascontiguousarray(values, np.int64 if name in _IDS else np.float32)
            for name, values in vars(answer).items()
            if values is not None
        }
        output = HeadOutputStruct(**{name: values.ctypes.data for name, values in arrays.items()})
        self._call("ek_sampler_answer", ctypes.byref(output))

    def _call(self, name: str, *arguments: Any) -> None:
        _native.check(getattr(self._library, name)(self._handle, *arguments), _ERRORS)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._library.ek_sampler_close(handle)


#: Members of a HeadOutput that hold token ids.
_IDS: Final = frozenset({"argmax", "sample", "top_ids"})


class _Given:
    """A model as a struct, and the arrays that it points at."""

    def __init__(self, model: SamplerModel) -> None:
        pieces = [np.asarray(piece, np.int64) for piece in model.encoded]
        self._encoded = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        self._lengths = np.array([len(piece) for piece in pieces], np.int64)
        self._uncached = np.ascontiguousarray(model.uncached, np.int64)
        self.struct = _Model(
            projects=model.projects,
            vocabulary=model.vocab_size,
            hidden_size=model.hidden_size,
            canvas_length=model.canvas_length or 0,
            max_positions=model.max_positions or 0,
            sampler=json.dumps(model.section).encode(),
            bundle=None if model.bundle is None else model.bundle.encode(),
            encoded=self._encoded.ctypes.data,
            piece_lengths=self._lengths.ctypes.data,
            encoded_pieces=len(pieces),
            uncached=self._uncached.ctypes.data,
            uncached_count=self._uncached.size,
        )


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


def _array(address: int, kind: Any, dtype: Any, count: int) -> np.ndarray:
    """A copy of `count` values of the library."""
    return np.ctypeslib.as_array(ctypes.cast(address, POINTER(kind)), (count,)).astype(dtype)


def _ids(address: int | None, count: int) -> Ids:
    return _array(address, c_int64, np.int64, count) if address and count else np.empty(0, np.int64)
