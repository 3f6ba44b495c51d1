"""A file that one process holds: nobody else moves or changes it without being noticed."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from edgekit.flashload.errors import FileChanged, OpenFailed, WriteFailed
from edgekit.flashload.files import fsync_directory, lock, write_all

#: Seconds between two times that the disk is waited for: a power cut loses what is newer.
_SYNC_S = 1.0
#: Of a line: what else is in a file may have no line ends.
_MOST_LINE_BYTES = 256 << 20
#: Those that not every system has: a symbolic link is not followed, and a FIFO does not wait.
_OTHERS = ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")
_FLAGS = os.O_RDWR | os.O_APPEND | sum(getattr(os, name, 0) for name in _OTHERS)


class HeldFile:
    """A regular file, locked until it is closed. Before it changes it must be at its path still, with as many
    bytes as it was left with.
    """

    def __init__(self, path: Path, advice: str, *, new: bool = False) -> None:
        """Open a file, or make one where there is none; with `new` there must be none. `advice`: what to do
        about one that cannot be used.

        Raises OpenFailed, for a symbolic link and what is no regular file too; WriteFailed where another
        process holds it.
        """
        self.path, self._advice = path, advice
        self.made = new or not os.path.lexists(path)
        self._fd = self._opened(os.O_CREAT | os.O_EXCL if self.made else 0)
        with suppress(OSError):  # of a process that was killed; this one alone holds the file
            self._rewritten.unlink(missing_ok=True)

    @property
    def _rewritten(self) -> Path:
        """Where what takes its place is written."""
        return self.path.with_name(f".{self.path.name}.edgekit.tmp")

    def _opened(self, more: int) -> int:
        """Sets `size`, too."""
        path, advice = self.path, self._advice
        try:
            if not more:
                self._check_kind(os.lstat(path).st_mode)  # before it is opened: a device may act on that
            fd = os.open(path, _FLAGS | more, 0o666)
        except FileExistsError as error:
            raise OpenFailed(f"{path}: was made by somebody else just now; {advice}") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._check_kind(stat.S_IFLNK)
            raise OpenFailed(
                f"{path}: cannot open ({error.strerror}); check the folder, or {advice}"
            ) from error
        try:
            self._check_kind(os.fstat(fd).st_mode)
            if not lock(fd):
                raise WriteFailed(f"{path}: another batch is writing it; wait for it to end, or end it")
            self.size = os.fstat(fd).st_size
            self._check(fd)
        except BaseException:
            os.close(fd)
            raise
        self._synced = time.monotonic()
        return fd

    def _check_kind(self, mode: int) -> None:
        if not stat.S_ISREG(mode):
            what = "is a symbolic link" if stat.S_ISLNK(mode) else "is there"
            raise OpenFailed(f"{self.path}: {what}, and is no regular file; {self._advice}")

    def _is_there(self, fd: int) -> bool:
        """Whether the path leads to this file."""
        with suppress(OSError):
            return os.path.samestat(os.lstat(self.path), os.fstat(fd))
        return False

    def check(self) -> None:
        """Raises FileChanged where it is not at its path any more, or has another size than before."""
        self._check(self._fd)

    def _check(self, fd: int) -> None:
        if not self._is_there(fd):
            raise FileChanged(
                f"{self.path}: was moved, removed or replaced meanwhile; put it back where it was, and the "
                "same command goes on with it"
            )
        if (found := os.fstat(fd).st_size) != self.size:
            raise FileChanged(
                f"{self.path}: was changed by somebody else meanwhile, to {found} bytes from {self.size}, "
                "and is left so; the same command goes on where all lines in it are the batch's"
            )

    def lines(self) -> Iterator[bytes]:
        """All of it, in lines with their ends; longer ones than any of a batch come in parts."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            while line := file.readline(_MOST_LINE_BYTES):
                yield line

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes that are there; fewer where the file ends sooner."""
        os.lseek(self._fd, offset, os.SEEK_SET)
        return os.read(self._fd, nbytes)

    def append(self, data: bytes) -> None:
        """Raises FileChanged, OSError."""
        self.check()
        write_all(self._fd, memoryview(data), None)
        self.size += len(data)
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()

    def truncate(self, nbytes: int) -> None:
        """Leave the first bytes. Raises FileChanged, OSError."""
        if nbytes != self.size:
            self.check()
            os.ftruncate(self._fd, nbytes)
            self.size = nbytes

    def rewrite(self, lines: Iterable[bytes]) -> None:
        """Put other lines in its place: at any time the path leads to the one or the other, whole. Raises
        FileChanged, OSError.
        """
        temporary = self._rewritten
        try:
            temporary.unlink(missing_ok=True)
            with open(temporary, "xb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, stat.S_IMODE(os.fstat(self._fd).st_mode))
            self.check()
            self._close_fd()  # Windows replaces only closed files
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        fsync_directory(self.path.parent)
        self._fd = self._opened(0)

    def sync(self) -> None:
        """Wait until it is on the disk. Raises OSError."""
        if self._fd >= 0:
            os.fsync(self._fd)
            self._synced = time.monotonic()

    def close(self, *, remove: bool = False) -> None:
        """Release it, and `remove` it unless somebody else has moved or changed it."""
        if remove and self._fd >= 0:
            remove = self._is_there(self._fd) and os.fstat(self._fd).st_size == self.size
        self._close_fd()  # Windows deletes only closed files
        if remove:
            self.path.unlink(missing_ok=True)

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
