"""`edgekit targets`: what can be exported for, and what of it was tried where."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from edgekit import targets
from edgekit.export.formats import FORMATS
from edgekit.runtime.bundle.compiled import Device
from edgekit.runtime.engine_registry import ENGINES
from edgekit.tools.help import Command
from edgekit.tools.options import debug_option
from edgekit.tools.terminal_text import visible

#: Of devices, in one line.
_MOST_NAMES = 3


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
    and what of them was executed, compiled or measured on which machines. Formats that compile programs have
    the devices that `--device` takes, the target's own first, or the chips that `--soc` takes.
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
            for device in form.get("devices", ()):
                click.echo(visible(f"          --device {device['name']}: {device['summary']}"))
            for chip, title in form.get("socs", {}).items():
                click.echo(visible(f"          --soc {chip}: {title}"))
            for needs, names in _needed(form.get("devices", ())).items():
                click.echo(visible(f"          to run {names}: {needs}"))


def _devices(target: targets.Target, written: str) -> dict[str, Any]:
    """What a format's programs can be compiled for, the target's own first: devices, or chips."""
    row = FORMATS.find(written)
    if row is not None and row.socs:
        return {"socs": dict(row.socs)}
    if row is None or not row.devices:
        return {}
    each = [
        Device(name, row.devices[name].summary)
        for name in target.devices.get(written, tuple(row.devices))
        if name in row.devices
    ]
    engine = ENGINES.find(target.engines.get(written, written))
    requirement = "edgekit" if engine is None else engine.install
    return {
        "devices": [
            {
                "name": device.name,
                "summary": device.summary,
                "needs": device.needs,
                "install": device.install(requirement),
            }
            for device in each
        ]
    }


def _needed(devices: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What devices take to run their programs, and which."""
    found: dict[str, list[str]] = {}
    for device in devices:
        if device["needs"]:
            found.setdefault(device["needs"], []).append(device["name"])
    return {needs: _shortly(names) for needs, names in found.items()}


def _shortly(names: Sequence[str]) -> str:
    """Names, of many the beginning that they share."""
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{os.path.commonprefix(list(names))}*"


def _described(target: targets.Target) -> dict[str, Any]:
    formats = [
        {
            "name": name,
            "engine": target.engines.get(name, name),
            "checked": target.checked.get(name, "nothing is known"),
        }
        | _devices(target, name)
        for name in target.formats
    ]
    return {
        "name": target.name,
        "summary": target.summary,
        "preset": target.preset,
        "group_size": target.group_size,
        "formats": formats,
    }
