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


def one_line(error: BaseException) -> str:
    """What another library's error says, without its line ends; its name if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
