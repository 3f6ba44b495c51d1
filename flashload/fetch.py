"""A bundle on its way to a folder: the `ek_fetch_` functions of `edgekit.h`.

The core says which bytes to ask for, and compares what comes; who asks is a transport, such as
`edgekit.runtime.fetch`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from edgekit.flashload import _native
from edgekit.flashload.errors import Cancelled
from edgekit.flashload.structs import FetchInfoStruct, FetchOptionsStruct, FetchRequestStruct, texts

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_fetch_open": (c_char_p, POINTER(FetchOptionsStruct), POINTER(c_void_p)),
    "ek_fetch_next": (c_void_p, POINTER(c_int32), POINTER(FetchRequestStruct)),
    "ek_fetch_answer": (c_void_p, c_uint64, c_int32, c_char_p),
    "ek_fetch_write": (c_void_p, c_uint64, c_char_p, c_uint64),
    "ek_fetch_end": (c_void_p, c_uint64, c_char_p),
    "ek_fetch_return": (c_void_p, c_uint64),
    "ek_fetch_get_info": (c_void_p, POINTER(FetchInfoStruct)),
    "ek_fetch_finish": (c_void_p,),
    "ek_fetch_discard": (c_void_p,),
}


class Step(IntEnum):
    """What comes next."""

    ASK = 0
    WORKING = 1
    WAIT = 2
    READY = 3


@dataclass(frozen=True)
class Request:
    """Bytes to ask a source for: `nbytes` from `offset` of the file `name` below its address; 0 stands for
    the whole file, without a Range header. `size` is that of the file, 0 where it is not known. After
    `wait_s` it is sent; within `patience_s` the answer has to begin, and `least_bytes_s` come a second.
    """

    id: int
    source: int
    name: str
    offset: int
    nbytes: int
    size: int
    wait_s: float
    patience_s: float
    least_bytes_s: int


@dataclass(frozen=True)
class Progress:
    """How far it is, in bytes: of the bundle (0 until its manifest has come), compared, and waiting for the
    rest of their run; given by sources, copied from the bundle that was there, and left by an earlier fetch.
    `damaged` counts runs and files that came with other bytes; `current` tells that the folder had the bundle
    already. Of several bundles `chosen` is the path of the one that is taken, empty before that is known, and
    `kept_format` tells that the bundle in the folder had its format.
    """

    total: int
    whole: int
    arrived: int
    fetched: int
    copied: int
    found: int
    damaged: int
    current: bool
    chosen: str
    kept_format: bool


def arriving_folder(folder: str | Path) -> Path:
    """Where what a fetch brings to `folder` lies until it is whole. Raises OpenFailed for what is no path."""
    return Path(f"{os.path.realpath(os.fsdecode(_native.path_bytes(folder)))}.arriving")


class Fetch:
    """Brings a bundle from `sources`, whose names are for messages, to a folder. Of several bundles it takes
    the first whose format is one of `formats` (none: any) and that runs on `system`, a name and a version.
    With `only_formats` a bundle that is alone has to be of one of them too. With `keep_format` that one of
    several comes first whose format the bundle in the folder has.

    Safe to use from several threads, each of which has its own requests. Raises InvalidRequest, OpenFailed,
    WriteFailed, or NativeError where the core cannot be used. Its methods raise FetchFailed, ChecksumMismatch
    and other BundleErrors, WriteFailed and UnsupportedBundle, and then the same again.
    """

    def __init__(
        self,
        folder: str | Path,
        sources: Sequence[str],
        *,
        sha256: str | None = None,
        formats: Sequence[str] = (),
        system: tuple[str, str] | None = None,
        request_bytes: int = 0,
        compare: bool = False,
        only_formats: bool = False,
        keep_format: bool = False,
    ) -> None:
        library = self._library = _native.functions(_SIGNATURES, "ek_fetch_close")
        options = FetchOptionsStruct(
            source_count=len(sources),
            sources=texts(sources),
            sha256=None if sha256 is None else sha256.encode(errors="replace"),
            format_count=len(formats),
            formats=texts(formats),
            compare=compare,
            system=system[0].encode() if system else None,
            system_version=system[1].encode() if system else None,
            request_bytes=request_bytes,
            only_formats=only_formats,
            keep_format=keep_format,
        )
        handle = c_void_p()
        _native.check(library.ek_fetch_open(_native.path_bytes(folder), byref(options), byref(handle)))
        self._handle = handle.value
        self._close = weakref.finalize(self, library.ek_fetch_close, handle.value)

    def next(self) -> tuple[Step, Request | None]:
        """What comes next, and the request for `Step.ASK`. Compares what is here already, part by part."""
        step, found = c_int32(), FetchRequestStruct()
        _native.check(self._library.ek_fetch_next(self._handle, byref(step), byref(found)))
        if step.value != Step.ASK:
            return Step(step.value), None
        return Step.ASK, Request(
            id=found.id,
            source=found.source,
            name=found.name.decode(),
            offset=found.offset,
            nbytes=found.bytes,
            size=found.size,
            wait_s=found.wait_milliseconds / 1000,
            patience_s=found.patience_milliseconds / 1000,
            least_bytes_s=found.least_bytes_per_second,
        )

    def answer(self, request: Request, status: int, content_range: str | None) -> None:
        """Take the head of an HTTP answer. Raises FetchFailed where it is of no use: the request is over."""
        header = (
            None if content_range is None else content_range.encode(errors="replace").replace(b"\0", b"?")
        )
        _native.check(self._library.ek_fetch_answer(self._handle, request.id, status, header))

    def write(self, request: Request, data: bytes) -> bool:
        """Take the next bytes. False: no more of this request are needed, and it is over."""
        try:
            _native.check(self._library.ek_fetch_write(self._handle, request.id, data, len(data)))
        except Cancelled:
            return False
        return True

    def end(self, request: Request, why: str | None = None) -> None:
        """No more bytes come: the answer has ended, or `why` it has not."""
        text = None if why is None else why.encode(errors="replace").replace(b"\0", b"?")
        _native.check(self._library.ek_fetch_end(self._handle, request.id, text))

    def give_back(self, request: Request) -> None:
        """Not sent, or not to its end, for no reason of its source: what it lacks is asked for again."""
        _native.check(self._library.ek_fetch_return(self._handle, request.id))

    @property
    def progress(self) -> Progress:
        """How far it is."""
        info = self._info()
        return Progress(
            total=info.total_bytes,
            whole=info.whole_bytes,
            arrived=info.arrived_bytes,
            fetched=info.fetched_bytes,
            copied=info.copied_bytes,
            found=info.found_bytes,
            damaged=info.damaged,
            current=bool(info.current),
            chosen=(info.chosen or b"").decode(),
            kept_format=bool(info.kept_format),
        )

    @property
    def arriving(self) -> Path:
        """The folder with what has arrived."""
        return Path((self._info().arriving or b"").decode())

    def finish(self) -> None:
        """Put the bundle in its place. Raises InvalidRequest before `Step.READY`."""
        _native.check(self._library.ek_fetch_finish(self._handle))

    def discard(self) -> None:
        """Remove what has arrived; nothing but `close` may follow."""
        _native.check(self._library.ek_fetch_discard(self._handle))

    def close(self) -> None:
        """End it; what has arrived stays. No other call may be under way or follow."""
        self._close()

    def _info(self) -> FetchInfoStruct:
        info = FetchInfoStruct()
        _native.check(self._library.ek_fetch_get_info(self._handle, byref(info)))
        return info
