"""Sequences in files: `ek_sequence_save`, `ek_saved` and their kin of `edgekit.h`."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.flashload import _native
from edgekit.flashload.core_memory import array
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.types import Ids
from edgekit.runtime.session.structs import SavedInfoStruct

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_saved_open": (c_void_p, POINTER(c_void_p)),
    "ek_saved_get_info": (c_void_p, POINTER(SavedInfoStruct)),
}


@dataclass(frozen=True, eq=False)
class SavedSequence:
    """What a file says of the sequence in it; its keys and values are looked at when they are loaded."""

    path: Path
    #: Of keys and values: 32, as they were computed, or 8.
    bits: int
    #: SHA-256 of the manifest of the bundle that it belongs to, and what computed it.
    bundle: str
    engine: str
    #: Number of the adapter that it was computed with, from 1; 0: none.
    adapter: int
    #: Token ids [T] that are encoded, in the pieces in which they were.
    pieces: list[Ids]
    #: Ids behind them that are final and not encoded.
    uncached: Ids
    #: What the caller put beside it.
    note: bytes


def path_of(path: object) -> Path:
    """Raises InvalidRequest for what names no file."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"the path is {shown(path)}; give the name of a file")
    return Path(name)


def read_saved(path: str | os.PathLike[str]) -> SavedSequence:
    """What a file of `Sequence.save` says of itself. It may come from anybody.

    Raises OpenFailed, ReadFailed, TruncatedFile, FileChanged, MalformedFile, UnsupportedVersion,
    ChecksumMismatch, and InvalidRequest for what is no path.
    """
    file = path_of(path)
    library = _native.functions(_SIGNATURES, "ek_saved_close")
    handle = c_void_p()
    _native.check(library.ek_saved_open(_native.path_bytes(file), ctypes.byref(handle)))
    try:
        info = SavedInfoStruct()
        _native.check(library.ek_saved_get_info(handle, ctypes.byref(info)))
        ids = _ids(info.ids, info.count)
        ends = np.cumsum(_ids(info.pieces, info.piece_count))
        return SavedSequence(
            file,
            int(info.bits),
            info.bundle.decode(errors="replace"),
            info.engine.decode(errors="replace"),
            int(info.adapter),
            [ids[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)] if len(ends) else [],
            _ids(info.uncached, info.uncached_count),
            ctypes.string_at(info.note, info.note_bytes) if info.note_bytes else b"",
        )
    finally:
        library.ek_saved_close(handle)


def _ids(address: int | None, count: int) -> Ids:
    return array(address, (count,), np.int64).copy() if count else np.empty(0, np.int64)
