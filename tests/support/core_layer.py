"""One layer of a bundle by the core's own engine for it (`ekt_engine_layer`)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.runtime.bundle.layer import Layer
from support.native_testing import library

Array = np.ndarray[Any, Any]
_ARRAYS = ("x", "prefix_k", "prefix_v", "cos", "sin", "query_scale", "adapter", "mask", "y", "k", "v")


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layer", "rows", "prefix", "causal", "threads")),
        *((name, c_void_p) for name in _ARRAYS),
    )


def core_layer(
    bundle: Path, number: int, layer: Layer, inputs: Mapping[str, Array], threads: int = 2
) -> tuple[Array, Array, Array]:
    """y [1, T, H], k and v [1, KV, T, D] of a layer, given the inputs of its program."""
    rows, prefix = inputs["x"].shape[1], inputs["prefix_k"].shape[2]
    kept = (1, layer.kv_heads, rows, layer.head_dim)
    made = {"y": np.empty_like(inputs["x"]), "k": np.empty(kept, np.float32), "v": np.empty(kept, np.float32)}
    given = {name: np.ascontiguousarray(each) for name, each in (inputs | made).items() if name in _ARRAYS}
    call = _Call(number, rows, prefix, int(inputs["phase"][0]), threads)
    for name, each in given.items():
        setattr(call, name, each.ctypes.data)
    function, message = library().ekt_engine_layer, ctypes.create_string_buffer(1024)
    function.argtypes = (c_char_p, c_void_p, c_char_p, c_size_t)
    status = function(str(bundle).encode(), ctypes.byref(call), message, len(message))
    assert status == 0, message.value.decode()
    return given["y"], given["k"], given["v"]
