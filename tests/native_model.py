"""Models of a caller: `ek_model` of edgekit.h, with callbacks in Python."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

from edgekit.runtime import native_structs
from edgekit.runtime.native_session import NativeSession

CALLBACK_FAILED = 17

Request, Output = native_structs.HeadRequestStruct, native_structs.HeadOutputStruct
RESET = ctypes.CFUNCTYPE(c_int32, c_void_p)
PREFILL = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p)
DENOISE = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p, POINTER(Request), POINTER(Output), c_void_p)
PROJECT = ctypes.CFUNCTYPE(c_int32, POINTER(Request), POINTER(Output), c_void_p)
KEEP = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p)


class Model(native_structs.Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_int32), ("vocabulary", c_int64), ("hidden_size", c_int64),
        ("canvas_length", c_int64), ("max_positions", c_int64), ("prefix_length", c_int64),
        ("sampler", c_char_p), ("user_data", c_void_p), ("reset", RESET), ("prefill", PREFILL),
        ("denoise", DENOISE), ("project", PROJECT), ("uncached", c_void_p), ("uncached_count", c_int64),
        ("keep", KEEP),
    )  # fmt: skip


#: What a callback of a session does besides forwarding: it is given the name, the arguments and a function
#: that forwards, and returns the callback's value.
Between = Callable[[str, tuple[Any, ...], Callable[[], int]], int]


def forwarding(session: NativeSession, between: Between | None = None) -> Model:
    """A model whose callbacks forward to an open session. It lives as long as the struct does."""
    library = session._library

    def forward(name: str) -> Callable[..., int]:
        function = getattr(library, f"ek_session_{name}")

        def callback(*arguments: Any) -> int:
            *own, user_data = arguments
            assert user_data == 99
            call: Callable[[], int] = lambda: int(function(session._handle, *own))  # noqa: E731
            return call() if between is None else between(name, tuple(own), call)

        return callback

    section = session.bundle.manifest.sampler
    causal = session.model.causal_prefix
    return Model(
        vocabulary=session.vocab_size,
        hidden_size=session.hidden_size,
        canvas_length=session.model.canvas_length or 0,
        max_positions=session.model.max_positions or 0,
        prefix_length=session.prefix_length,
        sampler=json.dumps(section).encode(),
        user_data=99,
        reset=RESET(forward("reset")),
        prefill=PREFILL(forward("prefill")) if causal else PREFILL(0),
        denoise=DENOISE(forward("denoise")),
        project=PROJECT(forward("project")),
    )


def failed(library: ctypes.CDLL, text: bytes | None) -> int:
    """ek_callback_failed."""
    tell = library.ek_callback_failed
    tell.argtypes, tell.restype = (c_char_p,), c_int32
    return int(tell(text))
