"""Errors of the runtime."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.errors import UnsupportedBundle as UnsupportedBundle
from edgekit.flashload.errors import one_line as one_line


class EngineUnavailable(EdgekitError):
    """The engine's packages are missing, too old, or cannot compute correctly on this machine."""


class EngineFailed(EdgekitError):
    """The engine refused a program or its inputs."""


class Remark(UserWarning):
    """A note to whoever runs a model: nothing is wrong with what it answers."""


class RunsOnProcessor(Remark):
    """Operators that the provider of a GPU leaves to the processor."""


class EncodedAgain(Remark):
    """A text that is encoded again, since the file that holds its keys and values is damaged."""


class PromptTooLong(EdgekitError):
    """The prompt and the text to be generated do not fit the memory budget or the model."""


class GenerationEnded(EdgekitError):
    """The generation cannot go on: its model was closed, generates something else meanwhile, or is in use by
    another thread.
    """
