"""Small file helpers: room, atomic replacement, locks, directory sync, reading a bounded file, digests."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
from contextlib import suppress
from pathlib import Path

import xxhash

from edgekit.flashload.errors import DiskFull, MalformedFile, OpenFailed, ReadFailed, WriteFailed
from edgekit.flashload.sizes import size_up

if sys.platform != "win32":
    import fcntl

_HASH_BLOCK_BYTES = 4 << 20


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def free_bytes(path: Path) -> int:
    """Bytes left on the disk where `path` is or will be."""
    return shutil.disk_usage(existing(path)).free


def fsync_directory(directory: Path) -> None:
    """Make a rename or a new name in `directory` durable. Does nothing where directories cannot be opened."""
    if os.name == "nt":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` with `data`: temporary name, fsync, rename. A reader sees the old or the new file.

    Raises WriteFailed (DiskFull), also for what is there and is no regular file, such as a device; it is then
    untouched.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise WriteFailed(f"{path}: is there, and is no regular file; give the name of another one")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_directory(path.parent)
    except BaseException as error:  # an interrupt leaves nothing behind either
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise write_failed(f"{path}: cannot write", error) from error


def lock(fd: int) -> bool:
    """Keep an open file for this process until it is closed there. False where another process has it; on
    Windows nobody is kept out.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def write_all(fd: int, data: memoryview, position: int | None) -> None:
    """All of `data` at `position`, or where the file stands when it is None. Raises OSError."""
    sent = 0
    while sent < data.nbytes:
        if position is None:
            count = os.write(fd, data[sent:])
        elif hasattr(os, "pwrite"):
            count = os.pwrite(fd, data[sent:], position + sent)
        else:
            os.lseek(fd, position + sent, os.SEEK_SET)
            count = os.write(fd, data[sent:])
        if count <= 0:
            raise OSError(errno.EIO, "nothing was written")
        sent += count


def write_failed(what: str, error: OSError, nbytes: int | None = None) -> WriteFailed:
    """The error for a write that the system refused; `what` names the file and what was to be done, `nbytes`
    is what the file takes.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = "" if nbytes is None else f" of {size_up(nbytes)}"
        return DiskFull(f"{what}{needed}: the disk is full; delete or move other files on it")
    return WriteFailed(f"{what}: {error.strerror or error}; check the folder and the disk")


def read_table(path: Path, most_bytes: int, what: str, advice: str) -> bytes:
    """The bytes of a small regular file that describes others; a symbolic link is followed.

    Raises OpenFailed, which ends with `advice`, or MalformedFile for one larger than any `what`.
    """
    try:
        # Asked before opening too: opening alone waits at a FIFO and can move a device.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OpenFailed(f"{path}: is not a regular file; {advice}")
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        with open(os.open(path, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OpenFailed(f"{path}: is not a regular file; {advice}")
            # Files of /proc and of some network systems say 0 bytes: what is read counts as well.
            content = file.read(most_bytes + 1) if status.st_size <= most_bytes else b""
            size = max(status.st_size, len(content))
            if size > most_bytes:
                raise MalformedFile(f"{path}: has {size} bytes or more, more than any {what}")
            return content
    except OSError as error:
        raise OpenFailed(f"{path}: cannot open ({error.strerror}); {advice}") from error


def file_digests(path: Path) -> tuple[int, str, str]:
    """Size, SHA-256 and XXH3-64 (lower-case hex) of a regular file, read in blocks.

    Raises OpenFailed or ReadFailed.
    """
    size, sha256, xxh3 = 0, hashlib.sha256(), xxhash.xxh3_64()
    opened = False
    try:
        with open(path, "rb") as file:
            opened = True
            while block := file.read(_HASH_BLOCK_BYTES):
                size += len(block)
                sha256.update(block)
                xxh3.update(block)
    except OSError as error:
        if opened:
            raise ReadFailed(f"{path}: read failed ({error.strerror}); check the disk") from error
        raise OpenFailed(f"{path}: cannot open ({error.strerror}); check the path") from error
    return size, sha256.hexdigest(), xxh3.hexdigest()
