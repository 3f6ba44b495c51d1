"""The native core: finds the shared library, checks its ABI and gives its functions Python types.

The library implements `native/include/edgekit.h`. It is loaded with ctypes, so that one build serves every
Python version, and calls into it release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgekit.flashload import errors
from edgekit.flashload.errors import EdgekitError

ABI_VERSION: Final = 3
"""`EK_ABI_VERSION` of the header that this module was written for."""

LIBRARY_VARIABLE: Final = "EDGEKIT_CORE_LIB"
"""Environment variable that holds the path of a library to load in place of the installed one."""

_OK: Final = 0
_BUFFER_TOO_SMALL: Final = 2
_FEATURES_SIZE: Final = 256


class NativeError(EdgekitError):
    """The native core cannot be used."""


class NativeMissing(NativeError):
    """There is no library file: the installation is incomplete, or the given path is wrong."""


class NativeUnloadable(NativeError):
    """The library file exists, but the system's loader refuses it or it is another library."""


class NativeAbiMismatch(NativeError):
    """The library was built from another version of the header."""


class NativeCallFailed(NativeError):
    """A function of the library answered with an error status."""


@dataclass(frozen=True)
class NativeCore:
    """The loaded library. Its methods may be called from any thread."""

    path: Path
    library: ctypes.CDLL

    @property
    def version(self) -> str:
        """Release of the library, such as `0.1.0`."""
        text: bytes = self.library.ek_version()
        return text.decode()

    def status_message(self, status: int) -> str:
        """The library's line of English about `status`."""
        text: bytes = self.library.ek_status_message(status)
        return text.decode()

    def cpu_features(self) -> tuple[str, ...]:
        """Instruction set extensions that this process may use; the header lists the names and their order.

        Raises NativeCallFailed when the library refuses the call.
        """
        size = _FEATURES_SIZE
        while True:
            buffer = ctypes.create_string_buffer(size)
            status: int = self.library.ek_cpu_features(buffer, size)
            if status == _BUFFER_TOO_SMALL:  # a later library may know more names
                size *= 2
                continue
            if status != _OK:
                raise NativeCallFailed(f"{self.path}: ek_cpu_features: {self.status_message(status)}")
            return tuple(buffer.value.decode().split())


def library_name() -> str:
    """File name of the library on this operating system."""
    if sys.platform == "win32":
        return "edgekit_core.dll"
    return "libedgekit_core.dylib" if sys.platform == "darwin" else "libedgekit_core.so"


def library_path() -> Path:
    """Find the library: the path in `EDGEKIT_CORE_LIB`, else beside this package.

    Raises NativeMissing when there is no such file.
    """
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        path = Path(override)
        if not path.is_file():
            raise NativeMissing(f"{LIBRARY_VARIABLE}={override}: no such file; correct the path or unset it")
        return path.resolve()
    return installed_library()


@functools.cache  # finding it takes longer than a short call into it
def installed_library() -> Path:
    """The library that edgekit's installation brings, whatever `EDGEKIT_CORE_LIB` says.

    Raises NativeMissing when there is none.
    """
    # Through importlib.resources and not __file__: an editable install keeps the library in site-packages and
    # the modules in the source tree.
    resource = importlib.resources.files("edgekit.flashload") / library_name()
    if isinstance(resource, Path) and resource.is_file():
        return resource
    raise NativeMissing(
        f"edgekit's native library {library_name()} is missing: this is a source tree, or the installation "
        "is incomplete; install edgekit with pip (from source this takes a C++17 compiler), or set "
        f"{LIBRARY_VARIABLE} to a library that you built"
    )


# Threads that come first at once must get one library: types declared on one object are unknown to another.
_LOADING: Final = threading.RLock()


def load() -> NativeCore:
    """Returns the native core, loaded once per path.

    Raises NativeMissing, NativeUnloadable or NativeAbiMismatch, each with what to do about it.
    """
    with _LOADING:
        return _load(library_path())


@functools.cache
def _load(path: Path) -> NativeCore:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnloadable(
            f"{path} cannot be loaded ({error}); reinstall edgekit on this machine so that it is built for it"
        ) from error
    try:
        abi_version = library.ek_abi_version
    except AttributeError as error:
        raise NativeUnloadable(f"{path} is not edgekit's native library: it has no ek_abi_version") from error
    abi_version.argtypes = []
    abi_version.restype = ctypes.c_uint32
    found = int(abi_version())
    if found != ABI_VERSION:
        raise NativeAbiMismatch(
            f"{path} has ABI version {found}, this edgekit needs {ABI_VERSION}; reinstall edgekit, or "
            f"rebuild the library that {LIBRARY_VARIABLE} names"
        )
    try:
        _declare(library)
    except AttributeError as error:
        raise NativeUnloadable(f"{path} is incomplete ({error}); reinstall edgekit") from error
    return NativeCore(path, library)


def _declare(library: ctypes.CDLL) -> None:
    """Sets the signatures of `edgekit.h`; ctypes would pass a size_t as an int without them."""
    library.ek_version.argtypes = []
    library.ek_version.restype = ctypes.c_char_p
    library.ek_status_message.argtypes = [ctypes.c_int32]
    library.ek_status_message.restype = ctypes.c_char_p
    library.ek_cpu_features.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.ek_cpu_features.restype = ctypes.c_int32
    library.ek_last_error.argtypes = []
    library.ek_last_error.restype = ctypes.c_char_p
    library.ek_last_error_bytes.argtypes = []
    library.ek_last_error_bytes.restype = ctypes.c_uint64
    library.ek_last_error_segment.argtypes = []
    library.ek_last_error_segment.restype = ctypes.c_int64


#: What was declared, by the path of the library and the function that closes the handle, or the first one.
_declared: set[tuple[Path, str]] = set()


def functions(signatures: Mapping[str, Sequence[Any]], closes: str | None = None) -> ctypes.CDLL:
    """The library with types of arguments declared for functions that return a status, and for the one that
    closes their handle, if they have one.

    Raises the errors of `load`, and NativeUnloadable for a library that lacks one of them.
    """
    core = load()
    key = core.path, closes or next(iter(signatures))
    if key in _declared:
        return core.library
    with _LOADING:
        try:
            for name, arguments in signatures.items():
                function = getattr(core.library, name)
                function.argtypes, function.restype = arguments, ctypes.c_int32
            if closes is not None:
                close = getattr(core.library, closes)
                close.argtypes, close.restype = (ctypes.c_void_p,), None
        except AttributeError as error:
            raise NativeUnloadable(f"{core.path} is incomplete ({error}); reinstall edgekit") from error
        _declared.add(key)
    return core.library


_BUDGET_EXCEEDED: Final = 12
#: Error classes by status. Other statuses are faults of the library or of its caller: NativeCallFailed.
_ERRORS: Final[Mapping[int, type[EdgekitError]]] = {
    1: errors.InvalidRequest,
    3: errors.OutOfMemory,
    4: errors.OpenFailed,
    5: errors.ReadFailed,
    6: errors.TruncatedFile,
    7: errors.FileChanged,
    8: errors.ChecksumMismatch,
    9: errors.MalformedFile,
    10: errors.UnsupportedVersion,
    11: errors.UnsupportedBundle,
    14: errors.Cancelled,
    15: errors.InvalidRequest,
    20: errors.WriteFailed,
    21: errors.FetchFailed,
}


def check(status: int, further: Mapping[int, type[EdgekitError]] | None = None) -> None:
    """Raise the error class of a status that the last call on this thread gave, with its message; `further`
    classes are the caller's own.
    """
    if status == _OK:
        return
    core = load()
    message = (core.library.ek_last_error() or b"").decode(errors="replace") or core.status_message(status)
    if status == _BUDGET_EXCEEDED:
        error: EdgekitError = errors.BudgetExceeded(message, int(core.library.ek_last_error_bytes()))
    else:
        error = {**_ERRORS, **(further or {})}.get(status, NativeCallFailed)(message)
    segment = int(core.library.ek_last_error_segment())
    error.segment = segment if segment >= 0 else None
    try:
        raise error
    finally:
        del error  # its traceback has this frame, so the two would keep each other, and what callers held


def path_bytes(path: str | Path) -> bytes:
    """A path as the library takes it. Raises OpenFailed for one that it would cut short."""
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError:
        raise errors.OpenFailed(f"the path {str(path)!r} is no text; check the path") from None
    if b"\0" in data:
        raise errors.OpenFailed("the path holds a null byte; check the path")
    return data
