"""Reading a flash file, through the native core: whole runs in parallel past the page cache, each verified
when it is first read; see "Flash files" in `edgekit.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char, c_char_p, c_int64, c_uint64, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgekit.flashload import _native
from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.format import STORAGE_DTYPES, Layout, Run, Segment, TensorSlot
from edgekit.flashload.owner_process import OwnerProcess
from edgekit.flashload.structs import FlashInfoStruct, PartStruct, RunStruct, TensorStruct

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_flash_open": (c_char_p, POINTER(c_void_p)),
    "ek_flash_get_info": (c_void_p, POINTER(FlashInfoStruct)),
    "ek_flash_get_run": (c_void_p, c_int64, POINTER(RunStruct)),
    "ek_flash_find_run": (c_void_p, c_char_p, POINTER(c_uint64), POINTER(c_int64)),
    "ek_flash_get_part": (c_void_p, c_char_p, c_int64, POINTER(PartStruct)),
    "ek_flash_get_tensor": (c_void_p, c_char_p, c_int64, POINTER(TensorStruct)),
    "ek_flash_get_tensor_name": (c_void_p, c_char_p, c_int64, POINTER(c_char_p)),
    "ek_flash_read_run": (c_void_p, c_char_p, c_void_p, c_uint64),
    "ek_flash_verify_run": (c_void_p, c_char_p),
    "ek_flash_read_part": (c_void_p, c_char_p, c_uint64, c_uint64, c_void_p),
}


class FlashFile:
    """An open flash file. Opening reads and validates the header alone. Safe to use from several threads; in
    a child of fork its calls raise InvalidRequest: the threads that read stay in the parent.

    Raises OpenFailed, ReadFailed, UnsupportedVersion, MalformedFile, TruncatedFile, or NativeError where the
    core cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        handle = c_void_p()
        _native.check(_library().ek_flash_open(_native.path_bytes(path), byref(handle)))
        self._take(handle)

    @classmethod
    def of_handle(cls, handle: c_void_p) -> FlashFile:
        """Over an `ek_flash_file` that the core has opened, which it takes over."""
        file = cls.__new__(cls)
        file._take(handle)
        return file

    def _take(self, handle: c_void_p) -> None:
        self._library, self._handle = _library(), handle.value
        self._process = OwnerProcess()
        self._idle = threading.Condition()
        self._closed, self._calls = False, set[object]()
        self._close = weakref.finalize(self, self._library.ek_flash_close, self._handle)
        # At the end of the process a daemon thread may still be reading.
        self._close.atexit = False
        info = FlashInfoStruct()
        _native.check(self._library.ek_flash_get_info(self._handle, byref(info)))
        self.path = Path(os.fsdecode(info.path))
        #: How runs are read: "direct io_uring", "buffered pread: the file system refuses O_DIRECT (...)", ...
        self.io_mode: str = info.io_mode.decode()
        packed = bool(info.packed)
        runs = tuple(_run(self._library, self._handle, i, packed) for i in range(info.runs))
        self.layout = Layout(runs, info.header_bytes, info.bytes, info.plan.decode(errors="replace"))
        self.runs: dict[str, Run] = {run.name: run for run in runs}
        self.tensors: dict[str, tuple[Run, TensorSlot]] = {
            slot.name: (run, slot) for run in runs for slot in run.tensors
        }

    def run(self, name: str) -> Run:
        """The run of that name. Raises InvalidRequest."""
        if name not in self.runs:
            with self._open() as handle:  # which says what there is
                _native.check(self._library.ek_flash_find_run(handle, _encoded(name), None, None))
        return self.runs[name]

    def read_into(self, run: Run | str, buffer: Any) -> None:
        """Read a run into the first `run.length` bytes of a writable buffer: past the page cache where that
        begins at a page (`AlignedBuffer`). Verified on the first read.

        Raises ReadFailed, TruncatedFile, FileChanged or ChecksumMismatch; the buffer is then useless.
        InvalidRequest for a buffer that is too small, read-only or not contiguous, or a closed file.
        """
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise InvalidRequest(f"run {_name(run)} needs a buffer that is writable and contiguous")
        # The view of ctypes keeps the memory where it is during the call.
        place = byref(c_char.from_buffer(view)) if view.nbytes else None
        with self._open() as handle:
            _native.check(self._library.ek_flash_read_run(handle, _encoded(run), place, view.nbytes))

    def load(self, run: Run | str) -> tuple[AlignedBuffer, dict[str, np.ndarray]]:
        """Read a run into memory of its own: for what stays there. The views keep the memory alive."""
        run = self.run(_name(run))
        buffer = AlignedBuffer(run.length)
        try:
            self.read_into(run, buffer.view)
        except BaseException:
            buffer.close()
            raise
        return buffer, tensor_views(run, buffer.view)

    def verify(self, run: Run | str) -> None:
        """Check a run's bytes in constant memory (a few MiB). Raises like `read_into`."""
        with self._open() as handle:
            _native.check(self._library.ek_flash_verify_run(handle, _encoded(run)))

    def read_rows(self, tensor: str, first: int = 0, count: int | None = None) -> np.ndarray:
        """A copy of `count` rows along axis 0 from `first` on, or of all that follow: [count, *shape[1:]].

        Rows are exact in length but are only as verified as their run: call `verify(run)` first where that
        matters. Raises InvalidRequest for unknown tensors and rows, and the errors of `read_into`.
        """
        if tensor not in self.tensors:
            raise InvalidRequest(f"{self.path}: has no tensor named {tensor!r}")
        run, slot = self.tensors[tensor]
        if not slot.shape:
            raise InvalidRequest(f"tensor {tensor}: a scalar has no rows")
        have = slot.shape[0]
        count = have - first if count is None else count
        if not 0 <= first <= first + count <= have:
            raise InvalidRequest(f"tensor {tensor}: {count} rows from {first} on are not among its {have}")
        rows = np.empty((count, *slot.shape[1:]), STORAGE_DTYPES[slot.dtype])
        start = slot.offset_in_run + first * (slot.nbytes // have)
        with self._open() as handle:
            _native.check(
                self._library.ek_flash_read_part(handle, _encoded(run), start, rows.nbytes, rows.ctypes.data)
            )
        return rows

    @contextlib.contextmanager
    def _open(self) -> Iterator[int | None]:
        """The handle, which stays open meanwhile."""
        # First: another thread may have held the lock when this process was forked.
        self._process.check(str(self.path))
        call = object()  # no count, which an interruption on the way could leave wrong
        try:
            with self._idle:
                if self._closed:
                    raise InvalidRequest(f"{self.path}: is closed")
                self._calls.add(call)
            yield self._handle
        finally:
            self._calls.discard(call)
            with self._idle:
                self._idle.notify_all()

    def close(self) -> None:
        """Wait for reads under way, then close. Buffers and views stay valid."""
        if not self._process.here:
            return
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._calls)
        self._close()  # once, whoever comes first

    def __enter__(self) -> FlashFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tensor_views(run: Run, buffer: Any) -> dict[str, np.ndarray]:
    """Read-only arrays over a buffer that holds the run from its first byte; no copy.

    BF16 comes as uint16 and F8 as uint8 bit patterns. Raises InvalidRequest when the buffer is too small.
    """
    available = memoryview(buffer).nbytes
    if available < run.length:
        raise InvalidRequest(f"run {run.name} needs {run.length} bytes, the buffer has {available}")
    views: dict[str, np.ndarray] = {}
    for slot in run.tensors:
        dtype = STORAGE_DTYPES[slot.dtype]
        flat = np.frombuffer(buffer, dtype, slot.nbytes // dtype.itemsize, slot.offset_in_run)
        flat.flags.writeable = False
        views[slot.name] = flat.reshape(slot.shape)
    return views


def _library() -> ctypes.CDLL:
    return _native.functions(_SIGNATURES, "ek_flash_close")


def _name(run: Run | str) -> str:
    return run if isinstance(run, str) else run.name


def _encoded(run: Run | str) -> bytes:
    """The name as the library takes it; one that it cannot have taken from a file stays another name."""
    return _name(run).encode(errors="backslashreplace").replace(b"\0", b"\\0")


def _run(library: ctypes.CDLL, handle: int | None, index: int, packed: bool) -> Run:
    found, part, tensor, full = RunStruct(), PartStruct(), TensorStruct(), c_char_p()
    _native.check(library.ek_flash_get_run(handle, index, byref(found)))
    name, parts, tensors = found.name, list[Segment](), list[TensorSlot]()
    for i in range(found.parts):
        _native.check(library.ek_flash_get_part(handle, name, i, byref(part)))
        parts.append(Segment(part.offset, part.place, part.bytes, f"{part.xxh3:016x}"))
    for i in range(found.tensors):
        _native.check(library.ek_flash_get_tensor(handle, name, i, byref(tensor)))
        _native.check(library.ek_flash_get_tensor_name(handle, name, i, byref(full)))
        own, shape = (full.value or b"").decode(), tuple(tensor.shape[: tensor.rank])
        tensors.append(TensorSlot(own, tensor.dtype.decode(), shape, tensor.offset, tensor.bytes))
    digests = "".join(each.xxh3 for each in parts)
    segments = tuple(parts) if packed else ()
    return Run(name.decode(), found.offset, found.bytes, digests, tuple(tensors), segments)
