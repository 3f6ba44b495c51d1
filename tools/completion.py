"""Completion in the shell: names that commands know, and folders with a bundle or a checkpoint in them.

A shell asks with every press of the tab key: nothing here imports more than the names need.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from edgekit import targets
from edgekit.flashload.bundle_set import SET_NAME
from edgekit.flashload.manifest import MANIFEST_NAME


def target_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Targets with their summaries."""
    return [
        CompletionItem(target.name, help=target.summary)
        for target in targets.TARGETS.working()
        if target.name.startswith(incomplete)
    ]


def format_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Formats of the target that is on the line or the default; all of them for one that nobody knows."""
    from edgekit.export.formats import FORMATS

    asked = ctx.params.get("target")
    target = next((target for target in targets.TARGETS.working() if target.name == asked), None)
    return _names(FORMATS if target is None else target.formats, incomplete)


def preset_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekit.export.presets import PRESETS

    return _names(PRESETS, incomplete)


def precision_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekit.export.formats.options import PRECISIONS

    return _names(PRECISIONS, incomplete)


def activation_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekit.export.formats import FORMATS

    choices = [row.activations for row in FORMATS.working() if len(row.activations) > 1]
    offered = dict.fromkeys(name for names in choices for name in names)
    return _names(tuple(offered), incomplete)


def device_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Devices with what they are, of the target that is on the line or the default."""
    from edgekit.export.formats import FORMATS

    asked = ctx.params.get("target")
    target = next((target for target in targets.TARGETS.working() if target.name == asked), None)
    return [
        CompletionItem(name, help=device.summary)
        for row in FORMATS.working()
        for name, device in row.devices.items()
        if name.startswith(incomplete)
        and (target is None or name in target.devices.get(row.name, tuple(row.devices)))
    ]


def soc_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Chips with what they are sold as, behind those that stand there with commas."""
    from edgekit.export.formats import FORMATS

    given, comma, begun = incomplete.rpartition(",")
    known = {name: title for row in FORMATS.working() for name, title in row.socs.items()}
    return [
        CompletionItem(given + comma + name, help=title)
        for name, title in known.items()
        if name.startswith(begun) and name not in given.split(",")
    ]


def versions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Versions of iOS that the formats can be asked for."""
    from edgekit.export.formats import FORMATS

    return _names([version for row in FORMATS.working() for version in row.versions], incomplete)


def engine_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekit.runtime.engine_registry import ENGINES

    return _names(ENGINES, incomplete)


def setting_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Settings of the bundle that is on the line, up to the value."""
    from edgekit.flashload.errors import EdgekitError
    from edgekit.runtime.api.options import options_of
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.generation import sampler_model
    from edgekit.runtime.sampling import settle

    # While an option lacks its value, the words before it have not been given to the arguments yet.
    given = ctx.params.get("bundle") or "".join(ctx.args[:1])
    try:
        bundle = Bundle.open(os.path.expanduser(given))
        own = settle(sampler_model(bundle))
    except (EdgekitError, OSError):
        return []
    return [
        CompletionItem(f"{option.name}=", help=option.help)
        for option in options_of(own)
        if option.name.startswith(incomplete)
    ]


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shipped models and folders of checkpoints."""
    from edgekit.export.checkpoint.hub import SHIPPED_MODELS

    found = [CompletionItem(name, help="comes with edgekit") for name in SHIPPED_MODELS]
    found = [item for item in found if item.value.startswith(incomplete)]
    return [*found, *_folders(incomplete, ("config.json",))] or _any_folder(incomplete)


def planned_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Devices that plans know, and the machine here."""
    from edgekit.targets.devices import devices

    found = [CompletionItem("this", help="the machine here, measured")]
    found += [CompletionItem(device.id, help=device.name) for device in devices().values()]
    return [item for item in found if item.value.startswith(incomplete)]


def bundles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders of bundles and of sets of bundles; where there are none, the way to them."""
    return _folders(incomplete, (MANIFEST_NAME, SET_NAME)) or _any_folder(incomplete)


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Any folder."""
    return _any_folder(incomplete)


def _names(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def _folders(incomplete: str, files: tuple[str, ...]) -> list[CompletionItem]:
    """Folders that have one of the files, written as they were begun."""
    begun, name = os.path.split(incomplete)
    try:
        inside = sorted(os.listdir(os.path.expanduser(begun) or "."))
    except OSError:
        return []
    found = [os.path.join(begun, entry) for entry in inside if entry.startswith(name)]
    return [
        CompletionItem(folder)
        for folder in found
        if any(os.path.isfile(os.path.join(os.path.expanduser(folder), file)) for file in files)
    ]


def _any_folder(incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]
