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


class PassTooLong(PromptTooLong):
    """A pass is longer than the programs of the bundle: `found` says so, and `fits` how many new tokens they
    have room for behind the prompt, 0 if for none, None if that is not known. `asking` is how to ask for so
    many, {0}.
    """

    def __init__(
        self, found: str, fits: int | None, asking: str = "--max-new-tokens {0} (max_new_tokens={0})"
    ) -> None:
        fewer = "ask for fewer new tokens, "
        if fits is not None:
            fewer = f"use {asking.format(fits)}, " if fits else ""
        super().__init__(f"{found}: {fewer}shorten the prompt, or export with longer --lengths")
        self.found, self.fits = found, fits


class GenerationEnded(EdgekitError):
    """The generation cannot go on: its model was closed, generates something else meanwhile, or is in use by
    another thread.
    """
