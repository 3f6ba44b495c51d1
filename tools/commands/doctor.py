"""`edgekit doctor`: what this machine has and lacks for edgekit, and what mends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from edgekit.tools.console import Steps, prose
from edgekit.tools.failures import DAMAGED, Failure
from edgekit.tools.help import Command
from edgekit.tools.options import Folder, debug_option, json_option

if TYPE_CHECKING:
    from edgekit.tools.doctor.finding import Finding

_MARKS = {"works": "ok", "note": "note", "lacks": "-", "broken": "BROKEN"}


@click.command(
    "doctor",
    cls=Command,
    short_help="Show what this machine has and lacks, and what mends it.",
    examples=("edgekit doctor", "edgekit doctor --json --no-measure"),
)
@click.option(
    "--disk",
    type=Folder(),
    default=".",
    metavar="FOLDER",
    help="Where bundles are to be: 256 MiB are written there, read, and removed. Default: here.",
)
@click.option(
    "--measure/--no-measure", default=True, show_default=True, help="Time the processor and the disk."
)
@json_option
@debug_option
@click.pass_context
def command(ctx: click.Context, disk: Path, measure: bool, as_json: bool) -> None:
    """Examine this machine: versions that go together, processor, memory, disk, the engines that really open,
    and what each target needs and lacks, with the command that brings it.

    With --json for bug reports: no name of a user, host or folder is in it. The exit code is 1 where
    something is broken.
    """
    if not measure and ctx.get_parameter_source("disk") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--disk is where the disk is timed, and --no-measure times nothing; give one")
    if measure and not disk.is_dir():
        lacking = "is no folder" if disk.exists() else "no such folder"
        raise Failure(f"{disk}: {lacking}; name one with --disk, or give --no-measure")
    found = _examined(disk, measure=measure, quiet=as_json)
    if as_json:
        click.echo(
            json.dumps({"edgekit_doctor": 1, "findings": [each.as_dict() for each in found]}, indent=1)
        )
    else:
        _show(found)
    if any(each.state == "broken" for each in found):
        ctx.exit(DAMAGED)


def _examined(disk: Path, *, measure: bool, quiet: bool) -> list[Finding]:
    from edgekit.tools.doctor import engines, installation, machine, targets

    with Steps("looking", quiet=quiet) as steps:
        steps.stage("versions", 0)
        found = list(installation.examine())
        steps.stage("the machine", 0)
        found += machine.examine(disk, measure=measure)
        steps.stage("engines", 0)
        opened = []
        for each in engines.examine():
            steps.advance(0, each.about)
            opened.append(each)
        found += opened
        found += targets.examine({str(each.facts["engine"]): each for each in opened})
    return found


def _show(found: list[Finding]) -> None:
    width = max(len(each.about) for each in found)
    for each in found:
        prose(f"{_MARKS[each.state]:7}{each.about:{width}}  {each.says}")
        if each.mend and each.mend not in each.says:
            prose(f"{'':7}{'':{width}}  mend: {each.mend}")
    broken = sum(each.state == "broken" for each in found)
    lacking = sum(each.state == "lacks" for each in found)
    click.echo()
    prose(f"{broken} broken, {lacking} not there, {len(found) - broken - lacking} fine")
