"""`edgekit export`: checkpoint in, bundle out."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit import targets
from edgekit.export import formats
from edgekit.export.formats import FORMATS, FormatRow
from edgekit.export.formats.options import FormatOptions, Packaging, parse_lengths, parse_names
from edgekit.export.formats.row import check_minimum_os, shared_out
from edgekit.export.presets import ADAPTER_MODES
from edgekit.flashload.sizes import size
from edgekit.tools.completion import (
    activation_names,
    device_names,
    folders,
    format_names,
    models,
    precision_names,
    preset_names,
    soc_names,
    target_names,
    versions,
)
from edgekit.tools.console import Steps, command_line, grouped, note, table
from edgekit.tools.failures import Interrupted
from edgekit.tools.folder_name import folder_name, model_name
from edgekit.tools.help import Command, Listing, Rare, RareListing
from edgekit.tools.options import Count, Folder, debug_option, json_option
from edgekit.tools.suggestion import next_step
from edgekit.tools.terminal_text import visible

if TYPE_CHECKING:
    from edgekit.export.pipeline import ExportResult


def _formats(offering: Callable[[FormatRow], object]) -> Callable[[], list[str]]:
    """The words that name the formats that offer something."""
    return lambda: [row.name for row in FORMATS.working() if offering(row)]


def _versions() -> list[str]:
    """The versions of iOS that formats can be asked for, each with the format that has it."""
    return [f"{version} ({row.name})" for row in FORMATS.working() for version in row.versions]


#: Notes shown at the end of an export; `inspect` shows all.
_MOST_NOTES = 6


@click.command(
    "export",
    cls=Command,
    short_help="Quantize a checkpoint and write a bundle.",
    examples=("edgekit export tiny-gemma", "edgekit export tiny-gemma --quant int8 -o tiny"),
)
@click.argument("model", shell_complete=models)
@click.option(
    "--target",
    cls=Listing,
    names=lambda: targets.TARGETS,
    default="host",
    show_default=True,
    metavar="NAME",
    shell_complete=target_names,
    help="Device family: {names}.",
)
@click.option(
    "--format",
    "format_",
    cls=Listing,
    names=lambda: FORMATS,
    metavar="NAME",
    shell_complete=format_names,
    help="Format: {names}. Default: the target's.",
)
@click.option(
    "--quant",
    metavar="PRESET",
    shell_complete=preset_names,
    help="Preset: bf16, int8, mixed4 or int4. Default: the target's (mixed4).",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATTERN=BITS",
    help="Bits of the weights that match, e.g. 'layers.0.*=8'; the last match wins. Can be repeated.",
)
@click.option(
    "--adapter",
    metavar="ADAPTER",
    shell_complete=folders,
    help="LoRA adapter for the model: a folder of PEFT, or owner/name on the hub.",
)
@click.option(
    "--adapter-mode",
    cls=Rare,
    type=click.Choice(ADAPTER_MODES),
    default=ADAPTER_MODES[0],
    show_default=True,
    help="merged into the weights before they are quantized, or switched: beside them, for passes that say "
    "which rows it is for.",
)
@click.option(
    "-o",
    "--output",
    type=Folder(),
    metavar="DIR",
    shell_complete=folders,
    help="Folder of the bundle. Default: MODEL[-ADAPTER]-TARGET[-FORMAT]-PRESET here.",
)
@click.option("--resume", is_flag=True, help="Go on with an export that was interrupted.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle that is in the output folder.")
@click.option(
    "--group-size",
    cls=Rare,
    type=Count(),
    metavar="N",
    help="Weights that share a scale in 4 bits. Default: the target's (32; mac: 64).",
)
@click.option(
    "--precision",
    cls=RareListing,
    names=_formats(lambda row: len(row.precisions) > 1),
    joined=", ",
    metavar="NAME",
    shell_complete=precision_names,
    help="float16 or float32 ({names}). Default: float16.",
)
@click.option(
    "--activations",
    cls=RareListing,
    names=_formats(lambda row: len(row.activations) > 1),
    joined=", ",
    metavar="NAME",
    shell_complete=activation_names,
    help="float, or int8 for the Neural Engine of A17 Pro, M4 and later with --quant int8 ({names}). "
    "Default: float.",
)
@click.option(
    "--device",
    cls=RareListing,
    names=_formats(lambda row: row.devices),
    joined=", ",
    metavar="NAME",
    shell_complete=device_names,
    help="What to compile programs for ({names}), e.g. aarch64, opencl or cuda; `edgekit targets` lists all. "
    "Default: the target's.",
)
@click.option(
    "--soc",
    "socs",
    cls=RareListing,
    names=_formats(lambda row: row.socs),
    joined=", ",
    metavar="NAME,NAME...",
    shell_complete=soc_names,
    help="Chips to compile packages for beside the form that all of them take ({names}), e.g. sm8650,sm8750. "
    "Default: none.",
)
@click.option(
    "--calibrate",
    cls=RareListing,
    names=_formats(lambda row: row.calibrates),
    joined=", ",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Texts for ranges of activations ({names}): plain text, or lines as `edgekit bench --prompts` takes "
    "them. Default: random tokens.",
)
@click.option(
    "--min-os",
    cls=RareListing,
    names=_versions,
    metavar="VERSION",
    shell_complete=versions,
    help="Oldest iOS for the bundle: {names}. Default: the oldest, and beside it a bundle for the newest "
    "where both fit into an app.",
)
@click.option(
    "--lengths",
    cls=RareListing,
    names=_formats(lambda row: row.packages),
    joined=", ",
    metavar="N,N...",
    help="Positions to make functions for ({names}); DiffusionGemma: positions of the prefix. "
    "Default: 128, 256 and so on to 1024; of a prefix 0, then from one canvas to 8.",
)
@click.option(
    "--max-positions",
    cls=RareListing,
    names=_formats(lambda row: row.packages),
    joined=", ",
    type=Count(),
    metavar="N",
    help="Where the default --lengths end ({names}). Default: at 1024; of a prefix at 8 canvases.",
)
@click.option(
    "--layers-per-chunk",
    cls=RareListing,
    names=_formats(lambda row: row.packages),
    joined=", ",
    type=Count(),
    metavar="N",
    help="Layers of a package ({names}). Default: up to 8.",
)
@click.option(
    "--decoding",
    cls=Rare,
    type=click.Choice(["mdlm", "bd3lm"]),
    help="The mask that a checkpoint of dllm (a2d) was trained with. Default: what its name says.",
)
@click.option("--if-interrupted", metavar="TEXT", hidden=True, help="What to say then.")
@json_option
@debug_option
def command(
    model: str,
    target: str,
    format_: str | None,
    precision: str | None,
    activations: str | None,
    device: str | None,
    socs: str | None,
    calibrate: Path | None,
    quant: str | None,
    group_size: int | None,
    overrides: tuple[str, ...],
    adapter: str | None,
    adapter_mode: str,
    min_os: str | None,
    lengths: str | None,
    max_positions: int | None,
    layers_per_chunk: int | None,
    decoding: str | None,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    if_interrupted: str | None,
    as_json: bool,
) -> None:
    """Quantize the checkpoint MODEL and write a bundle that `edgekit run` streams from.

    MODEL is a folder in Hugging Face layout, owner/name on the Hugging Face hub, or a model that comes with
    edgekit: tiny-gemma, tiny-llada, tiny-block. Memory holds a few tensors at a time, whatever the size of
    the model.
    """
    chosen = targets.get(target)
    names = chosen.formats_for(format_, min_os)
    if min_os is not None and format_ is None:  # a version that no format has does not say which is meant
        check_minimum_os(min_os, map(formats.get, chosen.formats), f"target {target}")
    # Before PyTorch is loaded, which takes seconds.
    cut = (None if lengths is None else parse_lengths(lengths), max_positions, layers_per_chunk, min_os)
    wanted = FormatOptions(
        precision,
        None if all(option is None for option in cut) else Packaging(*cut),
        activations,
        device,
        None if socs is None else parse_names(socs),
        None if calibrate is None else True,
    )
    forms, asked = shared_out([formats.get(own) for own in names], wanted)
    compiled_for = {own: chosen.device(own, device) for own in names}
    if resume and overwrite:
        raise click.UsageError("--resume and --overwrite exclude each other")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # of huggingface_hub: there is one of ours
    started = time.monotonic()
    name = model_name(model)
    preset = chosen.preset if quant is None else quant
    folder = output or Path(folder_name(model, adapter, chosen, names, preset))
    alone, loading, writing = "", False, False
    try:
        with warnings.catch_warnings():
            # What PyTorch and onnxscript say about each other's interfaces is nothing the user could act on.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            with Steps("looking for the model", quiet=as_json) as steps:
                from edgekit.export.checkpoint.hub import adapter_folder, locate

                formats.get(names[0]).check_installed(compiled_for[names[0]])
                source = locate(model, progress=steps)
                tuned = None if adapter is None else adapter_folder(adapter, steps)
            with Steps("loading PyTorch", quiet=as_json):
                from edgekit.export.pipeline import ExportOptions, write
                from edgekit.export.quantize import Scheme, parse_override
                from edgekit.export.sets import check_folder, plan_together, write_together
                from edgekit.tools.calibration_file import read_texts

                texts = None if calibrate is None else read_texts(calibrate)
                bits = tuple(parse_override(o) for o in overrides)
                scheme = Scheme(preset, chosen.group_size if group_size is None else group_size, bits)
            each = [
                ExportOptions(
                    own, target, scheme, source=name, resume=resume, overwrite=overwrite,
                    precision=form.precision, packaging=form.packaging, activations=form.activations,
                    device=compiled_for[own], socs=form.socs, calibrate=texts if form.texts else None,
                    decoding=decoding, adapter=tuned,
                    adapter_name="" if adapter is None else model_name(adapter), adapter_mode=adapter_mode,
                    together=len(names) > 1,
                )
                for own, form in zip(names, forms, strict=True)
            ]  # fmt: skip
            with Steps("opening the checkpoint", quiet=as_json) as steps:
                plans, why = plan_together(source.checkpoint(), each, chosen.together_bytes, asked)
                lacking = sum(source.lacking().values())
                found = check_folder(plans, folder, lacking if source.shares_disk(folder) else 0)
                if resume and found is None:
                    steps.note(f"note: {folder} has nothing to go on with; the export begins anew")
                if lacking:  # nothing is known against the export: the download is worth its time
                    steps.note(f"downloading {size(lacking)} of weights to {source.path}")
                    loading = True
                    source.fetch(steps)
                    loading = False
                    plans, why = plan_together(source.checkpoint(), each, chosen.together_bytes, asked)
                written = " and ".join(plan.options.format for plan in plans)
                steps.note(f"exporting {model} to {folder} ({written}, {preset})")
                if why:
                    # Of what is written anyway nobody has to be told to ask for it.
                    why = why.removesuffix(f"; --format {written} takes them")
                    alone = f"for {written} alone: {why}{_instead(chosen, names[1:])}"
                    steps.note(f"note: {alone}")
                writing = True
                if len(plans) > 1:
                    results = write_together(plans, folder, steps)
                else:
                    results = [write(plans[0], folder, steps)]
                chosen.finish(folder)
    except KeyboardInterrupt:
        if loading:
            raise Interrupted("the same command goes on with the download where it stopped") from None
        hint = _goes_on(folder, resume, overwrite) if writing and folder.exists() else ""
        raise Interrupted(if_interrupted or hint) from None
    if as_json:
        click.echo(json.dumps(_as_dict(folder, results, alone)))
    else:
        _show(folder, results, time.monotonic() - started)


def _goes_on(folder: Path, resume: bool, overwrite: bool) -> str:
    """The command by which an interrupted export goes on."""
    how = "" if resume else " with --resume in place of --overwrite" if overwrite else " with --resume"
    return f"the same command{how} goes on where it stopped in {folder}"


def _instead(target: targets.Target, left_out: Sequence[str]) -> str:
    """The option that exports for formats of the newest systems that were left out, behind a semicolon; empty
    for others, whose reason says what to do.
    """
    found = [name for name in left_out if name in target.since]
    ways = " or ".join(f"--min-os {target.since[name]}" for name in found)
    return f"; {ways} exports for {' or '.join(found)}" if found else ""


def _as_dict(folder: Path, results: Sequence[ExportResult], alone: str) -> dict[str, Any]:
    """One object per bundle, and one around them where they are several."""
    each = [
        {
            "bundle": str(result.path),
            "format": result.format,
            "weights_bytes": result.weights_bytes,
            "total_bytes": result.total_bytes,
            **({"compiled": list(result.compiled)} if result.compiled else {}),
            **({} if result.device is None else result.device.facts),
            "quantization": result.report.as_dict(),
            "notes": [*result.notes, *([alone] if alone else [])],
        }
        for result in results
    ]
    return {"bundle": str(folder), "bundles": each} if len(each) > 1 else each[0]


def _show(folder: Path, results: Sequence[ExportResult], seconds: float) -> None:
    first = results[0]  # all have the same codes
    lines = grouped(dict.fromkeys(line for result in results for line in result.notes))
    for line in lines[:_MOST_NOTES]:
        note(f"note: {line}")
    if len(lines) > _MOST_NOTES:
        note(f"note: {len(lines) - _MOST_NOTES} more; {command_line('inspect', first.path)} shows all")
    show_quantization(first.report.as_dict())
    note(f"done in {seconds:.1f} s")
    click.echo()
    for result in results:
        beside = f", compiled for {', '.join(result.compiled)}" if result.compiled else ""
        sizes = f"{size(result.weights_bytes)} of weights{beside}; {size(result.total_bytes)} in all"
        click.echo(visible(f"{result.path}  {sizes}"))
        if result.device is not None:
            click.echo(visible(f"programs for {result.device.label}"))
    click.echo(visible(f"next: {next_step(folder)}"))


def show_quantization(quantization: dict[str, Any]) -> None:
    """Print what quantization did, by role, and the total."""
    rows = [
        [
            r["role"], str(r["bits"]), str(r["tensors"]), f"{r['parameters']:,}", size(r["bytes"]),
            f"{100 * r['mean_error']:.2f}%", f"{100 * r['max_error']:.2f}%",
        ]
        for r in quantization["roles"]
    ]  # fmt: skip
    total = [
        "all, with norms",
        f"{quantization['bits_per_weight']:.2f}",
        "",
        f"{quantization['parameters']:,}",
        size(quantization["bytes"]),
        "",
        "",
    ]
    headings = ["role", "bits", "tensors", "parameters", "stored", "mean error", "largest error"]
    table(headings, [*rows, total])
