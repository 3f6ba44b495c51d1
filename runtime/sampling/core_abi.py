"""The structs and functions of `ek_sampler` in `edgekit.h`."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from edgekit.flashload import _native
from edgekit.flashload.names import shown
from edgekit.flashload.structs import Struct
from edgekit.runtime.core_structs import GenerationStatisticsStruct, HeadOutputStruct, HeadRequestStruct
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt, NonFiniteLogits
from edgekit.runtime.sampling.ids import flat_ids, pieces_of, truth, whole
from edgekit.runtime.sampling.types import Ids

#: By status.
ERRORS: Final = {1: InvalidOption, 13: NonFiniteLogits, 17: InvalidPrompt, 18: PromptTooLong}


class Model(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("projects", c_int32), ("vocabulary", c_int64), ("hidden_size", c_int64),
        ("canvas_length", c_int64), ("max_positions", c_int64), ("sampler", c_char_p), ("bundle", c_char_p),
        ("encoded", c_void_p), ("piece_lengths", c_void_p), ("encoded_pieces", c_int64),
        ("uncached", c_void_p), ("uncached_count", c_int64), ("prefix_block", c_int64),
        ("shift_logits", c_int32), ("role_head", c_int32),
    )  # fmt: skip


class Wishes(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("seed", c_uint64), ("max_new_tokens", c_int64),
        ("steps", c_int64), ("options", c_char_p),
    )  # fmt: skip


class LengthsStruct(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_int32), ("new_tokens", c_int64), ("prefix", c_int64),
        ("canvas", c_int64), ("canvases", c_int64), ("steps", c_int64), ("segments", c_int64),
    )  # fmt: skip


class AskStruct(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("kind", c_int32), ("ids", c_void_p), ("count", c_int64),
        ("soft", c_void_p), ("request", HeadRequestStruct), ("logits", c_int32), ("reserved", c_int32),
        ("canvas_index", c_int64), ("step", c_int64), ("start", c_int64), ("accepted", c_void_p),
        ("kept", c_void_p), ("kept_count", c_int64), ("prefix_length", c_int64), ("text", c_uint64),
        ("segments", c_void_p), ("segment_count", c_int64), ("text_count", c_int64),
    )  # fmt: skip


_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ek_sampler_create": (POINTER(Model), c_void_p, c_int64, POINTER(Wishes), POINTER(c_void_p)),
    "ek_sampler_get_options": (
        POINTER(Model),
        POINTER(Wishes),
        c_int64,
        c_char_p,
        c_uint64,
        POINTER(c_uint64),
    ),
    "ek_sampler_get_lengths": (c_void_p, POINTER(LengthsStruct)),
    "ek_sampler_get_statistics": (c_void_p, POINTER(GenerationStatisticsStruct)),
    "ek_sampler_next": (c_void_p, POINTER(AskStruct)),
    "ek_sampler_answer": (c_void_p, POINTER(HeadOutputStruct)),
    "ek_sampler_answer_pass": (c_void_p, POINTER(HeadOutputStruct), c_int64),
    "ek_sampler_copy": (c_void_p, POINTER(c_void_p)),
    "ek_sampler_restore": (c_void_p,),
    "ek_sampler_hurry": (c_void_p, c_int64),
    "ek_sampler_reseed": (c_void_p, c_uint64),
    "ek_text_number": (c_uint64, c_void_p, c_int64, POINTER(c_uint64)),
    "ek_sampler_save": (c_void_p, c_void_p, c_uint64, POINTER(c_uint64)),
    "ek_sampler_load": (POINTER(Model), c_char_p, c_uint64, POINTER(c_void_p)),
}


def library() -> ctypes.CDLL:
    """The library with the types of its functions declared. Raises NativeError."""
    return _native.functions(_SIGNATURES, "ek_sampler_close")


class ModelFacts(Protocol):
    """What the manifest's model and an architecture call by the same names."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def canvas_length(self) -> int | None: ...
    @property
    def max_positions(self) -> int | None: ...
    @property
    def prefix_block(self) -> int: ...
    @property
    def shift_logits(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class SamplerModel:
    """What a sampler knows of the model that answers.

    `section` is "sampler" of the bundle's manifest: {"name": ..., "config": {...}}. `hidden_size` is 0 for a
    model without self-conditioning. `prefix_block` and `shift_logits` are those of the manifest's model;
    `role_head`: it has one, and can be asked for roles.
    `projects`: it is a Projector. `canvas_length` and `max_positions` None:
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
    prefix_block: int = 1
    shift_logits: bool = False
    role_head: bool = False

    @classmethod
    def of(
        cls, section: Mapping[str, Any], model: ModelFacts, role_head: bool, bundle: str | None = None
    ) -> SamplerModel:
        """The model of a bundle, or that an export writes, before a session is open."""
        return cls(
            section,
            model.vocab_size,
            model.hidden_size,
            canvas_length=model.canvas_length,
            max_positions=model.max_positions,
            bundle=bundle,
            prefix_block=model.prefix_block,
            shift_logits=model.shift_logits,
            role_head=role_head,
        )


class Given:
    """A model as a struct, and the arrays that it points at."""

    def __init__(self, model: SamplerModel) -> None:
        """Raises InvalidOption for facts that are not of the kind that SamplerModel declares."""
        if not isinstance(model, SamplerModel):
            raise InvalidOption(f"the model is {shown(model)}; pass a SamplerModel")
        pieces = pieces_of(model.encoded, "SamplerModel.encoded", InvalidOption)
        self._encoded = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        self._lengths = np.array([len(piece) for piece in pieces], np.int64)
        self._uncached = flat_ids(model.uncached, "SamplerModel.uncached", InvalidOption)
        self.struct = Model(
            projects=truth(model.projects, "SamplerModel.projects", InvalidOption),
            vocabulary=_count(model, "vocab_size"),
            hidden_size=_count(model, "hidden_size"),
            canvas_length=0 if model.canvas_length is None else _count(model, "canvas_length"),
            max_positions=0 if model.max_positions is None else _count(model, "max_positions"),
            sampler=_section(model.section),
            bundle=None if model.bundle is None else _bundle(model.bundle),
            encoded=self._encoded.ctypes.data,
            piece_lengths=self._lengths.ctypes.data,
            encoded_pieces=len(pieces),
            uncached=self._uncached.ctypes.data,
            uncached_count=self._uncached.size,
            prefix_block=_count(model, "prefix_block"),
            shift_logits=truth(model.shift_logits, "SamplerModel.shift_logits", InvalidOption),
            role_head=truth(model.role_head, "SamplerModel.role_head", InvalidOption),
        )


def _count(model: SamplerModel, name: str) -> int:
    return whole(getattr(model, name), f"SamplerModel.{name}", InvalidOption)


def _section(section: object) -> bytes:
    try:
        if isinstance(section, Mapping):
            return json.dumps(section).encode()
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidOption(
        f"SamplerModel.section is {shown(section)}; pass the section sampler of a bundle's manifest"
    )


def _bundle(name: object) -> bytes:
    if not isinstance(name, str) or not name.isprintable():  # so it has neither a null byte nor surrogates
        raise InvalidOption(f"SamplerModel.bundle is {shown(name)}; pass the digest of a bundle, or None")
    return name.encode()


def options_by_name(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A caller's options, none for None. Raises InvalidOption for what has no names."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidOption(f"the options are {shown(options)}; pass a dict of values by name")
    return options


def wishes(
    seed: int, max_new_tokens: int | None, steps: int | None, options: Mapping[str, Any] | None
) -> Wishes:
    """What a caller wants of a generation. Raises InvalidOption for what no option can be."""
    options = options_by_name(options)
    lengths = {"max_new_tokens": max_new_tokens, "steps": steps}
    given = {name: value for name, value in lengths.items() if value is not None}
    twice = given.keys() & options.keys()
    if twice:
        raise InvalidOption(f"{min(twice)} is given twice, as an argument and as an option; leave one out")
    given |= options
    return Wishes(seed=seed, options=_text(given).encode())


def _text(options: Mapping[str, Any]) -> str:
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
            if isinstance(value, int):
                float(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            if isinstance(value, float):
                raise InvalidOption(f"{name} is {value}; use a number that is finite") from None
            raise InvalidOption(
                f"{name} is {shown(value)}; use a number, true or false, a word, or a list of token ids"
            ) from None
    return json.dumps(dict(options))
