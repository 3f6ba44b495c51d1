"""Structs of `edgekit.h` that several bindings share."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from edgekit.flashload.structs import Struct, TensorStruct


class HeadRequestStruct(Struct):
    """`ek_head_request`."""

    _fields_ = (
        ("struct_size", c_uint32), ("temperature", c_float), ("rows", c_void_p), ("row_count", c_int64),
        ("gumbel", c_int32), ("gumbel_scale", c_float), ("seed", c_uint64), ("draw", c_uint64),
        ("soft", c_int32), ("roles", c_int32), ("top_k", c_int64),
    )  # fmt: skip


class HeadOutputStruct(Struct):
    """`ek_head_output`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("argmax", c_void_p), ("others", c_void_p),
        ("entropy", c_void_p), ("log_z", c_void_p), ("sample", c_void_p), ("sample_prob", c_void_p),
        ("soft", c_void_p), ("top_ids", c_void_p), ("top_z", c_void_p), ("logits", c_void_p),
        ("roles", c_void_p),
    )  # fmt: skip


class GenerationStatisticsStruct(Struct):
    """`ek_generation_statistics`."""

    _fields_ = (
        ("struct_size", c_uint32), ("finish_reason", c_int32), ("denoising_steps", c_int64),
        ("forwards", c_int64), ("projections", c_int64), ("prefills", c_int64), ("committed_tokens", c_int64),
        ("canvases", c_int64), ("rows", c_int64), ("seconds", c_double),
    )  # fmt: skip


#: `EK_EVENT_...`.
EVENT_DRAFT: Final = 0
EVENT_COMMITTED: Final = 1
EVENT_DONE: Final = 2


class EventStruct(Struct):
    """`ek_event`."""

    _fields_ = (
        ("struct_size", c_uint32), ("kind", c_int32), ("canvas_index", c_int64), ("step", c_int64),
        ("start", c_int64), ("ids", c_void_p), ("count", c_int64), ("accepted", c_void_p),
        ("statistics", POINTER(GenerationStatisticsStruct)),
    )  # fmt: skip


class CanvasCellStruct(ctypes.Structure):
    """`ek_canvas_cell`."""

    _fields_ = (("place", c_int64), ("token", c_int64), ("state", c_int32), ("reserved", c_int32))


class CanvasPartStruct(ctypes.Structure):
    """`ek_canvas_part`."""

    _fields_ = (("bytes", c_uint64), ("state", c_int32), ("reserved", c_int32))


class SeenRowsStruct(ctypes.Structure):
    """`ek_seen_rows`."""

    _fields_ = (("segment", c_int64), ("first", c_int64), ("count", c_int64))


class PassSegmentStruct(Struct):
    """`ek_pass_segment`."""

    _fields_ = (
        ("struct_size", c_uint32), ("causal", c_int32), ("sequence", c_void_p), ("ids", c_void_p),
        ("count", c_int64), ("positions", c_void_p), ("soft", c_void_p), ("seen", POINTER(SeenRowsStruct)),
        ("seen_count", c_int64), ("keep_at", c_int64), ("request", c_void_p), ("output", c_void_p),
        ("block", c_int64), ("adapter", c_int64), ("keep_count", c_int64),
    )  # fmt: skip


class WeightsStruct(ctypes.Structure):
    """`ek_weights`."""

    _fields_ = (
        ("unit", c_char_p), ("data", c_void_p), ("bytes", c_uint64), ("tensors", POINTER(TensorStruct)),
        ("tensor_count", c_int64),
    )  # fmt: skip


class KeysStruct(ctypes.Structure):
    """`ek_keys`."""

    _fields_ = (("k", c_void_p), ("v", c_void_p), ("count", c_int64), ("stride", c_int64))


class AttentionStruct(ctypes.Structure):
    """`ek_attention`."""

    _fields_ = (
        ("layer", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64), ("window", c_int64),
        ("kept", c_int64), ("piece_count", c_int64), ("pieces", POINTER(KeysStruct)),
        ("cos", c_void_p), ("sin", c_void_p), ("frequencies", c_int64), ("rope", c_char_p),
        ("query_scale", c_void_p), ("adapter", c_void_p), ("mask", c_void_p), ("k", c_void_p),
        ("v", c_void_p), ("own_stride", c_int64),
    )  # fmt: skip


class SegmentStruct(ctypes.Structure):
    """`ek_segment`."""

    _fields_ = (
        ("first_row", c_int64), ("count", c_int64), ("causal", c_int32), ("reserved", c_int32),
        ("layers", POINTER(AttentionStruct)),
    )  # fmt: skip


class LayersCallStruct(ctypes.Structure):
    """`ek_layers_call`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("program", c_char_p),
        ("weights", POINTER(WeightsStruct)), ("rows", c_int64), ("hidden_size", c_int64), ("x", c_void_p),
        ("first_layer", c_int64), ("layer_count", c_int64), ("segment_count", c_int64),
        ("segments", POINTER(SegmentStruct)), ("experts", c_int64), ("inputs", c_uint64),
    )  # fmt: skip


class TileCallStruct(ctypes.Structure):
    """`ek_tile_call`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("weights", POINTER(WeightsStruct)),
        ("first_token", c_int64), ("tokens", c_int64), ("rows", c_int64), ("hidden_size", c_int64),
        ("x", c_void_p), ("temperature", c_float), ("gumbel", c_int32), ("gumbel_scale", c_float),
        ("seed", c_uint64), ("draw", c_uint64), ("largest", c_void_p), ("argmax", c_void_p),
        ("sum_others", c_void_p), ("sum_z_others", c_void_p), ("score", c_void_p), ("sample", c_void_p),
        ("sample_z", c_void_p), ("soft", c_void_p), ("z", c_void_p),
    )  # fmt: skip


class CopyStruct(ctypes.Structure):
    """`ek_copy`."""

    _fields_ = (
        ("to", c_void_p), ("from", c_void_p), ("bytes", c_uint64), ("blocks", c_int64),
        ("to_stride", c_int64), ("from_stride", c_int64), ("from_session", c_int32), ("to_session", c_int32),
    )  # fmt: skip


class EngineBytesStruct(ctypes.Structure):
    """`ek_engine_bytes`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("activations", c_uint64), ("scratch", c_uint64),
        ("head", c_uint64), ("allowance", c_uint64), ("weights", c_uint64),
    )  # fmt: skip


#: Functions of `ek_engine` that compute, in its order: names, and arguments behind the first, `user`.
ENGINE_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "get_bytes": (c_int64, c_int64, c_int64, c_int64, POINTER(EngineBytesStruct)),
    "layers": (POINTER(LayersCallStruct),),
    "route": (POINTER(LayersCallStruct), POINTER(c_int64)),
    "expert": (POINTER(LayersCallStruct), c_int64, POINTER(WeightsStruct)),
    "join": (POINTER(LayersCallStruct),),
    "self_condition": (POINTER(WeightsStruct), c_int64, c_void_p, c_void_p),
    "final": (POINTER(WeightsStruct), c_int64, c_void_p),
    "tile": (POINTER(TileCallStruct),),
}
#: Those of memory of an engine's own, and of work under way.
MEMORY_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "allocate": (c_uint64, POINTER(c_void_p)),
    "release": (c_void_p, c_uint64),
    "copy": (POINTER(CopyStruct), c_int64),
    "wait": (c_uint64,),
}
#: Those that are told where weights lie, or keep them.
LOAN_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "lend": (c_void_p, c_uint64),
    "take_back": (c_void_p, c_uint64),
    "keep": (POINTER(WeightsStruct),),
}


def _types(functions: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {
        name: ctypes.CFUNCTYPE(None if name in ("release", "take_back") else c_int32, c_void_p, *arguments)
        for name, arguments in functions.items()
    }


ENGINE_FUNCTION_TYPES = _types(ENGINE_FUNCTIONS)
MEMORY_FUNCTION_TYPES = _types(MEMORY_FUNCTIONS)
LOAN_FUNCTION_TYPES = _types(LOAN_FUNCTIONS)


class EngineStruct(Struct):
    """`ek_engine`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("name", c_char_p), ("user", c_void_p),
        *ENGINE_FUNCTION_TYPES.items(), ("last_error", c_void_p), *MEMORY_FUNCTION_TYPES.items(),
        *LOAN_FUNCTION_TYPES.items(),
    )  # fmt: skip


class PackageArrayStruct(ctypes.Structure):
    """`ek_package_array`."""

    _fields_ = (
        ("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_int64)), ("rank", c_int64),
        ("data", c_void_p), ("bytes", c_uint64),
    )  # fmt: skip


#: Functions of `ek_executor`, in its order: results, and arguments behind the first, `user`.
EXECUTOR_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "open": (
        c_int32,
        (c_char_p, c_char_p, POINTER(c_char_p), c_int64, POINTER(c_void_p), c_void_p, c_uint64),
    ),
    "call": (
        c_int32,
        (
            *(c_void_p, c_char_p, POINTER(PackageArrayStruct), c_int64, POINTER(PackageArrayStruct), c_int64),
            *(c_void_p, c_uint64),
        ),
    ),
    "close": (None, (c_void_p,)),
}
EXECUTOR_FUNCTION_TYPES = {
    name: ctypes.CFUNCTYPE(result, c_void_p, *arguments)
    for name, (result, arguments) in EXECUTOR_FUNCTIONS.items()
}


class ExecutorStruct(Struct):
    """`ek_executor`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("name", c_char_p), ("user", c_void_p),
        *EXECUTOR_FUNCTION_TYPES.items(),
    )  # fmt: skip


class MemoryPlanStruct(Struct):
    """`ek_memory_plan`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("process", c_uint64), ("prefix", c_uint64),
        ("activations", c_uint64), ("scratch", c_uint64), ("head", c_uint64), ("allowance", c_uint64),
        ("pinned", c_uint64), ("ring", c_uint64), ("streamed", c_uint64), ("weights", c_uint64),
        ("least_memory", c_uint64), ("units", c_int64), ("most_sequences", c_int64), ("kept", c_uint64),
    )  # fmt: skip


class UnitPlanStruct(Struct):
    """`ek_unit_plan`."""

    _fields_ = (
        ("struct_size", c_uint32), ("pinned", c_int32), ("name", c_char_p), ("group", c_char_p),
        ("bytes", c_uint64), ("kept", c_int32), ("reserved", c_int32),
    )  # fmt: skip
