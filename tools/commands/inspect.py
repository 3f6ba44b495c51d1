"""`edgekit inspect`: what is in a bundle, and what would stay in memory under a budget."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.tools.commands.export import show_quantization
from edgekit.tools.console import grouped, note, prose, table
from edgekit.tools.help import Command
from edgekit.tools.options import (
    Size,
    bundle_argument,
    bundle_folder,
    chosen_from,
    debug_option,
    json_option,
    memory_option,
    quoting,
)
from edgekit.tools.request import Request, engine_option, opened
from edgekit.tools.terminal_text import counted, visible

if TYPE_CHECKING:
    from edgekit.flashload.manifest import Manifest
    from edgekit.flashload.reader import FlashFile
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.session.memory import MemoryPlan

#: Of the prompt that memory is planned for, with what the chat template puts around it: a question or two.
PROMPT_TOKENS = 64


@click.command(
    "inspect",
    cls=Command,
    short_help="Show what is in a bundle.",
    examples=("edgekit inspect tiny-gemma-host-mixed4 --memory 100MB",),
)
@bundle_argument
@click.option("--runs", is_flag=True, help="Also every run of the flash file, in reading order.")
@click.option("--tensors", is_flag=True, help="Also every matrix with its bits and relative error.")
@memory_option
@engine_option
@json_option
@debug_option
def command(
    bundle: str, runs: bool, tensors: bool, memory: Size | None, engine: str | None, as_json: bool
) -> None:
    """Show model, sizes, quantization, programs, layers and origin of BUNDLE; of several bundles, of the one
    that `run` takes, or that is for --engine.

    With --memory also what would stay in memory and what would be streamed in every denoising step, if `run`
    were given that budget, the engine, and a short prompt. Reads headers and reports; `edgekit verify` checks
    the data.
    """
    from edgekit.runtime.bundle import Bundle, quantization_report

    folder = bundle_folder(bundle, engine, quiet=as_json, to_run=False)
    plan = None
    if memory is not None:  # first: what is made for the rest would count as part of the process
        with quoting(memory):
            plan = _residency(folder, memory, engine)
    shown_bundle = Bundle.open(folder, engine)
    taken = chosen_from(folder, shown_bundle)
    if taken and not as_json:
        note(taken)
    with shown_bundle.open_weights() as file:
        report = quantization_report.read(shown_bundle.folder)
        found = _facts(shown_bundle, file, report)
        if members := _members(folder):
            found["bundles"] = members
        if plan is not None:
            found["plan"] = plan
        if runs:
            found["runs"] = [
                {
                    "name": r.name,
                    "offset": r.offset,
                    "bytes": r.length,
                    "tensors": len(r.tensors),
                    "xxh3": r.xxh3,
                }
                for r in file.layout.runs
            ]
    if tensors:
        found["tensors"] = report
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)


def _members(folder: str) -> list[dict[str, Any]]:
    """What bundles.json says of the bundles of a set."""
    from edgekit.flashload import bundle_set

    members = bundle_set.load(folder).members if bundle_set.is_set(folder) else ()
    return [asdict(member) for member in members]


def _facts(bundle: Bundle, file: FlashFile, report: list[dict[str, Any]]) -> dict[str, Any]:
    manifest, model = bundle.manifest, bundle.model
    packages = [] if bundle.packages is None else list(bundle.packages.entries.values())
    packaged = {name for package in packages for name in package.files}
    return {
        "bundle": str(bundle.path),
        "model": {
            "family": model.family,
            "name": manifest.provenance.get("checkpoint"),
            "layers": len(model.layers),
            "experts": max(len(layer.get("experts", ())) for layer in manifest.layers),
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "canvas_length": model.canvas_length,
            "self_conditioning": model.self_conditioning,
            "causal_prefix": model.causal_prefix,
            "tied_head": model.tied_head,
            "adapters": manifest.model.get("adapters") or [],
            "role_head": model.role_head,
        },
        "sizes": {
            "weights": manifest.weights.size,
            "runs": len(file.layout.runs),
            "largest_run": max(r.length for r in file.layout.runs),
            "other_files": sum(e.size for n, e in manifest.files.items() if n not in packaged),
            "files": len(manifest.files.keys() - packaged),
            "packages": sum(package.nbytes for package in packages),
        },
        "quantization": manifest.quantization | {"group_sizes": _group_sizes(report)},
        "programs": {
            "format": manifest.format,
            "layout": manifest.programs.get("layout"),
            "names": list(manifest.programs.get("entries", {})),
        }
        | _device_facts(manifest)
        | _package_facts(bundle, report),
        "layers": _layers(bundle, file),
        "sampler": manifest.sampler,
        "provenance": manifest.provenance,
    }


def _device_facts(manifest: Manifest) -> dict[str, Any]:
    """What programs were compiled for."""
    from edgekit.runtime.bundle.compiled import device_of

    device = device_of(manifest.programs)
    return {} if device is None else device.facts


def _package_facts(bundle: Bundle, report: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts about packages, one by one."""
    packages = bundle.packages
    if packages is None:
        return {}
    bits = _package_bits(bundle, report)
    return {
        "precision": packages.precision,
        "activations": packages.activations,
        "minimum_os": dict(packages.minimum_os),
        **(
            {"compiled": {chip: len(files) for chip, files in packages.compiled.items()}}
            if packages.compiled
            else {}
        ),
        "packages": [
            {
                "name": name,
                "kind": package.kind,
                "layers": [i for i, layer in enumerate(bundle.model.layers) if layer.run == name],
                "rows": package.rows,
                "bytes": package.nbytes,
                "bits_per_weight": bits.get(name),
                "functions": [{"name": f.name, "t": f.t, "p": f.p} for f in package.functions],
            }
            for name, package in packages.entries.items()
        ],
    }


def _package_bits(bundle: Bundle, report: list[dict[str, Any]]) -> dict[str, float]:
    """Bits per weight of the matrices in each package, scales included."""
    sums: dict[str, tuple[int, int]] = {}
    packages = bundle.packages
    assert packages is not None
    heads = {row["name"]: row for row in report if row["name"] in ("embedding", "head")}
    apart = {
        layer.mixture: _matrices(bundle, layer.mixture) for layer in bundle.model.layers if layer.mixture
    }
    for row in report:
        unit, _, rest = row["name"].partition(".")
        if unit == "layers":
            number, _, matrix = rest.partition(".")
            layer = bundle.model.layers[int(number)]
            if layer.mixture and (matrix in apart[layer.mixture] or matrix.startswith("experts.")):
                continue
            unit = layer.run
        stored, weights = sums.get(unit, (0, 0))
        sums[unit] = stored + row["stored_bytes"], weights + math.prod(row["shape"])
    table = sums.get("head" if "head" in heads else "embedding")
    found = {name: 8 * stored / weights for name, (stored, weights) in sums.items() if name in packages}
    if table is not None:
        found |= {tile.name: 8 * table[0] / table[1] for tile in packages.head}
    return found


def _matrices(bundle: Bundle, run: str) -> set[str]:
    """The names of what is stored in a run, without the ends that tell its form."""
    return {tensor.name.removeprefix(run + ".").rpartition(".")[0] for tensor in bundle.runs[run].tensors}


def _layers(bundle: Bundle, file: FlashFile) -> list[dict[str, Any]]:
    """Layers in packages have no size of their own there."""
    packaged = bundle.packages is not None
    return [
        {
            "program": str(entry.get("program", layer.program)),
            "bytes": None if packaged else file.run(layer.run).length,
            "experts": len(entry.get("experts", ())),
            "expert_bytes": None
            if packaged and not layer.experts
            else sum(file.run(e).length for e in layer.experts),
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "window": layer.window,
        }
        for layer, entry in zip(bundle.model.layers, bundle.manifest.layers, strict=True)
    ]


def _residency(folder: str, memory_bytes: int, name: str | None) -> dict[str, Any]:
    """The plan of `run` for a short prompt and the bundle's own settings."""
    from edgekit.runtime import engines
    from edgekit.runtime.engine_registry import running
    from edgekit.runtime.generation import Settings
    from edgekit.runtime.process import usable_cores
    from edgekit.runtime.session import plan_session
    from edgekit.runtime.session.memory import NEXT_PROCESS_BYTES
    from edgekit.tools import answer_display, watch  # noqa: F401
    from edgekit.tools.session_plan import lengths_of, planned_for, session_options

    # What a running process holds before its weights is part of the budget, so this one does what `run` does
    # before it plans: all imports, the tokenizer, the chat template, the engine.
    with opened(folder, Request(None, False, None, None, name, None, {}), quiet=True) as (model, generator):
        model.encode("Hello")
        bundle = generator.bundle
        prompt, settings = planned_for(generator, PROMPT_TOKENS)
        asked = lengths_of(generator, settings, prompt)
        options = session_options(generator, asked)
        row = running(bundle.manifest.format, name)
        if row is not None and row.gives == "core" and row.factory:
            with suppress(EdgekitError):  # the plan needs no engine, but what it holds counts
                row.load()()
        engine = engines.to_plan(bundle, usable_cores(), name)
        held = plan_session(bundle, options, engine).process
        # A plan that is shown here is one that `run` finds room for.
        options = replace(options, memory_bytes=memory_bytes)
        planned = plan_session(bundle, options, engine, held + NEXT_PROCESS_BYTES)
    return {
        "memory_bytes": memory_bytes,
        "prompt_tokens": prompt,
        "new_tokens": asked.new_tokens,
        "shortened": settings != Settings(),
        "prefix_positions": options.positions if bundle.model.causal_prefix else 0,
        "canvas": options.canvas,
        "process_bytes": planned.process + planned.allowance,
        "prefix_bytes": planned.prefix,
        "activation_bytes": planned.activations + planned.head,
        "unpacked_bytes": planned.scratch,
        "device_bytes": planned.kept_bytes,
        "pinned_bytes": planned.pinned_bytes,
        "ring_bytes": planned.ring_bytes,
        "streamed_bytes": planned.streamed_bytes,
        "groups": _groups(planned),
    }


def _groups(plan: MemoryPlan) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for unit in plan.units:
        row = groups.setdefault(
            unit.group, {"group": unit.group, "runs": 0, "bytes": 0, "pinned": 0, "pinned_bytes": 0}
        )
        row["runs"] += 1
        row["bytes"] += unit.nbytes
        if unit.pinned:
            row["pinned"] += 1
            row["pinned_bytes"] += unit.nbytes
    return list(groups.values())


def _group_sizes(report: list[dict[str, Any]]) -> list[int]:
    """Of the bundle's matrices: smaller than was asked for where their columns do not divide by that."""
    return sorted({row["group_size"] for row in report} - {0})


def _show(found: dict[str, Any]) -> None:
    model, sizes, provenance = found["model"], found["sizes"], found["provenance"]
    prose(f"{found['bundle']}: {model['name']}, {model['family']}")
    if "bundles" in found:
        prose("one of " + "; ".join(map(_member, found["bundles"])), "  ")
    traits = [
        f"{model['layers']} layers" + (f" with {model['experts']} experts" if model["experts"] else ""),
        f"hidden size {model['hidden_size']}",
        f"vocabulary {model['vocab_size']:,}"
        + (" (head tied to the embedding)" if model["tied_head"] else ""),
    ]
    if model["canvas_length"]:
        traits.append(f"canvas {model['canvas_length']}")
    if model["self_conditioning"]:
        traits.append("self-conditioning")
    if model["role_head"]:
        traits.append("role head")
    traits.append("prefix KV" if model["causal_prefix"] else "bidirectional over prompt and answer")
    prose(", ".join(traits), "  ")
    held = f"packages {size(sizes['packages'])}; flash file" if sizes["packages"] else "weights"
    prose(
        f"{held} {size(sizes['weights'])} in {counted(sizes['runs'], 'run')}, "
        f"the largest {size(sizes['largest_run'])}; "
        f"{counted(sizes['files'], 'other file')}, {size(sizes['other_files'])}",
        "  ",
    )
    for own in model["adapters"]:
        prose(f"adapter {_adapter(own)} beside the weights; `run --adapter` answers with it", "  ")
    quantization = found["quantization"]
    groups = ", groups of " + " and ".join(map(str, sizes)) if (sizes := quantization["group_sizes"]) else ""
    _heading(f"quantization: {quantization['preset']}{groups}")
    show_quantization(quantization)
    for override in quantization.get("overrides", ()):
        prose(f"override {override['pattern']} = {override['bits']} bits", "  ")
    programs = found["programs"]
    _heading(f"programs: {programs['format']} ({programs['layout']})")
    if "device" in programs:
        prose(
            "programs for " + ": ".join(filter(None, (programs["device"], programs["device_summary"]))), "  "
        )
    if "packages" in found["programs"]:
        _show_packages(found["programs"])
    else:
        prose(", ".join(found["programs"]["names"]), "  ")
    _heading("layers")
    _show_layers(found["layers"])
    if "plan" in found:
        _show_plan(found["plan"])
    if "runs" in found:
        _heading("runs")
        rows = [
            [r["name"], f"{r['offset']:,}", f"{r['bytes']:,}", str(r["tensors"]), r["xxh3"]]
            for r in found["runs"]
        ]
        table(["run", "offset", "bytes", "tensors", "xxh3-64"], rows)
    if "tensors" in found:
        _heading("tensors")
        table(
            ["tensor", "role", "shape", "bits", "group", "stored", "error"],
            [_tensor_row(t) for t in found["tensors"]],
            left=2,
        )
    _heading("sampler")
    config = json.dumps(found["sampler"]["config"], ensure_ascii=False)
    prose(f"{found['sampler']['name']}: {config}", "  ")
    _heading("provenance")
    versions = ", ".join(f"{k} {v}" for k, v in (provenance.get("versions") or {}).items())
    prose(f"checkpoint {model['name']}, target {provenance.get('target')}; written with {versions}", "  ")
    if own := provenance.get("adapter"):
        prose(f"adapter {_adapter(own)}; merged into the weights", "  ")
    for line in grouped(provenance.get("notes") or ()):
        prose(f"note: {line}", "  ")


def _member(own: dict[str, Any]) -> str:
    """One line about a bundle of a set."""
    return own["path"] + (f", compiled for {' and '.join(own['chips'])}" if own["chips"] else "")


def _adapter(own: dict[str, Any]) -> str:
    """One line about an adapter."""
    return (
        f"{own['name']}: rank {own['rank']}, {own['matrices']} matrices ({', '.join(own['targets'])}), "
        f"{size(own['bytes'])}"
    )


def _heading(text: str) -> None:
    click.echo()
    click.secho(visible(text), bold=True)


def _show_packages(programs: dict[str, Any]) -> None:
    names = {"ios": "iOS", "macos": "macOS"}
    systems = [f"{names.get(k, k)} {v}" for k, v in programs["minimum_os"].items()]
    arithmetic = str(programs["precision"])
    if programs["activations"] != "float":
        arithmetic += f", {programs['activations']} activations"
    prose(arithmetic + (f", for {' and '.join(systems)} or newer" if systems else ""), "  ")
    if compiled := programs.get("compiled"):
        prose(f"compiled for {', '.join(compiled)}", "  ")
    rows = []
    for package in programs["packages"]:
        lengths = sorted({(f["t"], f["p"]) for f in package["functions"]})
        most = f"{lengths[-1][0]} after {lengths[-1][1]}" if lengths[-1][1] else str(lengths[-1][0])
        bits = package["bits_per_weight"]
        rows.append(
            [
                package["name"], size(package["bytes"]), "-" if bits is None else f"{bits:.2f}",
                str(len(package["functions"])), most, str(package["rows"] or "-"),
            ]
        )  # fmt: skip
    table(["package", "bytes", "bits per weight", "functions", "most positions", "tokens"], rows)


def _show_layers(layers: list[dict[str, Any]]) -> None:
    """One row per stretch of equal layers."""
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for i, layer in enumerate(layers):
        if rows and rows[-1][2] == layer:
            rows[-1] = (rows[-1][0], i, layer)
        else:
            rows.append((i, i, layer))
    table(
        ["layer", "program", "bytes", "experts", "expert bytes", "kv heads", "head dim", "window"],
        [
            [
                str(first) if first == last else f"{first}-{last}", layer["program"],
                "-" if layer["bytes"] is None else size(layer["bytes"]), str(layer["experts"] or "-"),
                size(layer["expert_bytes"]) if layer["expert_bytes"] else "-",
                str(layer["kv_heads"]), str(layer["head_dim"]), str(layer["window"] or "-"),
            ]
            for first, last, layer in rows
        ],
        left=2,
    )  # fmt: skip


def _show_plan(plan: dict[str, Any]) -> None:
    _heading(f"memory of {size(plan['memory_bytes'])}")
    lengths = f"a canvas of {plan['canvas']} positions"
    if plan["prefix_positions"]:
        lengths += f" and a prefix of up to {plan['prefix_positions']}"
    asked = f"a prompt of {plan['prompt_tokens']} tokens and an answer of up to {plan['new_tokens']}"
    more = "its programs have no room for more" if plan["shortened"] else "more of either needs more"
    prose(f"for {asked}: {lengths}; {more}", "  ")
    table(
        ["held", "bytes"],
        [
            ["process", size(plan["process_bytes"])],
            ["prefix KV", size(plan["prefix_bytes"])],
            ["activations", size(plan["activation_bytes"])],
            ["scratch, unpacked weights", size(plan["unpacked_bytes"])],
            *([["weights on the GPU", size(plan["device_bytes"])]] if plan["device_bytes"] else []),
            ["weights that stay", size(plan["pinned_bytes"])],
            ["weights read ahead", size(plan["ring_bytes"])],
        ],
    )
    streamed = size(plan["streamed_bytes"]) if plan["streamed_bytes"] else "nothing"
    click.echo(f"streamed in every denoising step: {streamed}")
    table(
        ["group", "runs", "bytes", "in memory", "of bytes"],
        [
            [g["group"], str(g["runs"]), size(g["bytes"]), str(g["pinned"]), size(g["pinned_bytes"])]
            for g in plan["groups"]
        ],
    )


def _tensor_row(tensor: dict[str, Any]) -> list[str]:
    return [
        tensor["name"],
        tensor["role"],
        "x".join(map(str, tensor["shape"])),
        str(tensor["bits"]),
        str(tensor["group_size"] or "-"),
        size(tensor["stored_bytes"]),
        f"{100 * tensor['relative_error']:.2f}%",
    ]
