"""The command that comes next once a bundle is there."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.engine_registry import running
from edgekit.tools.console import command_line
from edgekit.tools.prompts import suggested_prompt


def next_step(folder: Path) -> str:
    """The command for a bundle, or a set of some, that has just been written: `run` where it can be run here,
    else `verify` and the reason.
    """
    from edgekit.flashload import bundle_set, manifest
    from edgekit.runtime.bundle.compiled import device_of
    from edgekit.targets import TARGETS

    try:
        several = bundle_set.is_set(folder)
        members = [folder / each.path for each in bundle_set.load(folder).members] if several else [folder]
        found = [manifest.load(each) for each in members]
    except EdgekitError:  # what is wrong is for the next command to say
        return suggested_run(folder)
    first, verify = found[0], command_line("verify", folder)
    device, target = device_of(first.programs), TARGETS.find(str(first.provenance.get("target")))
    if device is not None and device.archive:
        return (
            f"{verify}; {device.archive} holds objects for an application's linker, and edgekit runs no "
            "linked ones yet: --format native is what runs there"
        )
    if target is not None and target.name == "ios":
        return f"{verify}; its README.md says how an app uses it"
    if not any(_runs_here(each.format) for each in found):
        return f"{verify}; no engine here runs it"
    engine = None if target is None else target.engines.get(first.format)
    return suggested_run(folder, *([] if engine is None else ["--engine", engine]))


def _runs_here(program_format: str) -> bool:
    """Whether there is an engine for a format on this system."""
    row = running(program_format)
    return row is not None and (not row.systems or platform.system() in row.systems)


def suggested_run(folder: Path, *words: str) -> str:
    """`edgekit run` with a prompt for the bundle's checkpoint, with further words, and with the length of an
    answer where programs have no room for the default one.
    """
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.generation import Generator

    length: list[str] = []
    prompt = suggested_prompt("")
    with suppress(EdgekitError):  # what is wrong is for the command to say
        bundle = Bundle.open(folder)
        prompt = suggested_prompt(str(bundle.manifest.provenance.get("checkpoint")))
        if bundle.packages is not None:  # else there is room, and the tokenizer need not be read
            with Generator(bundle.path) as generator:
                tokens = generator.suggested_length(prompt)
            length = [] if tokens is None else ["--max-new-tokens", str(tokens)]
    return command_line("run", folder, prompt, *words, *length, "--watch")
