"""Files of a bundle in the system's page cache: dropped from it, and how much of them is there."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

#: Why nothing can be dropped; empty where something can.
UNKNOWN = "" if sys.platform == "linux" else "this system has no call that drops a file from its page cache"


def files_of(bundle: Path) -> list[Path]:
    """All files of a bundle, or of several bundles in a folder."""
    return [path for path in bundle.rglob("*") if path.is_file()]


def forget(path: Path) -> None:
    """Drop a file from the page cache; elsewhere than on Linux nothing is done. Pages that a process has
    mapped stay.
    """
    if UNKNOWN:
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # what is not written yet stays
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def cached_bytes(paths: Iterable[Path]) -> int:
    """How many bytes of files of one's own are in the page cache, in whole pages. Raises OSError; Linux
    alone.
    """
    return sum(map(_cached, paths))


def _cached(path: Path) -> int:
    size = path.stat().st_size
    if not size:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    found = np.zeros(pages, np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        address = view.ctypes.data
        library = ctypes.CDLL(None, use_errno=True)
        failed = library.mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data)
        )
        code = ctypes.get_errno()
        del view  # or the mapping cannot be closed
    if failed:
        raise OSError(code, os.strerror(code), str(path))
    return int((found & 1).sum()) * mmap.PAGESIZE
