"""The files of a bundle, read through the native core, which compares each with the manifest before it gives
it; see "Bundles" in `edgekit.h`.

A file that the manifest does not list cannot be read. Files must be regular ones; symbolic links are followed
to files of the same folder, and from a snapshot in Hugging Face's cache to its blobs.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from ctypes import POINTER, byref, c_char_p, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from edgekit.flashload import _native
from edgekit.flashload.errors import OpenFailed
from edgekit.flashload.names import either, nearest
from edgekit.flashload.reader import FlashFile

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_bundle_open": (c_char_p, POINTER(c_void_p)),
    "ek_bundle_manifest": (c_void_p, POINTER(c_void_p), POINTER(c_uint64)),
    "ek_bundle_read_file": (c_void_p, c_char_p, c_void_p, c_uint64, POINTER(c_uint64)),
    "ek_bundle_check_file": (c_void_p, c_char_p),
    "ek_bundle_open_weights": (c_void_p, POINTER(c_void_p)),
    "ek_folder_read_file": (c_char_p, c_char_p, c_void_p, c_uint64, POINTER(c_uint64)),
    "ek_folder_check_file": (c_char_p, c_char_p, c_uint64, c_uint64),
}


_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_bytes_address = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


#: Bundles that a message names.
_MOST_NAMED = 3


def _library() -> ctypes.CDLL:
    return _native.functions(_SIGNATURES, "ek_bundle_close")


class BundleFolder:
    """A bundle whose manifest was checked. Safe to use from several threads.

    Raises OpenFailed, ReadFailed, ChecksumMismatch, MalformedFile, UnsupportedVersion, UnsupportedBundle for
    a folder of several bundles, or NativeError where the core cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        library = self._library = _library()
        handle = c_void_p()
        try:
            _native.check(library.ek_bundle_open(_native.path_bytes(path), byref(handle)))
        except OpenFailed as error:
            meant = _bundles_near(self.path)
            if not meant:
                raise
            raise OpenFailed(f"{error}; did you mean {meant}?") from None
        self._handle = handle.value
        weakref.finalize(self, library.ek_bundle_close, handle.value)

    def manifest(self) -> bytes:
        """The manifest as it was checked."""
        text, size = c_void_p(), c_uint64()
        _native.check(self._library.ek_bundle_manifest(self._handle, byref(text), byref(size)))
        return ctypes.string_at(text.value or 0, size.value)

    def read(self, name: str) -> bytes:
        """The bytes of a listed file.

        Raises InvalidRequest for one that is not listed, OpenFailed, ReadFailed, TruncatedFile, MalformedFile
        or ChecksumMismatch.
        """
        encoded, size = _native.path_bytes(name), c_uint64()
        _native.check(self._library.ek_bundle_read_file(self._handle, encoded, None, 0, byref(size)))
        # Filled before anybody else sees it: zeroing and copying 30 MB takes longer than comparing them.
        data: bytes = _new_bytes(None, size.value)
        place = _bytes_address(data)
        _native.check(self._library.ek_bundle_read_file(self._handle, encoded, place, size, byref(size)))
        return data

    def check(self, name: str) -> None:
        """Compare a listed file, for what opens it by its path; of the weights their header.

        Raises as `read`.
        """
        _native.check(self._library.ek_bundle_check_file(self._handle, _native.path_bytes(name)))

    def open_weights(self) -> FlashFile:
        """The flash file, its header compared.

        Raises as `read`, and as FlashFile.
        """
        file = c_void_p()
        _native.check(self._library.ek_bundle_open_weights(self._handle, byref(file)))
        return FlashFile.of_handle(file)


def _bundles_near(path: Path) -> str:
    """Bundles, and sets of some, that a path which is none may have been meant to be: those whose names come
    near where nothing is there, else those in it, or the one that it lies in. Empty for none.
    """
    try:
        if not path.exists():
            return nearest(path.name, [each.name for each in _bundles_in(path.parent)])
        if found := [str(each) for each in _bundles_in(path)] if path.is_dir() else []:
            more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
            named = [*found[:_MOST_NAMED], *more]
            return either(named)
        around = [each for each in Path(os.path.abspath(path)).parents if _holds_bundles(each)]
    except OSError:
        return ""
    if not around:
        return ""
    near = os.path.relpath(around[0])
    return str(around[0]) if path.is_absolute() or near.startswith(os.curdir) else near


def _bundles_in(folder: Path) -> list[Path]:
    """The folders just below that hold a bundle or a set."""
    return sorted(each for each in folder.iterdir() if _holds_bundles(each))


def _holds_bundles(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in ("edgekit.json", "bundles.json"))


def read_folder_file(folder: str | Path, name: str, most_bytes: int) -> bytes:
    """A file that no manifest lists, such as bundles.json, with the same care for links; not compared.

    Raises OpenFailed, ReadFailed, or MalformedFile for one of more than `most_bytes`.
    """
    library = _library()
    room, size = bytearray(most_bytes), c_uint64()
    place = byref(ctypes.c_char.from_buffer(room))
    where, encoded = _native.path_bytes(folder), _native.path_bytes(name)
    _native.check(library.ek_folder_read_file(where, encoded, place, most_bytes, byref(size)))
    return bytes(memoryview(room)[: size.value])


def check_folder_file(folder: str | Path, name: str, size: int, xxh3: str) -> None:
    """Compare a file that no manifest lists with what something else says of it.

    Raises as BundleFolder.read.
    """
    library = _library()
    where, encoded = _native.path_bytes(folder), _native.path_bytes(name)
    _native.check(library.ek_folder_check_file(where, encoded, size, int(xxh3, 16)))
