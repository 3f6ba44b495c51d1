"""`edgekit options`: the settings of a bundle's sampler."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from edgekit.tools.console import table
from edgekit.tools.help import Command
from edgekit.tools.options import bundle_argument, debug_option, json_option
from edgekit.tools.setting_table import rows


@click.command(
    "options",
    cls=Command,
    short_help="List the sampler settings of a bundle.",
    examples=("edgekit options tiny-gemma-host-mixed4", "edgekit options tiny-gemma-host-mixed4 --json"),
)
@bundle_argument
@json_option
@debug_option
def command(bundle: str, as_json: bool) -> None:
    """List what `--set name=value` takes for BUNDLE: names, the bundle's own values, what else they may
    be, and what they mean.

    Values are read as JSON (8, 0.3, true, null, [1, 2]) and are text otherwise. No weights are read.
    """
    import edgekit

    with edgekit.load(bundle) as model:
        options = model.options()
    if as_json:
        listed = [asdict(option) for option in options]
        click.echo(json.dumps({"bundle": str(model.path), "family": model.family, "options": listed}))
        return
    table(("name", "default", "may be", "meaning"), rows(options), left=4)
