"""Reading a flash file: header first, then whole runs in parallel, each verified when first read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from edgekit.flashload.blockio import DIRECT_ALIGNMENT, BlockFile, IoStats, Preadv
from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import Cancelled, ChecksumMismatch, InvalidRequest
from edgekit.flashload.format import (
    RUN_ALIGNMENT,
    STORAGE_DTYPES,
    Layout,
    Run,
    TensorSlot,
    tensor_views,
)
from edgekit.flashload.header import PREFIX_BYTES, header_length, parse_header
from edgekit.flashload.owner_process import OwnerProcess

_ROW_GAP_BYTES = 16 * 1024  # reading this much too much costs less than one more request
_ROW_SPAN_BYTES = 1 << 20


class PendingRead:
    """A run on its way into a buffer. The buffer must stay alive until `wait()` returned or raised."""

    def __init__(self, run: Run, chunks: int, on_done: Callable[[PendingRead], None] | None) -> None:
        self.run = run
        self.error: BaseException | None = None
        self._chunks_left = chunks
        self._on_done = on_done
        self._lock = threading.Lock()
        self._finished = threading.Event()

    def cancel(self) -> None:
        """Skip the parts that no thread has begun; `wait()` raises Cancelled if any were skipped."""
        self._fail(Cancelled(f"the read of run {self.run.name} was cancelled"))

    def wait(self) -> None:
        """Block until nothing writes to the buffer any more. Raises the error of the first bad part."""
        self._finished.wait()
        if self.error is not None:
            raise self.error

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None and not self._finished.is_set():
                self.error = error

    def _chunk_ended(self) -> bool:
        with self._lock:
            self._chunks_left -= 1
            return self._chunks_left == 0

    def _finish(self) -> None:
        with self._lock:
            self._finished.set()
        if self._on_done is not None:
            self._on_done(self)


class FlashFile:
    """An open flash file. Opening reads and validates the header alone. Safe to use from several threads.

    `threads` reads of `chunk_bytes` are in flight at a time; buffers at page boundaries (`AlignedBuffer`) are
    read past the page cache. `preadv` replaces os.preadv for all reads but the O_DIRECT probe. `header`: how
    many bytes come before the first run, and their XXH3-64, which is compared before they are parsed.

    Raises OpenFailed, NotAFlashFile, UnsupportedVersion, MalformedFile, TruncatedFile, ChecksumMismatch.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int = 4,
        chunk_bytes: int = 4 << 20,
        direct: bool = True,
        preadv: Preadv | None = None,
        header: tuple[int, str] | None = None,
    ) -> None:
        if threads < 1 or chunk_bytes < RUN_ALIGNMENT or chunk_bytes % RUN_ALIGNMENT:
            raise InvalidRequest(
                f"threads must be at least 1 and chunk_bytes a multiple of {RUN_ALIGNMENT}, "
                f"not {threads} and {chunk_bytes}"
            )
        self.path = Path(path)
        self._process = OwnerProcess()
        self.chunk_bytes = chunk_bytes
        self._file = BlockFile(path, direct=direct, preadv=preadv)
        try:
            self.layout: Layout = self._read_header(header)
        except BaseException:
            self._file.close()
            raise
        self.runs: dict[str, Run] = {run.name: run for run in self.layout.runs}
        self.tensors: dict[str, tuple[Run, TensorSlot]] = {
            slot.name: (run, slot) for run in self.layout.runs for slot in run.tensors
        }
        self.verified: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="flash-read")
        # Rows are wanted at once, by a caller who waits; they must not queue behind read-ahead.
        self._row_pool = ThreadPoolExecutor(threads, thread_name_prefix="flash-rows")

    @property
    def io_mode(self) -> str:
        """ "direct", "nocache" or "buffered: <reason>"."""
        return self._file.io_mode

    @property
    def stats(self) -> IoStats:
        """Live counters of the file."""
        return self._file.stats

    def _read_header(self, expected: tuple[int, str] | None) -> Layout:
        size, where = self._file.size, str(self.path)
        prefix = self._read_bytes(0, min(size, PREFIX_BYTES))
        length = header_length(prefix, size, where)
        start = self._read_bytes(0, 8 + length)
        if expected and (len(start), xxhash.xxh3_64_hexdigest(start)) != expected:
            raise ChecksumMismatch(
                f"{where}: its header is not the one that the manifest was written for: the file is damaged "
                "or another one; copy or export the bundle again"
            )
        return parse_header(start[8:], size, where)

    def _read_bytes(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        if count:
            self._file.read_exact(memoryview(data), offset, cached=True)
        return bytes(data)

    def run(self, name: str) -> Run:
        """The run of that name. Raises InvalidRequest."""
        if name not in self.runs:
            raise InvalidRequest(
                f"{self.path}: has no run named {name!r}; it has {len(self.runs)} runs, the first "
                f"is {next(iter(self.runs))!r}"
            )
        return self.runs[name]

    # --- whole runs --------------------------------------------------------------------------------------

    def submit(
        self, run: Run | str, buffer: Any, on_done: Callable[[PendingRead], None] | None = None
    ) -> PendingRead:
        """Start reading a run into the first `run.length` bytes of a writable buffer; returns at once.

        `on_done` is called once from a reader thread, after the last byte was written and verified or after
        the last reader stopped because of an error (`PendingRead.error`). It must not raise.
        Raises InvalidRequest when the buffer is too small or read-only, or the file is closed.
        """
        run = self.run(run if isinstance(run, str) else run.name)
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous or view.nbytes < run.length:
            raise InvalidRequest(
                f"run {run.name} needs a writable contiguous buffer of {run.length} bytes, got "
                f"{view.nbytes}{' read-only' if view.readonly else ''}"
            )
        view = view.cast("B")[: run.length]
        reads = list(run.reads(self.chunk_bytes, self._file.size))
        pending = PendingRead(run, len(reads), on_done)
        self._process.check(str(self.path))
        with self._lock:
            if self._closed:
                raise InvalidRequest(f"{self.path}: is closed")
            for _, offset, place, count in reads:
                self._pool.submit(self._read_chunk, pending, view, offset, place, count)
        return pending

    def read_into(self, run: Run | str, buffer: Any) -> None:
        """Read a run into a buffer and wait for it. Exactly `run.length` bytes, verified on the first read.

        Raises ReadFailed, TruncatedFile, FileChanged or ChecksumMismatch; the buffer is then useless.
        """
        self.submit(run, buffer).wait()

    def load(self, run: Run | str) -> tuple[AlignedBuffer, dict[str, np.ndarray]]:
        """Read a run into memory of its own: for pinned runs. The views keep the memory alive."""
        run = self.run(run if isinstance(run, str) else run.name)
        buffer = AlignedBuffer(run.length)
        try:
            self.read_into(run, buffer.view)
        except BaseException:
            buffer.close()
            raise
        return buffer, tensor_views(run, buffer.view)

    def tensor_views(self, run: Run | str, buffer: Any) -> dict[str, np.ndarray]:
        """Read-only arrays over a buffer that holds the run; see `format.tensor_views`."""
        return tensor_views(self.run(run if isinstance(run, str) else run.name), buffer)

    def _read_chunk(
        self, pending: PendingRead, view: memoryview, offset: int, place: int, count: int
    ) -> None:
        run = pending.run
        try:
            if pending.error is None:
                self._read_pages(view[place : place + count], offset)
        except BaseException as error:  # handed to whoever waits: a pool thread has nobody to raise to
            pending._fail(error)
        if not pending._chunk_ended():
            return
        try:
            if pending.error is None:
                self._verify(run, view)
        except BaseException as error:
            pending._fail(error)
        pending._finish()

    def _read_pages(self, view: memoryview, offset: int) -> None:
        """Read from a page on; where the file ends within one, its last bytes come through the page cache."""
        whole = view.nbytes - view.nbytes % DIRECT_ALIGNMENT
        if whole:
            self._file.read_exact(view[:whole], offset)
        if view.nbytes > whole:
            self._file.read_exact(view[whole:], offset + whole, cached=True)

    def _verify(self, run: Run, view: memoryview) -> None:
        modified = self._file.modified()
        with self._lock:
            if modified:
                self.verified.clear()  # what was verified may have been overwritten since
            if run.name in self.verified:
                return
        self._compare(run, (xxhash.xxh3_64_hexdigest(view[p.place : p.place + p.nbytes]) for p in run.parts))

    def _compare(self, run: Run, digests: Iterable[str]) -> None:
        for part, found in zip(run.parts, digests, strict=True):
            if found != part.xxh3:
                self._file.raise_if_changed()
                raise ChecksumMismatch(
                    f"{self.path}: run {run.name} has xxh3 {found}, expected {part.xxh3}: the file is "
                    "damaged; copy or export it again"
                )
        with self._lock:
            self.verified.add(run.name)

    def verify(self, run: Run | str) -> None:
        """Check a run's bytes in constant memory (one chunk). Raises like `read_into`."""
        run = self.run(run if isinstance(run, str) else run.name)
        buffer = AlignedBuffer(min(self.chunk_bytes, run.length))
        digests = {part: xxhash.xxh3_64() for part in run.parts}
        try:
            for part, offset, _, count in run.reads(self.chunk_bytes, self._file.size):
                self._read_pages(buffer.view[:count], offset)
                begin = max(part.offset - offset, 0)
                digests[part].update(buffer.view[begin : min(count, part.offset + part.nbytes - offset)])
        finally:
            buffer.close()
        self._compare(run, (digest.hexdigest() for digest in digests.values()))

    # --- rows --------------------------------------------------------------------------------------------

    def read_rows(self, tensor: str, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Gather rows along axis 0, in the order and with the repetitions of `rows`: [len(rows), *shape[1:]].

        Near rows are read together. Rows are exact in length but are only as verified as their run: call
        `verify(run)` first where that matters. Raises InvalidRequest for unknown tensors and rows, and the
        errors of `read_into`.
        """
        if tensor not in self.tensors:
            raise InvalidRequest(f"{self.path}: has no tensor named {tensor!r}")
        run, slot = self.tensors[tensor]
        if not slot.shape:
            raise InvalidRequest(f"tensor {tensor}: a scalar has no rows")
        wanted = np.asarray(rows)
        if wanted.size == 0:
            wanted = wanted.astype(np.int64)
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InvalidRequest(f"tensor {tensor}: rows must be a 1-D array of integers")
        if wanted.size and (int(wanted.min()) < 0 or int(wanted.max()) >= slot.shape[0]):
            raise InvalidRequest(
                f"tensor {tensor}: rows {int(wanted.min())}..{int(wanted.max())} are not all in "
                f"0..{slot.shape[0] - 1}"
            )
        row_bytes = slot.nbytes // slot.shape[0]
        unique, inverse = np.unique(wanted.astype(np.int64), return_inverse=True)
        gathered = np.empty((len(unique), row_bytes), np.uint8)
        base = run.file_offset(slot.offset_in_run)

        def gather(span: tuple[int, int]) -> None:
            first, last = span  # positions in `unique`, inclusive
            start = int(unique[first])
            data = bytearray((int(unique[last]) - start + 1) * row_bytes)
            self._file.read_exact(memoryview(data), base + start * row_bytes, cached=True)
            block = np.frombuffer(data, np.uint8).reshape(-1, row_bytes)
            gathered[first : last + 1] = block[unique[first : last + 1] - start]

        self._process.check(str(self.path))
        with self._lock:
            if self._closed:
                raise InvalidRequest(f"{self.path}: is closed")
            spans = [self._row_pool.submit(gather, span) for span in row_spans(unique, row_bytes)]
        errors = [span.exception() for span in spans]  # waits for all: none may outlive this call
        for error in errors:
            if error is not None:
                raise error
        flat = gathered[inverse.reshape(-1)].reshape(-1)
        return flat.view(STORAGE_DTYPES[slot.dtype]).reshape(len(wanted), *slot.shape[1:])

    # --- end ---------------------------------------------------------------------------------------------

    def check_identity(self) -> None:
        """Raise FileChanged when the file at the path is not the one that was opened."""
        self._file.raise_if_changed()

    def close(self) -> None:
        """Wait for reads under way, then close. Buffers and views stay valid."""
        if not self._process.here:
            return  # its threads, and perhaps the lock that one of them held, cannot be waited for
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.shutdown(wait=True)
        self._row_pool.shutdown(wait=True)
        self._file.close()

    def __enter__(self) -> FlashFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def row_spans(rows: np.ndarray, row_bytes: int) -> list[tuple[int, int]]:
    """Group sorted distinct rows into (first, last) positions that one read serves.

    Two neighbours share a read when the bytes between them are few and the read stays small.
    """
    spans: list[tuple[int, int]] = []
    first = 0
    for position in range(1, len(rows) + 1):
        if position < len(rows):
            gap = (int(rows[position]) - int(rows[position - 1]) - 1) * row_bytes
            total = (int(rows[position]) - int(rows[first]) + 1) * row_bytes
            if gap <= _ROW_GAP_BYTES and total <= _ROW_SPAN_BYTES:
                continue
        spans.append((first, position - 1))
        first = position
    return spans if len(rows) else []
