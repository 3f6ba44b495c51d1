"""`edgekit plan`: what a model takes on a device, before it is downloaded or bought."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from edgekit.flashload.sizes import exact_size
from edgekit.tools.completion import models, planned_devices, preset_names
from edgekit.tools.console import Steps, note, prose, table
from edgekit.tools.digits import digits
from edgekit.tools.failures import Failure
from edgekit.tools.help import Command, Rare
from edgekit.tools.options import (
    Bytes,
    Count,
    Folder,
    Several,
    Size,
    debug_option,
    html_option,
    json_option,
)
from edgekit.tools.output_file import check_page

if TYPE_CHECKING:
    from edgekit.targets.devices import Device
    from edgekit.tools.planning.plan import Plan
    from edgekit.tools.planning.rates import Rates

#: The device that is examined instead of looked up.
HERE = "this"


@click.command(
    "plan",
    cls=Command,
    short_help="Predict what a model takes on a device.",
    examples=(
        "edgekit plan diffusion-gemma-26b --device iphone-17-pro-256",
        "edgekit plan llada-8b --memory 2GB",
        "edgekit plan llada-8b --compare --html devices.html",
        "edgekit plan --list",
    ),
)
@click.argument("model", required=False, shell_complete=models)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="ID",
    shell_complete=planned_devices,
    help="Of --list, or this: the machine here, which is measured first. Can be repeated. Default: this.",
)
@click.option("--compare", is_flag=True, help="A table of all devices.")
@click.option("--list", "listed", is_flag=True, help="Show the devices that are known.")
@click.option("--memory", type=Bytes(least=1), metavar="SIZE", help="A budget, in place of the device's own.")
@click.option(
    "--quant", default="mixed4", show_default=True, metavar="PRESET", shell_complete=preset_names,
    help="Preset: bf16, int8, mixed4 or int4.",
)  # fmt: skip
@click.option("--sequences", type=Count(1, 1024), default=1, show_default=True, metavar="N",
              help="Answers at a time.")  # fmt: skip
@click.option("-p", "--prompt-tokens", type=Count(1), default=64, show_default=True, metavar="N",
              help="Length of a prompt.")  # fmt: skip
@click.option("-n", "--new-tokens", type=Count(1), metavar="N",
              help="Length of an answer. Default: the model's own.")  # fmt: skip
@click.option("--steps", type=Several(Count(1)), default="8,16,48", show_default=True, metavar="N,...",
              help="Denoising steps of a canvas, for tokens a second.")  # fmt: skip
@click.option("--bench", "reports", type=click.Path(dir_okay=False, path_type=Path), multiple=True,
              metavar="FILE", help="Add what `edgekit bench --report` measured.")  # fmt: skip
@click.option("--group-size", cls=Rare, type=Count(), default=32, show_default=True, metavar="N",
              help="Weights that share a scale in 4 bits.")  # fmt: skip
@click.option("--disk", cls=Rare, type=Folder(), default=".", metavar="FOLDER",
              help="For this machine: where bundles are to be; 256 MiB are written there, and removed. "
              "Default: here.")  # fmt: skip
@html_option
@json_option
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str | None,
    devices: tuple[str, ...],
    compare: bool,
    listed: bool,
    memory: Size | None,
    quant: str,
    sequences: int,
    prompt_tokens: int,
    new_tokens: int | None,
    steps: Sequence[int],
    reports: tuple[Path, ...],
    group_size: int,
    disk: Path,
    html: Path | None,
    as_json: bool,
) -> None:
    """Predict memory, reads and seconds of a denoising step of MODEL on devices, from its config.json alone.

    MODEL is a folder or owner/name as for `export`, of which no weights are needed, a config.json, or one of
    llada-8b, diffusion-gemma-26b, nemotron-3b, sdar-4b, fast-dllm-1.5b, llada2.0-mini, llada2.2-mini.
    """
    if listed == (model is not None):
        both = "; not both" if listed else ""
        raise click.UsageError(f"name a model to plan, or --list to see what is known{both}")
    if compare and devices and devices != (HERE,):
        raise click.UsageError("--compare is for all devices; leave --device out, or name only this")
    if listed:
        _nothing_else(ctx)
    check_page(html)
    named = _named(devices, compare=compare, alone=not reports)
    if memory is not None and not named:
        raise click.UsageError("--memory is for devices, and a report has its own; name one by --device")
    if "disk" in _given(ctx) and HERE not in named:
        raise click.UsageError(f"--disk is for the machine here; leave it out, or name --device {HERE}")
    if html is not None:
        import edgekit.tools.html.plan_page  # noqa: F401 - what it lacks is told before anything is done
    if model is None:
        _list_devices(as_json=as_json)
        return
    from edgekit.export import formats

    formats.get("native").check_installed()
    with Steps("planning", quiet=as_json) as progress:
        progress.stage("the model", 0)
        from edgekit.export.quantize import Scheme
        from edgekit.tools.benchmark.files import read_reports
        from edgekit.tools.planning import measured, plan, show
        from edgekit.tools.planning.model import planned
        from edgekit.tools.planning.predict import Request
        from edgekit.tools.planning.source import configuration

        request = Request(prompt_tokens, new_tokens, sequences)
        found = [(path, report) for path in reports for report in read_reports([path])]
        chosen = _chosen(named, memory, compare=compare)
        with planned(configuration(model, progress), Scheme(quant, group_size), progress) as known:
            progress.stage("planning", len(chosen))
            plans = []
            for name in chosen:
                progress.advance(0, name)
                plans.append(plan.make(name, known, _rates(name, disk, memory), request))
                progress.advance(1, name)
            for path, report in found:
                of_report = measured.plan_of(report, known, quant, request, path)
                # Reports of other models lend their machine, which is told once.
                if of_report.measured_seconds is not None or of_report.rates not in [p.rates for p in plans]:
                    plans.append(of_report)
            about, title = show.model_facts(known, quant), show.model_line(known, quant)
    if html is not None:
        from edgekit.flashload.files import write_atomic
        from edgekit.tools.html.plan_page import page

        write_atomic(html, page(title, plans, steps))
    if as_json:
        each = [show.as_dict(one, steps) for one in plans]
        click.echo(json.dumps({"edgekit_plan": 1, "model": about, "plans": each}))
        return
    prose(title)
    click.echo()
    if len(plans) == 1:
        _show(plans[0], steps)
        return
    told = any(each.measured_seconds is not None for each in plans)
    counts = show.counts(plans, steps)
    headings = show.headings(counts, measured=told)
    table(headings, [show.cells(each, counts, measured=told) for each in plans], show.LEFT)
    if lowered := show.too_many(plans, steps):
        click.echo()
        prose(lowered)


def _given(ctx: click.Context) -> dict[str, str]:
    """The options that stand in the command line, each as it is written there, by parameter."""
    return {
        param.name: max(param.opts, key=len)
        for param in ctx.command.params
        if param.name and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    }


def _nothing_else(ctx: click.Context) -> None:
    """Raises UsageError for options beside --list that would change nothing."""
    others = [option for name, option in _given(ctx).items() if name not in ("listed", "as_json")]
    if others:
        raise click.UsageError(f"{others[0]} is for plans, not for --list; leave one of them out")


def _named(devices: Sequence[str], *, compare: bool, alone: bool) -> list[str]:
    """Ids of devices; this one where nothing else is asked for."""
    from edgekit.targets.devices import devices as known

    others = [*known()] if compare else [HERE] if alone and not devices else []
    return list(dict.fromkeys([*devices, *others]))


def _chosen(named: Sequence[str], memory: Size | None, *, compare: bool) -> list[str]:
    """Those of `named` that have so much memory; of a comparison the others are left out and told. Raises
    UnknownTarget, and Failure for one that was asked for and has less.
    """
    from edgekit.targets.devices import device
    from edgekit.tools.planning.rates import GB

    small = []
    for known in [device(name) for name in named if name != HERE]:
        has = known.figures["ram_gb"].value
        if memory is None or memory <= has * GB:
            continue
        if not compare:
            raise Failure(
                f"--memory {exact_size(memory)}: more than the {has:g} GB that {known.id} has; give less"
            )
        small.append(known.id)
    if memory is not None and small:
        note(f"note: left out, with less memory than {exact_size(memory)}: {', '.join(small)}")
        if len(small) == len(named):
            raise Failure(f"--memory {exact_size(memory)}: no device of --list has as much; give less")
    return [name for name in named if name not in small]


def _rates(name: str, disk: Path, memory: int | None) -> Rates:
    """Of a device, with a budget in place of its own."""
    from edgekit.targets.devices import Figure, device
    from edgekit.tools.planning.here import here
    from edgekit.tools.planning.rates import GB, of_device

    rates = here(disk, memory) if name == HERE else of_device(device(name))
    if memory is None:
        return rates
    given = Figure(memory / GB, "given", _in_place(rates))
    return replace(rates, budget=int(memory)).with_figure("app_budget_gb", given)


def _in_place(rates: Rates) -> str:
    """Where a budget is from, and what it takes the place of."""
    own = rates.figures.get("app_budget_gb")
    return "--memory" if own is None else f"--memory, in place of {own.value:.3g} GB"


def _show(one: Plan, steps: Sequence[int]) -> None:
    from edgekit.tools.planning import show

    _columns([*show.lines(one, steps)])
    click.echo()
    prose("from")
    _columns([*show.sources(one.rates.figures)], "  ")


def _columns(lines: Sequence[tuple[str, str]], indent: str = "") -> None:
    width = max(len(name) for name, _ in lines)
    for name, says in lines:
        prose(f"{name:{width}}  {says}", indent)


def _list_devices(*, as_json: bool) -> None:
    from edgekit.targets.devices import devices

    known = devices().values()
    if as_json:
        click.echo(json.dumps({"devices": [asdict(device) for device in known]}))
        return
    table(
        ["id", "device", "chip", "target", "memory of an app", "flash"],
        [[device.id, device.name, device.soc, device.target, *_memory_and_flash(device)] for device in known],
        4,
    )


def _memory_and_flash(device: Device) -> Iterator[str]:
    """What an application may use there, and how fast large reads are."""
    for name, unit in (("app_budget_gb", "GB"), ("flash_read_gbps", "GB/s")):
        figure = device.figures.get(name)
        yield "-" if figure is None else f"{digits(figure.value)} {unit}"
