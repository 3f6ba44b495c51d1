"""`edgekit targets`: what can be exported for, and what of it was tried where."""

from __future__ import annotations

import json
from typing import Any

import click

from edgekit import targets
from edgekit.tools.help import Command
from edgekit.tools.options import debug_option
from edgekit.tools.terminal_text import visible


@click.command(
    "targets",
    cls=Command,
    short_help="List the device families that --target takes.",
    examples=("edgekit targets", "edgekit targets --json"),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@debug_option
def command(as_json: bool) -> None:
    """List the device families that `edgekit export --target` takes, the formats and engines that run there,
    and what of them was executed, compiled or measured on which machines.
    """
    rows = [_described(target) for target in targets.TARGETS.working()]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        click.echo(visible(f"{row['name']:8}{row['summary']}"))
        for form in row["formats"]:
            engine = "" if form["engine"] == form["name"] else f", engine {form['engine']}"
            click.echo(visible(f"        {form['name']}{engine}: {form['checked']}"))


def _described(target: targets.Target) -> dict[str, Any]:
    formats = [
        {
            "name": name,
            "engine": target.engines.get(name, name),
            "checked": target.checked.get(name, "nothing is known"),
        }
        for name in target.formats
    ]
    return {
        "name": target.name,
        "summary": target.summary,
        "preset": target.preset,
        "group_size": target.group_size,
        "formats": formats,
    }
