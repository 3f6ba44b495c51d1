"""Exact-length positional reads of one file, past the page cache where the system allows it.

Read modes, chosen once when the file is opened and told in `io_mode`:

    direct     Linux O_DIRECT, probed by reading the first block
    nocache    macOS F_NOCACHE
    buffered   through the page cache, dropped from it after every read; `io_mode` tells the reason
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import FileChanged, OpenFailed, ReadFailed, TruncatedFile

if sys.platform == "darwin":
    import fcntl

_log = logging.getLogger("edgekit.flashload")

# What statx(STATX_DIOALIGN) asks of offset, length and address is at most a page on the systems we know.
DIRECT_ALIGNMENT = 4096
_PROBE_BYTES = 16 * 1024

Preadv = Callable[[int, Sequence[memoryview], int], int]


class SeekingPreadv:
    """Stand-in for os.preadv where the platform has none (Windows): one read at a time, and one copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        total = 0
        with self._lock:
            os.lseek(fd, offset, os.SEEK_SET)
            for buffer in buffers:
                data = os.read(fd, buffer.nbytes)
                buffer[: len(data)] = data
                total += len(data)
                if len(data) < buffer.nbytes:
                    break
        return total


def system_preadv() -> Preadv:
    """os.preadv, which releases the interpreter lock while it reads, or the stand-in."""
    return os.preadv if hasattr(os, "preadv") else SeekingPreadv()


class Identity(NamedTuple):
    """What tells a file from another one at the same path, and from its own earlier content."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass
class IoStats:
    """Counters since the file was opened. `fallbacks`: reads that went through the page cache although the
    file was opened for direct reads (unaligned buffer or offset)."""

    bytes_read: int = 0
    calls: int = 0
    short_reads: int = 0
    interrupts: int = 0
    fallbacks: int = 0


def address_of(view: memoryview) -> int:
    """Memory address of the first byte."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


class BlockFile:
    """A regular file opened for positional reads by any number of threads.

    `direct=False` asks for buffered reads. `preadv` replaces os.preadv, for fault injection and for
    platforms without it. Raises OpenFailed.
    """

    def __init__(self, path: str | Path, *, direct: bool = True, preadv: Preadv | None = None) -> None:
        self.path = Path(path)
        self._preadv = preadv or system_preadv()
        self._lock = threading.Lock()
        self._direct_fd = -1
        self.stats = IoStats()
        # A FIFO without a writer would block the open; regular files ignore O_NONBLOCK.
        self._flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._fd = self._open(self._flags | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise OpenFailed(f"{self.path}: is {kind}; give the path of the weights file")
            self.identity = Identity.of(status)
            self._seen_mtime_ns = self.identity.mtime_ns
            self.io_mode = self._choose_mode(direct)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self.identity.size

    @property
    def direct(self) -> bool:
        """Whether aligned reads bypass the page cache through a descriptor of their own."""
        return self._direct_fd >= 0

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, flags)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise OpenFailed(
                f"{self.path}: cannot open ({reason}); check the path and its permissions"
            ) from error

    def _choose_mode(self, direct: bool) -> str:
        if not direct:
            return "buffered: asked for"
        if sys.platform == "darwin":
            fcntl.fcntl(self._fd, fcntl.F_NOCACHE, 1)
            return "nocache"
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            return self._fall_back("this system has no O_DIRECT")
        if self.size < _PROBE_BYTES:
            return self._fall_back(f"the file has fewer than {_PROBE_BYTES} bytes")
        try:
            fd = os.open(self.path, self._flags | flag)
        except OSError as error:
            return self._fall_back(f"the file system refuses O_DIRECT ({error.strerror})")
        probe = AlignedBuffer(_PROBE_BYTES)
        try:
            if Identity.of(os.fstat(fd)) != self.identity:
                raise FileChanged(f"{self.path}: was replaced while it was being opened; open it again")
            os.preadv(fd, [probe.view], 0)
        except OSError as error:
            os.close(fd)
            return self._fall_back(f"an O_DIRECT read failed ({error.strerror})")
        except FileChanged:
            os.close(fd)
            raise
        finally:
            probe.close()
        self._direct_fd = fd
        return "direct"

    def _fall_back(self, reason: str) -> str:
        _log.warning("%s: reading through the page cache: %s", self.path, reason)
        return f"buffered: {reason}"

    # --- identity ----------------------------------------------------------------------------------------

    def change(self) -> str | None:
        """What differs from the file that was opened, or None."""
        now = Identity.of(os.fstat(self._fd))
        if now.size != self.identity.size:
            return f"its size changed from {self.identity.size} to {now.size} bytes"
        try:
            named = Identity.of(os.stat(self.path))
        except OSError:
            return "it is no longer at its path"
        if (named.device, named.inode) != (self.identity.device, self.identity.inode):
            return "another file took its place"
        if now.mtime_ns != self.identity.mtime_ns:
            return "it was written to"
        return None

    def modified(self) -> bool:
        """Whether the open file's modification time differs from the last time this was asked.

        Raises FileChanged when its size does."""
        now = Identity.of(os.fstat(self._fd))
        if now.size != self.identity.size:
            raise FileChanged(
                f"{self.path}: its size changed from {self.identity.size} to {now.size} bytes while "
                "open; open it again"
            )
        with self._lock:
            changed = now.mtime_ns != self._seen_mtime_ns
            self._seen_mtime_ns = now.mtime_ns
        return changed

    def raise_if_changed(self, cause: BaseException | None = None) -> None:
        """Raise FileChanged when the file is not the one that was opened."""
        change = self.change()
        if change is not None:
            raise FileChanged(f"{self.path}: {change} while open; open it again") from cause

    # --- reading -----------------------------------------------------------------------------------------

    def read_exact(self, view: memoryview, offset: int, *, cached: bool = False) -> None:
        """Fill `view` from `offset`, entirely or not at all as far as the caller may tell.

        `cached` reads through the page cache and leaves the pages there (rows of a table come back often).
        Raises TruncatedFile, FileChanged or ReadFailed; the content of `view` is then undefined.
        """
        direct = self.direct and not cached
        if direct and (address_of(view) | view.nbytes | offset) % DIRECT_ALIGNMENT:
            self._count_fallback("a buffer or span is not aligned to a page")
            direct = False
        done = 0
        while done < view.nbytes:
            count = self._read_once(self._direct_fd if direct else self._fd, view[done:], offset + done)
            if direct and count % DIRECT_ALIGNMENT:
                # A direct read can only go on at a block boundary: read the broken block again.
                count -= count % DIRECT_ALIGNMENT
                if count == 0:
                    self._count_fallback("a direct read stopped inside a block")
                    direct = False
            done += count
        if not direct and not cached and hasattr(os, "posix_fadvise"):
            # Streamed weights are used once per step; left in the cache they push out what others need.
            os.posix_fadvise(self._fd, offset, view.nbytes, os.POSIX_FADV_DONTNEED)

    def _read_once(self, fd: int, view: memoryview, offset: int) -> int:
        while True:
            try:
                count = self._preadv(fd, [view], offset)
            except InterruptedError:
                with self._lock:
                    self.stats.interrupts += 1
                continue
            except OSError as error:
                self.raise_if_changed(error)
                raise ReadFailed(
                    f"{self.path}: reading {view.nbytes} bytes at {offset} failed ({error.strerror}); "
                    "check the disk"
                ) from error
            break
        if count <= 0:
            self.raise_if_changed()
            raise TruncatedFile(
                f"{self.path}: ends at byte {offset}, {view.nbytes} bytes early; copy it again"
            )
        with self._lock:
            self.stats.calls += 1
            self.stats.bytes_read += count
            self.stats.short_reads += count < view.nbytes
        return count

    def _count_fallback(self, reason: str) -> None:
        with self._lock:
            self.stats.fallbacks += 1
            first = self.stats.fallbacks == 1
        if first:
            _log.warning("%s: a read went through the page cache: %s", self.path, reason)

    def close(self) -> None:
        """Close the descriptors. No read may be under way."""
        for fd in (self._fd, self._direct_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct_fd = -1
