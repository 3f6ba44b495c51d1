"""`edgekit fetch`: a bundle from servers into a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.flashload.errors import EdgekitError, FetchFailed, WriteFailed
from edgekit.flashload.manifest import manifest_path
from edgekit.flashload.names import unknown
from edgekit.flashload.sizes import size
from edgekit.tools.console import Steps, note
from edgekit.tools.failures import Interrupted
from edgekit.tools.help import Command
from edgekit.tools.options import Count, Folder, debug_option, json_option, said_of_choice
from edgekit.tools.suggestion import next_step
from edgekit.tools.terminal_text import counted, visible

if TYPE_CHECKING:
    from edgekit.flashload.fetch import Progress
    from edgekit.runtime.fetch.download import Arrived

#: Bytes that the bundles.json of a set may have had, which does not stay.
_MOST_LISTED = 1 << 16


@click.command(
    "fetch",
    cls=Command,
    short_help="Bring a bundle from a server, and update it.",
    examples=(
        "edgekit fetch https://example.com/models/llada llada",
        "edgekit fetch https://a.example/llada llada --mirror https://b.example/llada",
        "edgekit fetch /media/stick/llada llada",
    ),
)
@click.argument("source", metavar="SOURCE")
@click.argument("folder", metavar="FOLDER", type=Folder())
@click.option("--mirror", "mirrors", multiple=True, metavar="SOURCE", help="Another place; may be repeated.")
@click.option("--sha256", metavar="DIGITS", help="What its manifest begins with; of a set: of bundles.json.")
@click.option("--format", "form", metavar="NAME", help="Of several bundles the one of this format.")
@click.option("--connections", type=Count(1, 64), default=4, show_default=True, help="Requests at a time.")
@click.option("--repair", is_flag=True, help="Compare what is there already, and mend it.")
@json_option
@debug_option
def command(
    source: str,
    folder: Path,
    mirrors: tuple[str, ...],
    sha256: str | None,
    form: str | None,
    connections: int,
    repair: bool,
    as_json: bool,
) -> None:
    """Bring the bundle at SOURCE, the address of a folder or a folder of this machine, to FOLDER.

    Every run and file is compared with its checksum as it arrives. The same command goes on after any
    interruption. A bundle in FOLDER stays until the new one is whole; what has not changed is copied from it.
    """
    from edgekit.runtime.bundle.choice import system_here
    from edgekit.runtime.fetch import fetch

    if form is not None and form not in (known := _formats()):
        raise click.UsageError(unknown("format", form, known))
    with Steps("asking", quiet=as_json) as steps:
        shown = _Shown(steps, source, folder)
        try:
            done = fetch(
                [source, *mirrors],
                folder,
                sha256=sha256,
                formats=None if form is None else [form],
                system=system_here(),
                connections=connections,
                compare=repair,
                progress=shown.take,
                trouble=shown.note,
            )
        except KeyboardInterrupt:
            raise Interrupted("the same command goes on where it stopped") from None
        except EdgekitError as error:
            shown.end(str(error))
            if not isinstance(error, FetchFailed | WriteFailed):
                raise
            arriving = folder.with_name(f"{folder.name}.arriving")
            if not arriving.is_dir():
                raise
            stays = f"what has arrived stays in {arriving}, and the same command goes on with it"
            raise type(error)(f"{error}; {stays}") from error
        shown.end()
    if as_json:
        click.echo(json.dumps(asdict(done) | {"folder": str(done.folder)}))
        return
    if done.current:
        said = "has this bundle already; --repair compares it"
    else:
        manifests, twice = beside(done)
        parts = [f"{size(done.fetched)} fetched"]
        parts += [f"{size(manifests)} of that manifests"] if manifests else []
        parts += [f"{size(twice)} of that had come before"] if twice else []
        parts += [f"{size(done.found)} had arrived before"] if done.found else []
        parts += [f"{size(done.copied)} had not changed"] if done.copied else []
        parts += [f"{counted(done.damaged, 'damaged run')} came again"] if done.damaged else []
        said = f"{size(done.nbytes)}, every checksum is right: {', '.join(parts)}"
    click.echo(visible(f"{folder}: {said}"))
    note(f"next: {next_step(folder)}")


def beside(done: Arrived) -> tuple[int, int]:
    """Of what was fetched, the bytes of manifests, and those that came once more: damaged ones, and what a
    server without ranges gave before the bytes that were asked for.
    """
    beside = min(done.fetched, max(0, done.fetched + done.copied + done.found - done.nbytes))
    try:
        manifest = manifest_path(done.folder).stat().st_size
    except OSError:  # somebody has moved the folder
        manifest = 0
    manifests = min(beside, manifest + (_MOST_LISTED if done.chosen else 0))
    return manifests, beside - manifests


def _formats() -> list[str]:
    """Formats that bundles may have, those of plugins too."""
    from edgekit.export.formats import FORMATS
    from edgekit.runtime.engine_registry import ENGINES

    return list(dict.fromkeys([*FORMATS, *(row.format for row in ENGINES.working())]))


class _Shown:
    """Tells `Steps` how far a fetch is."""

    def __init__(self, steps: Steps, source: str, folder: Path) -> None:
        self._steps, self._stage, self._done = steps, "", 0
        self._source, self._folder = source, folder
        self._said = set[str]()
        self._waiting = ""
        self._fetched: int | None = None  # when that was told

    def note(self, line: str) -> None:
        """Each trouble once, when it is known that the fetch goes on in spite of it, or how: one that ends it
        is told by its error.
        """
        if not line.startswith(self._waiting):
            self.end()
        self._waiting, self._fetched = line, None

    def end(self, error: str = "") -> None:
        """Tell the last trouble, unless the error of the fetch does."""
        line, self._waiting = self._waiting, ""
        if line and line not in error:
            self._say(f"note: {line}")

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._steps.note(line)

    def take(self, progress: Progress) -> None:
        self._steps.advance(0, "")  # looks for interrupts
        if self._fetched is None:
            self._fetched = progress.fetched
        if progress.fetched > self._fetched or self._waiting.endswith("seconds"):
            self.end()
        if progress.chosen:
            kept = f", of the format of the one in {self._folder}; --format takes another"
            self._say(said_of_choice(self._source, progress.chosen) + (kept if progress.kept_format else ""))
        if progress.total == 0 or progress.current:
            return
        if not self._stage:
            self._stage = "fetching"
            self._steps.stage(self._stage, progress.total)
        done = progress.whole + progress.arrived
        self._steps.advance(max(0, done - self._done), f"{size(done)} of {size(progress.total)}")
        self._done = max(done, self._done)
