"""The output: a line for each line of the input, in its order, whenever the process that writes it was ended.

Two files hold the state:

    <path>         JSON lines; the n-th answers the n-th line of the input. Only the last can be half written
    <path>.early   lines that are finished before an earlier one, until it is, and those that take the place
                   of an error, until all such are there; in any order. Each ends in a checksum of itself

Lines begin with "line", their number, "run", a digest of the bundle and the settings, and "input", the
XXH3-64 of the line that they answer: what belongs to something else is never gone on with.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from edgekit.flashload.errors import EdgekitError, FileChanged
from edgekit.flashload.files import fsync_directory, write_failed
from edgekit.flashload.strictjson import record_of
from edgekit.tools.batch.held_file import HeldFile

#: How every line of ours begins, and the texts of its head, each with the characters of what follows.
_BEGUN = b'{"line": '
_HEAD = (
    (_BEGUN, b"0123456789"),
    (b', "run": "', b"0123456789abcdefghijklmnopqrstuvwxyz"),
    (b'", "input": "', b"0123456789abcdef"),
    (b'", "', b"abcdefghijklmnopqrstuvwxyz"),
)
_SEAL = b', "checksum": "%016x"}\n'
_SEAL_BYTES = len(_SEAL % 0)
#: Of a file that is to be replaced, so much is looked at.
_LOOKED_AT_BYTES = 16 << 20


class OtherOutput(EdgekitError):
    """What is there answers something else."""


@dataclass(frozen=True)
class _Early:
    """A line that waits: the digest of what it answers, where it is, and whether it has an error."""

    digest: int
    offset: int
    size: int
    wrong: bool


def early_path(path: Path) -> Path:
    """Where lines wait that are finished before an earlier one."""
    return Path(f"{path}.early")


class Output:
    """The file of the answers, which one process at a time writes. What is there is read when it is opened,
    and nothing is changed before `begin`.
    """

    def __init__(self, path: Path, run: str, *, overwrite: bool = False, bundle: Path | None = None) -> None:
        """`run` is the digest of bundle and settings. With `overwrite` what is there counts for nothing; what
        no batch has written is replaced only where it is JSON lines, and no file in the folder `bundle`.

        Raises OtherOutput for lines of another run, or of another program; OpenFailed, WriteFailed.
        """
        self.path, self._run = path, run
        #: Digests of the lines of the input that are answered, from the first on.
        self.answered = array("Q")
        self._wrong = set[int]()  # answered lines that have an error in place of an answer
        self._again = set[int]()  # of these the ones that the input has others for, which are to be answered
        self._early = dict[int, _Early]()  # by number of the line
        self._mended = dict[int, _Early]()  # in place of errors
        self._good = self._early_good = 0  # bytes of whole lines
        self._begun = False
        self._waiting: HeldFile | None = None
        self._out = HeldFile(path, "give the name of another one")
        try:
            if os.path.lexists(early_path(path)):
                self._waiting = self._opened_waiting(new=False)
                self._read_waiting(self._waiting, overwrite)
            if overwrite:
                self._check_replaceable(bundle)
            else:
                self._read()
        except BaseException:
            self.close()
            raise

    def _opened_waiting(self, *, new: bool) -> HeldFile:
        return HeldFile(early_path(self.path), "move it away, or give the output another name", new=new)

    # --- reading --------------------------------------------------------------------------------------------

    def _check_replaceable(self, bundle: Path | None) -> None:
        line = self._out.read(0, _LOOKED_AT_BYTES).partition(b"\n")[0]
        if line.startswith(_BEGUN) or (len(line) == self._out.size and _may_begin(line)):
            return
        what = "" if record_of(line) is not None else "is no file of JSON lines"
        if bundle is not None:
            of = [each for each in bundle.rglob("*") if each.is_file() and each.samefile(self.path)]
            what = f"is {of[0].relative_to(bundle)} of the bundle" if of else what
        if what:
            raise OtherOutput(
                f"{self.path}: {what}, which --overwrite does not replace; give the output another name"
            )

    def _read(self) -> None:
        for number, line in enumerate(self._out.lines(), 1):
            record = record_of(line) if line.endswith(b"\n") else None
            last = self._good + len(line) == self._out.size
            nothing = not self._good and not line.strip(b"\0\n")  # zeros alone may be anybody's
            if record is None and last and not nothing and _may_be_torn(line):
                break
            if record is None or not _is_ours(record):
                raise self._other(number, "is no line of `edgekit batch`")
            if record["run"] != self._run:
                raise self._other(number, "was written with another bundle, other settings or other options")
            if record["line"] != number:
                raise self._other(number, "is not in its place")
            self._note(number, int(record["input"], 16), "error" in record)
            self._good += len(line)

    def _read_waiting(self, file: HeldFile, overwrite: bool) -> None:
        """What waits. A damaged line is left out, and so answered again. Raises OtherOutput for a file that
        has none of ours, which are told by their checksums.
        """
        ours, offset = not file.size, 0
        for line in file.lines():
            ours |= len(line) == file.size and _may_be_torn(line)
            if (record := _record_within(line)) is not None:
                ours = True
                if overwrite:
                    return
                if record["run"] != self._run:
                    raise OtherOutput(
                        f"{file.path}: was written with another bundle, other settings or other options; "
                        "give another name, or begin anew with --overwrite"
                    )
                early = _Early(int(record["input"], 16), offset, len(line), "error" in record)
                self._early[record["line"]] = early
            offset += len(line)
            if not overwrite and line.endswith(b"\n"):
                self._early_good = offset
        if not ours:
            raise OtherOutput(
                f"{file.path}: has no line that waits for an earlier one, as a batch has in a file called "
                "so; move it away, or give the output another name"
            )

    def _note(self, number: int, digest: int, wrong: bool) -> None:
        """The next line, or an earlier one, is answered."""
        if number > len(self.answered):
            self.answered.append(digest)
        else:
            self.answered[number - 1] = digest
        (self._wrong.add if wrong else self._wrong.discard)(number)

    def _other(self, number: int, what: str) -> OtherOutput:
        return OtherOutput(
            f"{self.path}: line {number} {what}; give another name, or begin anew with --overwrite"
        )

    # --- state ----------------------------------------------------------------------------------------------

    def check(self, number: int, digest: int) -> None:
        """Tell a line of the input. Where its answer is there and is of another line, an error is answered
        again, and otherwise OtherOutput raised; one that waits, of another line, is forgotten.
        """
        early = self._early.get(number)
        if early is not None and early.digest != digest:
            del self._early[number]
        if number > len(self.answered):
            return
        early = self._early.pop(number, None)
        if self.answered[number - 1] == digest:
            return
        if number not in self._wrong:
            raise self._other(number, "answers another line than the input has there now")
        if early is None:
            self._again.add(number)
        else:
            self._mended[number] = early

    def check_end(self, lines: int) -> None:
        """Tell how many lines the input has. Raises OtherOutput where more are answered; what waits for its
        place behind them is forgotten.
        """
        if lines < len(self.answered):
            raise self._other(lines + 1, f"answers no line: the input has {lines}")
        for number in [number for number in self._early if number > lines]:
            del self._early[number]

    def has(self, number: int) -> bool:
        """Whether the answer of a line is there."""
        return (number <= len(self.answered) and number not in self._again) or number in self._early

    @property
    def there(self) -> int:
        """Answers that are there."""
        return len(self.answered) - len(self._again) + len(self._early)

    @property
    def again(self) -> int:
        """Lines that have an error, and are answered again as the input has others in their place."""
        return len(self._again) + len(self._mended)

    @property
    def errors(self) -> int:
        """Answered lines that have an error in place of an answer."""
        return len(self._wrong)

    # --- writing --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Cut off what is half written; with `overwrite` everything. Raises WriteFailed, FileChanged."""
        try:
            self._out.check()
            if self._waiting is not None:
                self._waiting.truncate(self._early_good)
            self._out.truncate(self._good)
            self._begun = True
            if self._out.made:
                fsync_directory(self.path.parent)
            self._settle()
        except OSError as error:
            raise write_failed(f"{self.path}: cannot write", error) from error

    def put(self, number: int, digest: int, members: Mapping[str, Any]) -> None:
        """The answer of a line. It is in the file, or beside it, when this returns. Raises WriteFailed, and
        FileChanged where somebody else has moved or changed one of the files.
        """
        head = json.dumps({"line": number, "run": self._run, "input": f"{digest:016x}"})
        line = f"{head[:-1]}, {json.dumps(members)[1:]}\n".encode("ascii")
        wrong = "error" in members
        try:
            if number == len(self.answered) + 1:
                self._out.append(line)
                self._note(number, digest, wrong)
            else:
                self._keep(number, digest, _sealed(line), wrong)
            self._settle()
        except OSError as error:
            raise write_failed(f"{self.path}: cannot write", error) from error

    def _keep(self, number: int, digest: int, line: bytes, wrong: bool) -> None:
        """Have a line wait."""
        self._out.check()
        if self._waiting is None:
            self._waiting = self._opened_waiting(new=True)
        early = _Early(digest, self._waiting.size, len(line), wrong)
        self._waiting.append(line)
        if number in self._again:
            self._mended[number] = early
            self._again.remove(number)
        else:
            self._early[number] = early

    def _settle(self) -> None:
        """Move what need not wait any more."""
        if self._mended and not self._again:
            self._out.rewrite(self._with_mended())
            for number, early in self._mended.items():
                self._note(number, early.digest, early.wrong)
            self._mended.clear()
        while (early_one := self._early.get(number := len(self.answered) + 1)) is not None:
            self._out.append(self._waited(number, early_one))
            self._note(number, early_one.digest, early_one.wrong)
            del self._early[number]
        if self._waiting is not None and not self._early and not self._mended:
            self._waiting.truncate(0)

    def _with_mended(self) -> Iterator[bytes]:
        for number, line in enumerate(self._out.lines(), 1):
            early = self._mended.get(number)
            yield line if early is None else self._waited(number, early)

    def _waited(self, number: int, early: _Early) -> bytes:
        """A line that has waited, as it was written. Raises FileChanged for another one."""
        assert self._waiting is not None, "it waits there"
        line = self._waiting.read(early.offset, early.size)
        record = _record_within(line)
        if record is None or (record["line"], record["run"], int(record["input"], 16)) != (
            number, self._run, early.digest,
        ):  # fmt: skip
            raise FileChanged(
                f"{self._waiting.path}: was changed by somebody else meanwhile, and the answer of line "
                f"{number} is damaged; the same command answers it again"
            )
        return _unsealed(line)

    def close(self) -> None:
        """Release the files. One that nothing was written to is not left behind."""
        held = not self._begun or self._early or self._mended
        empty = self._out.made and not self._out.size and not (self._begun and self.there)
        try:
            if self._begun:
                self._out.sync()
        finally:
            self._begun = False
            if self._waiting is not None:
                self._waiting.close(remove=not held)
            self._out.close(remove=empty)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises FileChanged where the answers are not at their path, unless there is an error already."""
        try:
            if error is None:
                self._out.check()
        finally:
            self.close()


def _is_ours(record: Mapping[str, Any]) -> bool:
    line, run, digest = (record.get(name) for name in ("line", "run", "input"))
    if type(line) is not int or line < 1 or not isinstance(run, str) or not isinstance(digest, str):
        return False
    if not isinstance(record.get("text", record.get("error")), str):
        return False
    try:
        return len(digest) == 16 and int(digest, 16) >= 0
    except ValueError:
        return False


def _may_begin(data: bytes) -> bool:
    """Whether a line of ours begins so. Where it was half written, a power cut may leave zeros."""
    rest = data.rstrip(b"\0\n")
    for text, letters in _HEAD:
        if len(rest) <= len(text):
            return text.startswith(rest)
        behind = rest.removeprefix(text).lstrip(letters)
        if not rest.startswith(text) or len(behind) == len(rest) - len(text):
            return False
        if not behind:
            return True
        rest = behind
    return True


def _may_be_torn(line: bytes) -> bool:
    """Whether it is a line of ours that was half written; what somebody else wrote begins otherwise."""
    return _may_begin(line) and not (line.endswith(b"\n") and record_of(line) is not None)


def _sealed(line: bytes) -> bytes:
    """A line with its checksum as the last member."""
    return line[: -len(b"}\n")] + _SEAL % xxhash.xxh3_64_intdigest(line)


def _unsealed(line: bytes) -> bytes:
    return line[:-_SEAL_BYTES] + b"}\n"


def _record_within(line: bytes) -> Mapping[str, Any] | None:
    """What a line with a checksum says; None for a damaged one, and one that was never ours."""
    own = _unsealed(line)
    record = record_of(own) if _sealed(own) == line else None
    return record if record is not None and _is_ours(record) else None
