"""Structs of `edgekit.h` about sessions, sequences and passes."""

from __future__ import annotations

from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p

from edgekit.flashload.structs import Struct


class OptionsStruct(Struct):
    """`ek_session_options`."""

    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("memory_bytes", c_uint64),
        ("resident_bytes", c_uint64), ("positions", c_int64), ("canvas", c_int64), ("sequences", c_int64),
        ("segments", c_int64), ("cached", c_int64), ("adapter", c_int64),
    )  # fmt: skip


class InfoStruct(Struct):
    """`ek_session_info`."""

    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("vocabulary", c_int64), ("hidden_size", c_int64),
        ("prefix_length", c_int64), ("process_bytes", c_uint64), ("prefix_bytes", c_uint64),
        ("activation_bytes", c_uint64), ("scratch_bytes", c_uint64), ("head_bytes", c_uint64),
        ("allowance_bytes", c_uint64), ("canvas_length", c_int64), ("max_positions", c_int64),
        ("causal_prefix", c_int32), ("role_head", c_int32), ("uncached_length", c_int64),
        ("prefill_rows", c_int64), ("prefix_block", c_int64),
    )  # fmt: skip


class StatisticsStruct(Struct):
    """`ek_session_statistics`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("io_mode", c_char_p), ("pinned_bytes", c_uint64),
        ("ring_bytes", c_uint64), ("streamed_bytes_per_step", c_uint64), ("bytes_read", c_uint64),
        ("scratch_bytes", c_uint64), ("io_seconds", c_double), ("io_wait_seconds", c_double),
        ("pass_seconds", c_double), ("bytes_skipped", c_uint64), ("bytes_exchanged", c_uint64),
        ("expert_layers", c_uint64), ("experts_wanted", c_uint64), ("experts_again", c_uint64),
        ("prefill_passes", c_int64), ("denoise_passes", c_int64), ("head_passes", c_int64),
        ("pass_rows", c_int64), ("prefill_seconds", c_double), ("denoise_seconds", c_double),
        ("head_seconds", c_double),
    )  # fmt: skip


class SequenceInfoStruct(Struct):
    """`ek_sequence_info`."""

    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("prefix_length", c_int64),
        ("uncached_length", c_int64), ("last_rows", c_int64), ("last_pass", c_uint64), ("text", c_uint64),
    )  # fmt: skip


class SaveOptionsStruct(Struct):
    """`ek_save_options`."""

    _fields_ = (("struct_size", c_uint32), ("bits", c_int32), ("note", c_char_p), ("note_bytes", c_uint64))


class SavedInfoStruct(Struct):
    """`ek_saved_info`."""

    _fields_ = (
        ("struct_size", c_uint32), ("bits", c_int32), ("bundle", c_char_p), ("engine", c_char_p),
        ("ids", c_void_p), ("count", c_int64), ("pieces", c_void_p), ("piece_count", c_int64),
        ("uncached", c_void_p), ("uncached_count", c_int64), ("note", c_void_p), ("note_bytes", c_uint64),
        ("adapter", c_int64),
    )  # fmt: skip
