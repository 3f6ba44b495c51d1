"""Errors of the runtime."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.errors import UnsupportedBundle as UnsupportedBundle


class EngineUnavailable(EdgekitError):
    """The engine's packages are missing, too old, or cannot compute correctly on this machine."""


class EngineFailed(EdgekitError):
    """The engine refused a program or its inputs."""


class PromptTooLong(EdgekitError):
    """The prompt and the text to be generated do not fit the memory budget or the model."""


class GenerationEnded(EdgekitError):
    """The generation cannot go on: its model was closed, generates something else meanwhile, or is in use by
    another thread.
    """


#: Longest text of another library that a message quotes: their messages can hold whole files.
_MOST_QUOTED = 300


def one_line(error: BaseException) -> str:
    """What another library's error says, in one line and cut to fit; its name if it says nothing."""
    said = " ".join(str(error)[: 20 * _MOST_QUOTED].split()) or type(error).__name__
    return said if len(said) <= _MOST_QUOTED else said[: _MOST_QUOTED - 4] + " ..."
