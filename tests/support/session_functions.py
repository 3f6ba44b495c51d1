"""Functions of `edgekit.h` that Python's sessions do without: they run passes of segments."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int64, c_void_p

from edgekit.flashload import _native
from edgekit.runtime.core_structs import HeadOutputStruct, HeadRequestStruct

_HEAD = POINTER(HeadRequestStruct), POINTER(HeadOutputStruct)
SESSION_FUNCTIONS = {
    "ek_session_prefill": (c_void_p, c_void_p, c_int64),
    "ek_session_denoise": (c_void_p, c_void_p, c_int64, c_void_p, *_HEAD),
    "ek_session_project": (c_void_p, *_HEAD),
    "ek_sequence_keep": (c_void_p, c_void_p, c_void_p, c_int64),
}


def session_functions() -> ctypes.CDLL:
    """The library with the types of their arguments."""
    return _native.functions(SESSION_FUNCTIONS)
