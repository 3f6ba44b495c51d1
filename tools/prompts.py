"""The prompt of a command, wherever it comes from, and prompts to suggest."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from edgekit.flashload.sizes import size
from edgekit.tools.console import command_line
from edgekit.tools.failures import Failure

#: More than any model takes; a pipe may have no end.
MOST_PROMPT_BYTES = 16_000_000


def given_prompt(bundle: str, words: Sequence[str], option: str | None) -> str:
    """The prompt that stands on the command line, behind -p, or is piped in; "-" is stdin in either place.

    Raises click.UsageError: there is none, or more than one. Failure: stdin is not text.
    """
    if len(words) > 1:
        raise click.UsageError(
            f"the prompt has {len(words)} parts; put it in quotes: "
            f"{command_line('run', bundle, ' '.join(words))}"
        )
    if words and option is not None:
        raise click.UsageError("the prompt is given twice, by itself and with -p; leave one out")
    prompt = words[0] if words else option
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError(
            f"there is no prompt; give one: {command_line('run', bundle, 'Why is the sky blue?')}"
        )
    if prompt is None or prompt == "-":
        prompt = _piped()
    if not prompt.strip():
        raise click.UsageError("the prompt is empty")
    return prompt


def _piped() -> str:
    return decoded(sys.stdin.buffer.read(MOST_PROMPT_BYTES + 1), "the prompt on stdin")


def decoded(data: bytes, what: str) -> str:
    """The text of bytes, without a line end. Raises Failure, which begins with `what`."""
    if len(data) > MOST_PROMPT_BYTES:
        raise Failure(f"{what} has more than {size(MOST_PROMPT_BYTES)}; give less")
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise Failure(
            f"{what} is not UTF-8: byte 0x{data[error.start]:02x} at {error.start}; convert it, "
            "for example with iconv"
        ) from None


def suggested_prompt(checkpoint: str) -> str:
    """A prompt that a model answers, by the name of its checkpoint: the shipped models know additions and
    little else.
    """
    from edgekit.export.checkpoint.hub import SHIPPED_MODELS

    return "What is 23 + 45?" if checkpoint in SHIPPED_MODELS else "Why is the sky blue?"
