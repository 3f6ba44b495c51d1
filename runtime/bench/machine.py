"""The machine as reports have it."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_uint64
from typing import Any

from edgekit.flashload import _native
from edgekit.runtime.bench.json_text import read_json

_SIGNATURES: dict[str, tuple[Any, ...]] = {"ek_describe_machine": (c_char_p, c_uint64, POINTER(c_uint64))}


def describe_machine() -> dict[str, Any]:
    """System, release, architecture, processor, device, cores, memory and extensions of the processor; no
    name of a user, host or folder.
    """
    found: dict[str, Any] = read_json(_native.functions(_SIGNATURES).ek_describe_machine)
    return found
