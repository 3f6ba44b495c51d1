"""Writing a flash file run by run, so that an export interrupted at any instruction can go on.

Two files beside the target hold the state:

    <path>.partial   the file itself at its final size, runs written in place, the header last
    <path>.journal   JSON lines: {"plan", "size"} first, then {"run", "xxh3"} per finished run

A run enters the journal only after its bytes were synced, so what the journal says is on disk is on disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    LayoutError,
    MalformedFile,
    OutputExists,
    ResumeMismatch,
    TruncatedFile,
    WriteFailed,
)
from edgekit.flashload.files import fsync_directory, lock, write_all, write_failed
from edgekit.flashload.format import (
    Layout,
    Run,
    RunSpec,
    build_header,
    layout,
)
from edgekit.flashload.packed import Stored, packed_layout
from edgekit.flashload.packed import header_json as packed_header_json
from edgekit.flashload.pieces import Tensors, run_bytes
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.strictjson import record_of

_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and lower-case hex digests of a finished file; the header is all before the first run."""

    size: int
    sha256: str
    header_size: int
    header_xxh3: str


def planned_layout(runs: Sequence[RunSpec], tag: str = "", stored: Stored | None = None) -> Layout:
    """Every byte position of what a `FlashWriter` with these arguments writes. Raises LayoutError."""
    return layout(runs, tag) if stored is None else packed_layout(runs, stored, tag)


class FlashWriter:
    """Writes one flash file. Not for use by several threads; a second writer of the same path is refused.

    `tag` says what the tensors are made of (see `format.layout`). With `resume`, an interrupted export of
    the same plan goes on where it stopped, and a finished one only has to be `finish()`ed again; without it,
    leftovers of an interrupted export are overwritten. A finished file at `path` is refused unless `resume`
    finds the same plan in it or `overwrite` is set. With `stored` the file is packed, see `packed_layout`.

    Raises LayoutError (bad specs), OutputExists, ResumeMismatch (leftovers of another plan), WriteFailed
    (DiskFull).
    """

    def __init__(
        self,
        path: str | Path,
        runs: Sequence[RunSpec],
        *,
        resume: bool = False,
        overwrite: bool = False,
        tag: str = "",
        stored: Stored | None = None,
    ) -> None:
        self.path = Path(path)
        self.layout: Layout = planned_layout(runs, tag, stored)
        self.partial_path = self.path.with_name(self.path.name + ".partial")
        self.journal_path = self.path.with_name(self.path.name + ".journal")
        self._runs = {run.name: run for run in self.layout.runs}
        self._digests: dict[str, str] = {}
        self._fd = -1
        self._journal_fd = -1
        self._finished = False
        try:
            self._open(resume, overwrite)
        except OSError as error:
            self.close()
            raise self._write_failed("cannot create the file", error) from error
        except BundleError:
            self.close()
            raise

    # --- state -------------------------------------------------------------------------------------------

    def done(self, run_name: str) -> bool:
        """Whether the run is on disk. Raises LayoutError for a name that is not in the plan."""
        return self._run(run_name).name in self._digests

    def missing(self) -> list[str]:
        """Names of the runs still to be written, in file order."""
        return [name for name in self._runs if name not in self._digests]

    def _run(self, name: str) -> Run:
        if name not in self._runs:
            raise LayoutError(f"{self.path}: no run named {name!r} in the plan of {len(self._runs)} runs")
        return self._runs[name]

    # --- opening -----------------------------------------------------------------------------------------

    def _open(self, resume: bool, overwrite: bool) -> None:
        journal_exists = self.journal_path.exists()
        if self.path.exists():
            if resume and not self.partial_path.exists() and (finished := self._finished_file()):
                self._adopt(finished)
                return
            if not overwrite:
                if resume:
                    raise _other_export(self.path)
                raise OutputExists(f"{self.path}: already exists; choose another name or allow overwriting")
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        # Somebody may have planted what an interrupted export is said to have left.
        flags |= getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(self.partial_path, flags, 0o666)
        self._lock()
        if resume and journal_exists:
            self._journal_fd = os.open(self.journal_path, flags | os.O_APPEND, 0o666)
            if self._read_journal():
                return
            os.close(self._journal_fd)
            self._journal_fd = -1
        self._start_over(flags)

    def _start_over(self, flags: int) -> None:
        # The journal goes first: stale journal lines must never describe a fresh file.
        self._journal_fd = os.open(self.journal_path, flags | os.O_APPEND | os.O_TRUNC, 0o666)
        os.fsync(self._journal_fd)
        os.ftruncate(self._fd, 0)
        _allocate(self._fd, self.layout.size)
        os.fsync(self._fd)
        self._append_journal({"plan": self.layout.plan_digest, "size": self.layout.size})
        os.fsync(self._journal_fd)
        fsync_directory(self.path.parent)

    def _lock(self) -> None:
        if not lock(self._fd):
            raise WriteFailed(f"{self.partial_path}: another export is writing it; wait for it to end")

    def _finished_file(self) -> Layout | None:
        """What the finished flash file at `path` holds, if that is exactly this plan."""
        try:
            with FlashFile(self.path) as file:
                found = file.layout
        except BundleError:
            return None
        same = (found.plan_digest, found.size) == (self.layout.plan_digest, self.layout.size)
        return found if same else None

    def _adopt(self, finished: Layout) -> None:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(self.path, flags)
        self._digests = {run.name: run.xxh3 for run in finished.runs}
        self._finished = True

    def _read_journal(self) -> bool:
        """Take over the finished runs. False when the journal stops before its first complete line."""
        size = os.fstat(self._journal_fd).st_size
        raw = _pread_exact(self._journal_fd, size, 0, self.journal_path)
        good = 0
        lines = raw.split(b"\n")
        for number, line in enumerate(lines[:-1]):
            record = record_of(line)
            if record is None:
                if number == len(lines) - 2:
                    break  # a crash may leave a torn last line even with its line end on disk
                raise MalformedFile(
                    f"{self.journal_path}: line {number + 1} is unreadable; delete it and the "
                    ".partial file, then export again"
                )
            if number == 0:
                self._check_plan(record)
            else:
                name, digest = str(record.get("run")), record.get("xxh3")
                digits = 16 * len(self._runs[name].parts) if name in self._runs else 0
                if not isinstance(digest, str) or not digits or len(digest) != digits:
                    raise MalformedFile(
                        f"{self.journal_path}: line {number + 1} names no run of this plan; "
                        "delete it and the .partial file, then export again"
                    )
                self._digests[name] = digest
            good += len(line) + 1
        if good == 0:
            return False
        if os.fstat(self._fd).st_size != self.layout.size:
            raise TruncatedFile(
                f"{self.partial_path}: has {os.fstat(self._fd).st_size} of {self.layout.size} bytes; "
                "delete it and its .journal, then export again"
            )
        os.ftruncate(self._journal_fd, good)
        return True

    def _check_plan(self, record: dict[str, Any]) -> None:
        if record.get("plan") != self.layout.plan_digest or record.get("size") != self.layout.size:
            raise _other_export(self.journal_path)

    def _append_journal(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
        write_all(self._journal_fd, memoryview(line), None)

    # --- writing -----------------------------------------------------------------------------------------

    def write_run(self, name: str, tensors: Tensors) -> None:
        """Write one run and sync it. Runs may come in any order.

        `tensors` is a mapping of all tensors of the run, or an iterable of (name, array) pairs in the order
        of the run's spec; in the second form a tensor may come in several consecutive pieces along axis 0, so
        that neither the run nor the tensor is ever whole in memory. BF16 is taken as uint16 or bfloat16 and
        F8 as uint8 or float8 arrays; nothing is converted.

        Raises LayoutError for data that does not match the specs, WriteFailed when the disk refuses. The run
        then stays unwritten and may be written again.
        """
        run = self._run(name)
        if self._fd < 0:
            raise LayoutError(f"{self.path}: the writer is closed")
        if name in self._digests:
            raise LayoutError(f"run {name}: is already written; skip runs for which done() is true")
        digests: list[str] = []
        try:
            pieces = run_bytes(run, tensors)
            rest = memoryview(b"")
            for part in run.parts:
                check, position, end = xxhash.xxh3_64(), part.offset, part.offset + part.nbytes
                while position < end:
                    piece = rest if rest.nbytes else next(pieces)
                    piece, rest = piece[: end - position], piece[end - position :]
                    check.update(piece)
                    write_all(self._fd, piece, position)
                    position += piece.nbytes
                digests.append(check.hexdigest())
            if rest.nbytes or next(pieces, None) is not None:
                raise LayoutError(f"run {name}: has more bytes than its layout")
            _sync_data(self._fd)
        except OSError as error:
            raise self._write_failed(f"run {name}", error) from error
        try:
            self._append_journal({"run": name, "xxh3": "".join(digests)})
        except OSError as error:
            raise self._write_failed(f"journal of run {name}", error) from error
        self._digests[name] = "".join(digests)

    def finish(self) -> FileDigest:
        """Write the header, check every run against its digest, and give the file its name.

        Reads the file once: SHA-256 needs all bytes in order. Raises LayoutError when runs are missing,
        ChecksumMismatch when the disk does not return what was written, WriteFailed.
        """
        missing = self.missing()
        if missing:
            raise LayoutError(
                f"{self.path}: {len(missing)} of {len(self._runs)} runs are not written, "
                f"the first is {missing[0]}"
            )
        if self._fd < 0:
            raise LayoutError(f"{self.path}: the writer is closed")
        try:
            if not self._finished:
                make_json = (packed_header_json,) if self.layout.tensors else ()
                header = build_header(self.layout, self._digests, *make_json)
                write_all(self._fd, memoryview(header), 0)
                os.fsync(self._fd)
            result = self._digest_file()
            self.close()  # Windows renames and deletes only closed files
            if not self._finished:
                os.replace(self.partial_path, self.path)
                fsync_directory(self.path.parent)
                self._finished = True
            self.journal_path.unlink(missing_ok=True)
        except OSError as error:
            raise self._write_failed("cannot finish the file", error) from error
        return result

    def _digest_file(self) -> FileDigest:
        header = _pread_exact(self._fd, self.layout.data_start, 0, self.path)
        total = hashlib.sha256(header)
        parts = [
            (part, run.name, self._digests[run.name][16 * i : 16 * i + 16])
            for run in self.layout.runs
            for i, part in enumerate(run.parts)
        ]
        for part, name, digest in sorted(parts, key=lambda each: each[0].offset):
            check = xxhash.xxh3_64()
            for offset in range(part.offset, part.offset + part.nbytes, _BLOCK_BYTES):
                size = min(_BLOCK_BYTES, part.offset + part.nbytes - offset)
                block = _pread_exact(self._fd, size, offset, self.path)
                total.update(block)
                check.update(block)
            if check.hexdigest() != digest:
                raise ChecksumMismatch(
                    f"{self.path}: run {name} reads back different from what was written; "
                    "check the disk, delete the .partial and .journal files, export again"
                )
        return FileDigest(self.layout.size, total.hexdigest(), len(header), xxhash.xxh3_64_hexdigest(header))

    # --- ending ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the files. An unfinished export stays on disk and can be resumed."""
        for fd in (self._fd, self._journal_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._journal_fd = -1

    def discard(self) -> None:
        """Close and delete an unfinished export's files. A finished file is left alone."""
        self.close()
        self.partial_path.unlink(missing_ok=True)
        self.journal_path.unlink(missing_ok=True)

    def __enter__(self) -> FlashWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_failed(self, what: str, error: OSError) -> WriteFailed:
        return write_failed(f"{self.path}: {what}", error, self.layout.size)


def _other_export(path: Path) -> ResumeMismatch:
    return ResumeMismatch(
        f"{path}: belongs to another export (other model, texts, preset or version); resume with the same "
        "options, or start again with --overwrite"
    )


def _pread_exact(fd: int, size: int, offset: int, path: Path) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        if hasattr(os, "pread"):
            part = os.pread(fd, size, offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            part = os.read(fd, size)
        if not part:
            raise TruncatedFile(f"{path}: ends at byte {offset}, {size} bytes early; export again")
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _allocate(fd: int, size: int) -> None:
    """Give the file its final size, reserving the blocks where the file system can: a full disk shows now."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(fd, size)


def _sync_data(fd: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)
