"""A bundle without its weights: all that tells what a session of it takes, from config.json alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from edgekit.export import formats
from edgekit.export.bundle_files import Contents, write_manifest
from edgekit.export.formats.base import Format
from edgekit.export.formats.options import FormatOptions
from edgekit.export.models import architecture as architecture_of
from edgekit.export.models.base import Architecture
from edgekit.export.pipeline import Progress
from edgekit.export.quantize import QuantizationReport, Scheme, TensorReport, joined_report
from edgekit.export.runs import TABLE_TILE_BYTES, RunPlan, plan_runs
from edgekit.export.sampler_config import sampler_config
from edgekit.flashload.format import build_header
from edgekit.flashload.writer import FileDigest, planned_layout

_NO_DIGEST = "0" * 16


def write(
    out: Path,
    config: dict[str, Any],
    scheme: Scheme,
    *,
    generation_config: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Architecture:
    """Write to the empty folder `out` what an export of a checkpoint with this config.json would write for
    the native engine, but for tokenizer and weights: the file of the weights has its header and its size, and
    takes no room on the disk. Its checksums are those of nothing, so that nobody computes with it. Returns
    the model.

    Raises EdgekitError: the configuration is not supported, a package is missing, or the disk refuses.
    """
    architecture = architecture_of(config, "bfloat16")
    form = formats.load("native")(architecture, scheme, FormatOptions())
    runs = plan_runs(form, TABLE_TILE_BYTES)
    out.mkdir(parents=True, exist_ok=True)
    report = report_without_errors(form, scheme, runs)
    sampler = sampler_config(architecture, generation_config or {})
    weights = _write_header(out / form.WEIGHTS_FILE, runs)
    contents = Contents(form, scheme, runs, report, weights, config, sampler)
    tag = f"plan {scheme} {json.dumps(config, sort_keys=True)}"
    seal(out, contents, "plan", "a plan: this bundle has no weights", tag, progress)
    return architecture


def seal(out: Path, contents: Contents, origin: str, note: str, tag: str, progress: Progress | None) -> None:
    """Make a bundle of a folder with a file of weights that no checkpoint has: `origin` stands in place of
    one, `note` says what they are, and `tag` is equal for equal ones.
    """
    form = contents.format
    if progress:
        progress.stage("compiling programs", 0)
    programs = form.write_programs(out, lambda name: progress.advance(0, name) if progress else None)
    notes = [note, *form.architecture.notes, *contents.report.notes()]
    provenance = {"checkpoint": origin, "target": "host", "notes": notes, "tag": tag}
    write_manifest(out, contents, programs, [], provenance)


def _write_header(path: Path, runs: list[RunPlan]) -> FileDigest:
    layout = planned_layout([run.spec for run in runs])
    header = build_header(layout, {run.name: _NO_DIGEST * len(run.parts) for run in layout.runs})
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(layout.size)
    return FileDigest(layout.size, "0" * 64, len(header), xxhash.xxh3_64_hexdigest(header))


def report_without_errors(form: Format, scheme: Scheme, runs: list[RunPlan]) -> QuantizationReport:
    """The report on weights that stand for no others, so that none of them is in error."""
    rows = list[TensorReport]()
    for piece in (piece for run in runs for piece in run.pieces if piece.spec.role != "float"):
        spec, choice = piece.spec, form.choices[piece.matrix]
        shape = piece.stop - piece.start, spec.shape[1]
        stored = sum(tensor.nbytes for tensor in form.specs(piece.name, replace(spec, shape=shape), choice))
        kept = choice.bits, choice.group_size, stored, 0.0, choice.note
        rows.append(TensorReport(piece.matrix, spec.role, shape, *kept))
    return joined_report(scheme.preset, rows, sum(run.float_elements for run in runs))
