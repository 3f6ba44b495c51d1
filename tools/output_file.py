"""Files that a command writes beside what it prints: nothing that anybody may want is replaced by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from edgekit.flashload.errors import WriteFailed
from edgekit.flashload.files import read_table
from edgekit.tools.failures import Failure

#: A page with the library that draws has 5 MB, and what it shows beside.
_MOST_PAGE_BYTES = 256 << 20
#: What `tools/html/page.py` begins every page with.
PAGE_MARK = '<meta name="generator" content="edgekit">'


def check_output(path: Path | None, what: str, is_one: Callable[[Path], bool]) -> None:
    """Refuse a file before the work that it is for: in a folder that is not there, or in place of one that is
    neither empty nor a `what`, as `is_one` says. Raises Failure.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise Failure(f"{path}: there is no folder {path.parent}; make it, or name another file")
    if not os.access(path.parent, os.W_OK):
        raise Failure(f"{path}: nothing can be written to {path.parent}; name another file")
    if not os.path.lexists(path):
        return
    try:
        there = os.stat(path)
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror}; name another file") from error
    if not stat.S_ISREG(there.st_mode):
        raise Failure(f"{path}: is there, and is no regular file; name another one")
    if there.st_size and not is_one(path):
        raise Failure(f"{path}: is there, and is no {what}; name another file")


class ReportFile:
    """A file that is written again and again while work goes on."""

    def __init__(self, path: Path, what: str, is_one: Callable[[Path], bool]) -> None:
        """Raises Failure as `check_output`."""
        check_output(path, what, is_one)
        self.path, self._seen = path, _identity(path)

    def write(self, write: Callable[[Path], None]) -> None:
        """Have `write` replace it. Raises WriteFailed where somebody else has written it since, and what
        `write` raises.
        """
        if _identity(self.path) != self._seen:
            raise WriteFailed(
                f"{self.path}: was written by somebody else meanwhile and is left as it is; give another name"
            )
        write(self.path)
        self._seen = _identity(self.path)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Of the file that is there now; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def same_file(one: Path, other: Path) -> bool:
    """Whether both are one file, whether it is there or not."""
    return os.path.realpath(one) == os.path.realpath(other)


def check_page(path: Path | None) -> None:
    """The same of a page. Raises Failure."""
    check_output(path, "page of edgekit", _is_page)


def _is_page(path: Path) -> bool:
    return PAGE_MARK.encode() in read_table(path, _MOST_PAGE_BYTES, "page", "name another file")[:4096]
