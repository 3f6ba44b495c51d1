"""The command that runs a bundle once it is there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgekit.flashload.errors import EdgekitError
from edgekit.tools.console import command_line
from edgekit.tools.prompts import suggested_prompt


def suggested_run(folder: Path, checkpoint: str | None = None, *words: str) -> str:
    """`edgekit run` with a prompt for a checkpoint of that name, by default the bundle's own, with further
    words, and with the length of an answer where programs have no room for the default one.
    """
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.generation import Generator

    length: list[str] = []
    prompt = suggested_prompt(checkpoint or "")
    with suppress(EdgekitError):  # what is wrong is for the command to say
        bundle = Bundle.open(folder)
        if checkpoint is None:
            prompt = suggested_prompt(str(bundle.manifest.provenance.get("checkpoint")))
        if bundle.packages is not None:  # else there is room, and the tokenizer need not be read
            with Generator(bundle.path) as generator:
                tokens = generator.suggested_length(prompt)
            length = [] if tokens is None else ["--max-new-tokens", str(tokens)]
    return command_line("run", folder, prompt, *words, *length, "--watch")
