"""The native core's flash file and ring as Python objects, through the testing library."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pytest

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.reader import FlashFile
from support.native_testing import library

# ek_status values of edgekit.h
INVALID_ARGUMENT, OUT_OF_MEMORY, OPEN_FAILED, READ_FAILED, TRUNCATED_FILE = 1, 3, 4, 5, 6
FILE_CHANGED, CHECKSUM_MISMATCH, MALFORMED_FILE = 7, 8, 9
BUDGET_EXCEEDED, STOPPED, INTERNAL = 12, 14, 16

OnRead = Callable[[int, int], int | None]
EVERYTHING = 2**63 - 1
_OnRead = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64)


class NativeError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Statistics(NamedTuple):
    bytes_read: int
    runs_read: int
    fallbacks: int
    short_reads: int
    interrupts: int
    verify_seconds: float


class RingStatistics(NamedTuple):
    bytes_read: int
    runs_read: int
    bytes_skipped: int
    fallbacks: int
    read_seconds: float
    wait_seconds: float


def call(name: str, *arguments: Any) -> None:
    """Call an `ekt_*` function that returns a status. Raises NativeError."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise NativeError(status, text("ekt_reading_error"))


def text(name: str, *arguments: Any) -> str:
    function = getattr(library(), name)
    function.restype = ctypes.c_char_p
    answer = function(*arguments)
    assert isinstance(answer, bytes)
    return answer.decode()


class NativeFile:
    """FlashFile of flash_file.h. `on_read(offset, nbytes)` is called around every read: it may wait, and
    returns a negative errno value, the most bytes that the read may report, or None."""

    def __init__(
        self,
        path: Path,
        *,
        direct: bool = True,
        io_uring: bool = True,
        threads: int = 4,
        chunk_bytes: int = 4 << 20,
        on_read: OnRead | None = None,
        refuse: int = 0,
        uring_enters: int = -1,
    ) -> None:
        self.on_read = on_read
        self._handle = ctypes.c_void_p()
        self._hook = _OnRead(self._called)  # lives as long as the file
        call(
            "ekt_flash_open",
            str(path).encode(),
            ctypes.c_int32(threads),
            ctypes.c_uint64(chunk_bytes),
            ctypes.c_int32(direct),
            ctypes.c_int32(io_uring),
            self._hook,
            ctypes.c_uint32(refuse),
            ctypes.c_int32(uring_enters),
            ctypes.byref(self._handle),
        )

    def _called(self, offset: int, nbytes: int) -> int:
        answer = self.on_read(offset, nbytes) if self.on_read else None
        return EVERYTHING if answer is None else answer

    @property
    def handle(self) -> ctypes.c_void_p:
        return self._handle

    @property
    def io_mode(self) -> str:
        return text("ekt_flash_io_mode", self._handle)

    @property
    def statistics(self) -> Statistics:
        counts, seconds = (ctypes.c_uint64 * 5)(), ctypes.c_double()
        library().ekt_flash_statistics(self._handle, counts, ctypes.byref(seconds))
        return Statistics(*counts, seconds.value)

    def read_into(self, run: str, buffer: memoryview) -> None:
        place = ctypes.byref(ctypes.c_char.from_buffer(buffer))
        call("ekt_flash_read", self._handle, run.encode(), place)

    def read(self, run: str, length: int) -> bytes:
        buffer = AlignedBuffer(length)
        self.read_into(run, buffer.view)
        return bytes(buffer.view)

    def verify(self, run: str) -> None:
        call("ekt_flash_verify", self._handle, run.encode())

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        out = ctypes.create_string_buffer(max(nbytes, 1))
        call("ekt_flash_read_bytes", self._handle, ctypes.c_uint64(offset), ctypes.c_uint64(nbytes), out)
        return out.raw[:nbytes]

    def close(self) -> None:
        library().ekt_flash_close(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> NativeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NativeRing:
    """Ring of ring.h. A taken run is its address."""

    def __init__(self, file: NativeFile, nbytes: int) -> None:
        self._file = file
        self._handle = ctypes.c_void_p()
        call("ekt_ring_open", file.handle, ctypes.c_uint64(nbytes), ctypes.byref(self._handle))

    @property
    def capacity(self) -> int:
        function = library().ekt_ring_capacity
        function.restype = ctypes.c_uint64
        return int(function(self._handle))

    @property
    def statistics(self) -> RingStatistics:
        counts, seconds = (ctypes.c_uint64 * 4)(), (ctypes.c_double * 2)()
        library().ekt_ring_statistics(self._handle, counts, seconds)
        return RingStatistics(*counts, *seconds)

    def schedule(self, runs: Sequence[str]) -> None:
        self._call_with("ekt_ring_schedule", runs)

    def next(self, count: int) -> list[str]:
        return text("ekt_ring_next", self._handle, ctypes.c_uint64(count)).split()

    def skip(self, runs: Sequence[str]) -> None:
        self._call_with("ekt_ring_skip", runs)

    def take(self, run: str) -> int:
        data = ctypes.c_void_p()
        call("ekt_ring_take", self._handle, self._file.handle, run.encode(), ctypes.byref(data))
        assert data.value is not None
        return data.value

    def ready(self, run: str) -> bool:
        return bool(library().ekt_ring_ready(self._handle, self._file.handle, run.encode()))

    def _call_with(self, name: str, runs: Sequence[str]) -> None:
        names = (ctypes.c_char_p * len(runs))(*[run.encode() for run in runs])
        call(name, self._handle, self._file.handle, names, ctypes.c_uint64(len(runs)))

    def release(self, data: int) -> None:
        call("ekt_ring_release", self._handle, ctypes.c_void_p(data))

    def cancel(self) -> None:
        library().ekt_ring_cancel(self._handle)

    def check_integrity(self) -> None:
        assert text("ekt_ring_inconsistency", self._handle) == ""

    def close(self) -> None:
        library().ekt_ring_close(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> NativeRing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- what the tests share --------------------------------------------------------------------------------

WAYS = [
    pytest.param({"direct": direct, "io_uring": io_uring}, id=f"{'direct' if direct else 'buffered'}-{name}")
    for direct in (True, False)
    for io_uring, name in ((True, "uring"), (False, "pool"))
]
Way = dict[str, bool]


def span(path: Path, run: str) -> tuple[int, int]:
    """Offset and length of a run."""
    with FlashFile(path) as file:
        found = file.run(run)
    return found.offset, found.length


@contextlib.contextmanager
def refused(status: int, message: str) -> Iterator[None]:
    with pytest.raises(NativeError, match=message) as caught:
        yield
    assert caught.value.status == status
    assert "\n" not in str(caught.value)
