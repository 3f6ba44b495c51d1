"""Errors that a user can act on.

Every message is one line: what was found, where, and what to do about it.
"""

from __future__ import annotations

_MOST_LETTERS = 1000
#: Longest text of another library that a message quotes: their messages can hold whole files.
_MOST_QUOTED = 300


def quoted(value: object, limit: int = 80) -> str:
    """A name or value from a file as messages quote it: in one line, cut to `limit` characters."""
    text = str(value)
    return repr(text if len(text) <= limit else text[:limit] + "...")


def cut(value: object, limit: int = 80) -> str:
    """The same without quotation marks, for names that a word such as "tensor" stands before."""
    return quoted(value, limit)[1:-1]


def one_line(error: BaseException) -> str:
    """The message of another library's error in one line, cut to fit; its name if it says nothing."""
    try:
        text = str(error)
    except Exception:  # of somebody else's class
        text = ""
    said = " ".join(text[: 20 * _MOST_QUOTED].split()) or type(error).__name__
    return said if len(said) <= _MOST_QUOTED else said[: _MOST_QUOTED - 4] + " ..."


class EdgekitError(Exception):
    """Base of every error that edgekit raises for a reason outside its own code. Its text is of bounded
    length, whatever names it quotes: of a long one the middle is left out.

    `segment`: of a pass that failed, the number of the one that was refused before anything was computed, so
    that a pass of the others may be tried; None otherwise.
    """

    segment: int | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _MOST_LETTERS else f"{text[:600]} ... {text[-300:]}"


class BundleError(EdgekitError):
    """Something is wrong with a bundle or one of its files."""


class MalformedFile(BundleError):
    """The bytes that are there do not follow the format, or the file is something else: a Git LFS pointer,
    another format, a safetensors file without runs.
    """


class UnsupportedVersion(MalformedFile):
    """The format or schema version is one that this edgekit does not know."""


class TruncatedFile(BundleError):
    """The file ends before the bytes that its header promises."""


class ChecksumMismatch(BundleError):
    """The bytes read are not the bytes that were written."""


class FileChanged(BundleError):
    """The file was replaced or modified after it was opened."""


class OpenFailed(BundleError):
    """The file cannot be opened: missing, not a regular file, or not permitted."""


class UnsupportedBundle(EdgekitError):
    """The bundle is whole, but not something that this engine or version runs."""


class ReadFailed(BundleError):
    """The operating system refused a read."""


class WriteFailed(BundleError):
    """The operating system refused a write."""


class DiskFull(WriteFailed):
    """The operating system refused a write because the disk, or what the user may have of it, is full."""


class FetchFailed(EdgekitError):
    """A source did not give what it was asked for: it cannot be reached, lacks a file, or answers with
    something else.
    """


class ResumeMismatch(BundleError):
    """The partial file on disk belongs to another export."""


class LayoutError(EdgekitError):
    """Tensors or runs that cannot be laid out, or data that does not match its specification."""


class OutputExists(EdgekitError):
    """A finished file is in the way of a new one."""


class InvalidRequest(EdgekitError):
    """A name, size or index that the file or plan at hand does not have."""


class BudgetExceeded(EdgekitError):
    """The memory budget cannot hold what has to be in memory at once.

    `needed_bytes` is the smallest budget that would be enough.
    """

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class OutOfMemory(EdgekitError):
    """The operating system gave no memory, or no thread."""


class Cancelled(EdgekitError):
    """A call under way was told to stop."""
