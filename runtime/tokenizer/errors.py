"""What can be wrong with a tokenizer's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.flashload.errors import EdgekitError, MalformedFile, UnsupportedBundle


class TokenizerError(EdgekitError):
    """The tokenizer files are missing, malformed, or of a kind that edgekit does not read."""


class ChatTemplateError(EdgekitError):
    """There is no chat template, or it cannot be applied to these messages."""


@contextmanager
def of_files(where: str) -> Iterator[None]:
    """Inside the block what the core says of a tokenizer.json is said of the one at `where`: that it is
    damaged, has a part that the core does not know, or makes too much or too long of a text.

    Raises TokenizerError.
    """
    try:
        yield
    except (MalformedFile, UnsupportedBundle) as error:  # each begins with the name of the file
        raise TokenizerError(f"{where}/{error}") from error
