"""The output: a line for each line of the input, in its order, whenever the process that writes it was ended.

Two files hold the state:

    <path>         JSON lines; the n-th answers the n-th line of the input. Only the last can be half written
    <path>.early   lines that are finished before an earlier one, until it is; in any order

Lines begin with "line", their number, "run", a digest of the bundle and the settings, and "input", the
XXH3-64 of the line that they answer: what belongs to something else is never gone on with.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from edgekit.flashload.errors import EdgekitError, OpenFailed, WriteFailed
from edgekit.flashload.files import fsync_directory, lock, write_all, write_failed
from edgekit.flashload.strictjson import record_of

#: Seconds between two times that the disk is waited for: a power cut loses what is newer.
_SYNC_S = 1.0
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


#: How every line of ours begins.
_BEGUN = b'{"line": '


class OtherOutput(EdgekitError):
    """What is there answers something else."""


@dataclass(frozen=True)
class _Early:
    """A line that waits for an earlier one: the digest of what it answers, where it is, and whether it has an
    error.
    """

    digest: int
    offset: int
    size: int
    wrong: bool


class Output:
    """The file of the answers, which one process at a time writes. What is there is read when it is opened,
    and nothing is changed before `begin`.
    """

    def __init__(self, path: Path, run: str, *, overwrite: bool = False) -> None:
        """`run` is the digest of bundle and settings. With `overwrite` what is there counts for nothing.

        Raises OtherOutput for lines of another run, or of another program; OpenFailed, WriteFailed.
        """
        self.path, self._run = path, run
        self._early_path = path.with_name(f"{path.name}.early")
        #: Digests of the lines of the input that are answered, from the first on.
        self.answered = array("Q")
        #: Answered lines that have an error in place of an answer.
        self.errors = 0
        self._early = dict[int, _Early]()  # by number of the line
        self._early_fd = -1
        self._good = self._early_good = 0  # bytes of whole lines
        self._synced = time.monotonic()
        self._begun = False
        if os.path.exists(path) and not os.path.isfile(path):
            raise OpenFailed(f"{path}: is there, and is no regular file; give the name of another one")
        self._made = not os.path.exists(path)
        try:
            self._fd = os.open(path, _FLAGS, 0o666)
        except OSError as error:
            raise OpenFailed(
                f"{path}: cannot open ({error.strerror}); check the folder, or give another name"
            ) from error
        try:
            if not lock(self._fd):
                self._made = False
                raise WriteFailed(f"{path}: another batch is writing it; wait for it to end, or end it")
            if not overwrite:
                self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            for number, (offset, record, line) in enumerate(self._records(file, self.path), 1):
                if record["line"] != number:
                    raise self._other(self.path, number, "is not in its place")
                self.answered.append(int(record["input"], 16))
                self.errors += "error" in record
                self._good = offset + len(line)
        if not os.path.exists(self._early_path):
            return
        with open(self._early_path, "rb") as file:
            for offset, record, line in self._records(file, self._early_path):
                self._early_good = offset + len(line)
                if record["line"] > len(self.answered):
                    wrong, digest = "error" in record, int(record["input"], 16)
                    self._early[record["line"]] = _Early(digest, offset, len(line), wrong)

    def _records(self, file: BinaryIO, path: Path) -> Iterator[tuple[int, Mapping[str, Any], bytes]]:
        """Lines of ours with their offsets, up to one at the end that was half written."""
        offset = 0
        for number, line in enumerate(file, 1):
            record = record_of(line) if line.endswith(b"\n") else None
            if record is None:
                last = not file.read(1)
                # What somebody else wrote is not cut off: it begins with no line of ours.
                if last and (number > 1 or line[: len(_BEGUN)] == _BEGUN[: len(line)]):
                    return
                raise self._other(path, number, "is no line of `edgekit batch`")
            if not _is_ours(record):
                raise self._other(path, number, "is no line of `edgekit batch`")
            if record["run"] != self._run:
                raise self._other(path, number, "was written with another bundle or other settings")
            yield offset, record, line
            offset += len(line)

    def _other(self, path: Path, number: int, what: str) -> OtherOutput:
        return OtherOutput(f"{path}: line {number} {what}; give another name, or begin anew with --overwrite")

    def check(self, number: int, digest: int) -> None:
        """Tell a line of the input. Raises OtherOutput where its answer is there and is of another line; one
        that has not come to its place is forgotten.
        """
        if number <= len(self.answered):
            if self.answered[number - 1] != digest:
                raise self._other(self.path, number, "answers another line than the input has there now")
        elif number in self._early and self._early[number].digest != digest:
            del self._early[number]

    def check_end(self, lines: int) -> None:
        """Tell how many lines the input has. Raises OtherOutput where more are answered; what waits for its
        place behind them is forgotten.
        """
        if lines < len(self.answered):
            raise self._other(self.path, lines + 1, f"answers no line: the input has {lines}")
        for number in [number for number in self._early if number > lines]:
            del self._early[number]

    def has(self, number: int) -> bool:
        """Whether the answer of a line is there."""
        return number <= len(self.answered) or number in self._early

    @property
    def there(self) -> int:
        """Answers that are there."""
        return len(self.answered) + len(self._early)

    def begin(self) -> None:
        """Cut off what is half written; with `overwrite` everything. Raises WriteFailed."""
        try:
            if os.path.lexists(self._early_path):
                os.ftruncate(self._opened_early(), self._early_good)
            os.ftruncate(self._fd, self._good)
            self._begun = True
            if self._made:
                fsync_directory(self.path.parent)
            self._take_early()
        except OSError as error:
            raise write_failed(f"{self.path}: cannot write", error) from error

    def put(self, number: int, digest: int, members: Mapping[str, Any]) -> None:
        """The answer of a line. It is in the file, or beside it, when this returns. Raises WriteFailed."""
        head = json.dumps({"line": number, "run": self._run, "input": f"{digest:016x}"})
        line = f"{head[:-1]}, {json.dumps(members)[1:]}\n".encode("ascii")
        wrong = "error" in members
        try:
            if number > len(self.answered) + 1:
                write_all(self._opened_early(), memoryview(line), None)
                self._early[number] = _Early(digest, self._early_good, len(line), wrong)
                self._early_good += len(line)
                return
            self._append(digest, line, wrong)
            self._take_early()
        except OSError as error:
            raise write_failed(f"{self.path}: cannot write", error) from error

    def _append(self, digest: int, line: bytes, wrong: bool) -> None:
        write_all(self._fd, memoryview(line), None)
        self.answered.append(digest)
        self.errors += wrong
        if time.monotonic() - self._synced > _SYNC_S:
            os.fsync(self._fd)
            self._synced = time.monotonic()

    def _opened_early(self) -> int:
        if self._early_fd < 0:
            # Somebody may have planted what an interrupted batch is said to have left.
            self._early_fd = os.open(self._early_path, _FLAGS | getattr(os, "O_NOFOLLOW", 0), 0o666)
        return self._early_fd

    def _take_early(self) -> None:
        """Move what has waited for the line before it."""
        if len(self.answered) + 1 in self._early:
            with open(self._early_path, "rb") as file:
                while (number := len(self.answered) + 1) in self._early:
                    early = self._early[number]
                    file.seek(early.offset)
                    self._append(early.digest, file.read(early.size), early.wrong)
                    del self._early[number]
        if not self._early and self._early_good:
            os.ftruncate(self._opened_early(), 0)
            self._early_good = 0

    def close(self) -> None:
        """Release the files. One that nothing was written to is not left behind."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._early_fd >= 0:
            os.close(self._early_fd)
        if self._begun:
            os.fsync(fd)
            if not self._early:
                self._early_path.unlink(missing_ok=True)
        empty = self._made and not (self._begun and self.there) and not os.fstat(fd).st_size
        os.close(fd)  # Windows deletes only closed files
        if empty:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_ours(record: Mapping[str, Any]) -> bool:
    line, run, digest = (record.get(name) for name in ("line", "run", "input"))
    if type(line) is not int or line < 1 or not isinstance(run, str) or not isinstance(digest, str):
        return False
    try:
        return len(digest) == 16 and int(digest, 16) >= 0
    except ValueError:
        return False
