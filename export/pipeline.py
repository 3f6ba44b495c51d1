"""Checkpoint in, bundle out: the weights are read, quantized and written tensor by tensor, so that memory
holds a few at most.

The manifest is written last: a folder without edgekit.json is an unfinished export, which `resume`
continues to the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from edgekit.export import formats
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.tokenizer_files import copy_tokenizer
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.models import architecture as architecture_of
from edgekit.export.models.base import Architecture
from edgekit.export.quantize import Choice, QuantizationReport, Scheme, TensorReport, choose, quantize_matrix
from edgekit.export.units import TABLE_TILE_BYTES, RunPlan, plan_runs
from edgekit.export.weights import read_rows
from edgekit.flashload import manifest as manifests
from edgekit.flashload.files import sha256_file, write_atomic
from edgekit.flashload.manifest import FileEntry, Manifest, WeightsEntry
from edgekit.flashload.writer import FlashWriter

WEIGHTS_FILE = "weights.safetensors"
REPORT_FILE = "quantization.json"
REPORT_JOURNAL = WEIGHTS_FILE + ".report"


class Progress(Protocol):
    """Told what an export is doing; `done` and `total` are bytes of source weights."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


class _Silent:
    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


@dataclass(frozen=True)
class ExportOptions:
    """What to make of a checkpoint; equal options and checkpoint give equal bytes."""

    format: str = "onnx"
    target: str = "host"
    scheme: Scheme = field(default_factory=Scheme)
    tile_bytes: int = TABLE_TILE_BYTES
    source: str = ""  # what the manifest calls the checkpoint; the name of its folder if empty
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class ExportResult:
    """A finished bundle: its folder, what quantization did, and what the user should know."""

    path: Path
    report: QuantizationReport
    notes: tuple[str, ...]
    weights_bytes: int


def export(
    model: Path, output: Path, options: ExportOptions, progress: Progress | None = None
) -> ExportResult:
    """Export the checkpoint in folder `model` to the bundle folder `output`.

    Raises:
        EdgekitError: one line on what is wrong with the checkpoint, the options or the disk. What was written
            stays for `resume`, and does not look like a bundle.
    """
    progress = progress or _Silent()
    writer_module = formats.load(options.format)
    checkpoint = Checkpoint.open(model)
    architecture = architecture_of(checkpoint.config, _embedding_dtype(checkpoint))
    coverage = checkpoint.check(architecture.stored_shapes(), architecture.ignored)
    choices = choose(architecture, options.scheme)
    runs = plan_runs(architecture, choices, writer_module, options.tile_bytes)
    _claim(output, options)

    weights = output / WEIGHTS_FILE
    tag = _fingerprint(checkpoint, options, architecture)
    if options.resume and (finished := _finished(output, tag)) is not None:
        return finished
    with FlashWriter(weights, [r.spec for r in runs], resume=options.resume, tag=tag) as writer:
        reports = _ReportJournal(output / REPORT_JOURNAL, keep=options.resume)
        progress.stage("quantizing weights", sum(r.source_elements for r in runs) * 4)
        for run in runs:
            if not writer.done(run.spec.name):
                writer.write_run(run.spec.name, _tensors(run, checkpoint, writer_module, choices, reports))
            progress.advance(run.source_elements * 4, run.spec.name)
        progress.stage("checksum of the weights", 0)
        digest = writer.finish()
        report = reports.result(options.scheme, choices, runs)

    progress.stage("compiling programs", 0)
    programs = writer_module.write_programs(
        output, architecture, choices, lambda name: progress.advance(0, name)
    )
    tokenizer = copy_tokenizer(checkpoint.path, output / "tokenizer")
    write_atomic(output / REPORT_FILE, json.dumps(report.tensors_as_dicts(), indent=1).encode())
    files = [REPORT_FILE, *(f"tokenizer/{n}" for n in tokenizer), *_program_files(programs)]
    notes = [*architecture.notes, *report.notes()]
    if coverage.ignored_nbytes:
        left_out = f"{len(coverage.ignored)} stored tensors ({coverage.ignored_nbytes / 1e6:.1f} MB)"
        notes.insert(0, f"{left_out} are not part of the bundle")
    manifest = Manifest(
        model=_model_section(architecture, checkpoint, choices, runs),
        programs={"format": options.format, "layout": writer_module.LAYOUT, "entries": programs},
        layers=_layer_section(architecture, writer_module.layer_kinds(architecture, choices)),
        sampler={
            "name": architecture.sampler,
            "config": {**architecture.defaults, **checkpoint.generation_config},
        },
        quantization=report.as_dict()
        | {
            "group_size": options.scheme.group_size,
            "overrides": [asdict(o) for o in options.scheme.overrides],
        },
        weights=WeightsEntry(WEIGHTS_FILE, digest.size, digest.sha256),
        files={name: _entry(output / name) for name in files},
        provenance={
            "checkpoint": options.source or model.name,
            "target": options.target,
            "notes": notes,
            "versions": _versions(),
            "tag": tag,
        },
    )
    manifests.save(manifest, output)
    (output / REPORT_JOURNAL).unlink(missing_ok=True)
    return ExportResult(output, report, tuple(notes), digest.size)


def _finished(output: Path, tag: str) -> ExportResult | None:
    """The result of an export that is already complete; its journal of reports is gone."""
    if not (output / manifests.MANIFEST_NAME).exists():
        return None
    manifest = manifests.load(output)
    if manifest.provenance.get("tag") != tag:
        return None  # the writer says what is in the way
    rows = json.loads((output / REPORT_FILE).read_text(encoding="utf-8"))
    tensors = tuple(TensorReport(**{**row, "shape": tuple(row["shape"])}) for row in rows)
    floats = manifest.quantization["parameters"] - sum(math.prod(t.shape) for t in tensors)
    report = QuantizationReport(manifest.quantization["preset"], tensors, floats * 4, floats)
    return ExportResult(output, report, tuple(manifest.provenance["notes"]), manifest.weights.size)


def _embedding_dtype(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    named = (
        config.get("dtype")
        or config.get("torch_dtype")
        or (config.get("text_config") or {}).get("dtype")
        or "float32"
    )
    return named if named in ("float32", "float16", "bfloat16") else "float32"


def _claim(output: Path, options: ExportOptions) -> None:
    """Make the output folder ours, or say why it is not."""
    leftovers = [output / (WEIGHTS_FILE + ".journal"), output / (WEIGHTS_FILE + ".partial")]
    if output.exists() and not output.is_dir():
        raise ExportError(f"{output}: is a file; give a folder")
    if output.exists() and any(output.iterdir()):
        whole = (output / manifests.MANIFEST_NAME).exists()
        begun = whole or (output / WEIGHTS_FILE).exists() or any(p.exists() for p in leftovers)
        if not begun:
            raise ExportError(f"{output}: holds files that are not a bundle; give an empty or new folder")
        if not (options.resume or options.overwrite):
            state = (
                "already holds a bundle; --overwrite replaces it"
                if whole
                else "holds an unfinished export; --resume continues it, --overwrite starts again"
            )
            raise ExportError(f"{output}: {state}")
        if options.overwrite and not options.resume:
            # The manifest goes first: from here on the folder is not a bundle until the new one is complete.
            for path in (
                output / manifests.MANIFEST_NAME,
                output / WEIGHTS_FILE,
                output / REPORT_JOURNAL,
                *leftovers,
            ):
                path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


def _fingerprint(checkpoint: Checkpoint, options: ExportOptions, architecture: Architecture) -> str:
    """What the stored bytes depend on besides shapes: the checkpoint's files and the options."""
    weights = sorted({checkpoint.file(n) for n in architecture.stored_shapes()})
    sizes = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in weights]
    scheme = [options.scheme.preset, options.scheme.group_size, [asdict(o) for o in options.scheme.overrides]]
    text = json.dumps([options.format, scheme, options.tile_bytes, checkpoint.config, sizes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(
    run: RunPlan, checkpoint: Checkpoint, module: Any, choices: Mapping[str, Choice], reports: _ReportJournal
) -> Iterator[tuple[str, np.ndarray]]:
    """The stored arrays of a run in order, made one weight at a time; the run's report is journalled at the
    end.
    """
    rows: list[TensorReport] = []
    for piece in run.pieces:
        value = read_rows(checkpoint, piece.spec, piece.start, piece.stop)
        if piece.spec.role == "float":
            yield piece.name, value
            continue
        choice = choices[piece.matrix]
        try:
            quantized = quantize_matrix(torch.from_numpy(value), choice.bits, choice.group_size)
        except QuantizationError as error:
            parts = ", ".join(p.tensor for p in piece.spec.parts)
            raise QuantizationError(f"{checkpoint.path}: {parts}: {error}") from None
        stored = module.arrays(piece.name, piece.spec.role, quantized)
        del value
        nbytes = sum(a.nbytes for a in stored.values())
        rows.append(
            TensorReport(
                piece.matrix,
                piece.spec.role,
                (piece.stop - piece.start, piece.spec.shape[1]),
                choice.bits,
                choice.group_size,
                nbytes,
                quantized.relative_error,
                choice.note,
            )
        )
        del quantized
        for name in list(stored):
            yield name, stored.pop(name)
    reports.append(run.spec.name, rows)


class _ReportJournal:
    """Reports of finished runs, kept on disk so that a resumed export reports on all of them."""

    def __init__(self, path: Path, keep: bool) -> None:
        self._path, self._rows = path, dict[str, list[dict[str, Any]]]()
        if keep and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # torn when the export was killed; its run does not count as done either
                self._rows[record["run"]] = record["tensors"]
        else:
            path.unlink(missing_ok=True)

    def append(self, run: str, rows: list[TensorReport]) -> None:
        """Record a run; synced before the run itself counts as done."""
        self._rows[run] = [asdict(r) for r in rows]
        with open(self._path, "a", encoding="utf-8") as file:
            # A torn line of a killed export has no line end: start a new one.
            file.write("\n" + json.dumps({"run": run, "tensors": self._rows[run]}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def result(
        self, scheme: Scheme, choices: Mapping[str, Choice], runs: list[RunPlan]
    ) -> QuantizationReport:
        """One entry per matrix in execution order; tiles of a table are joined."""
        pieces: dict[str, list[dict[str, Any]]] = {}
        for run in runs:
            for row in self._rows.get(run.spec.name, ()):
                pieces.setdefault(row["name"], []).append(row)
        tensors = []
        for name, rows in pieces.items():
            counts = [r["shape"][0] for r in rows]
            # Tiles have about equal norms; weighting squares by rows is exact when they are.
            error = (
                sum(r["relative_error"] ** 2 * n for r, n in zip(rows, counts, strict=True)) / sum(counts)
            ) ** 0.5
            tensors.append(
                TensorReport(
                    name,
                    rows[0]["role"],
                    (sum(counts), rows[0]["shape"][1]),
                    rows[0]["bits"],
                    rows[0]["group_size"],
                    sum(r["stored_bytes"] for r in rows),
                    error if len(rows) > 1 else rows[0]["relative_error"],
                    rows[0]["note"],
                )
            )
        floats = [p for run in runs for p in run.pieces if p.spec.role == "float"]
        parameters = sum(p.stop - p.start for p in floats)
        return QuantizationReport(scheme.preset, tuple(tensors), parameters * 4, parameters)


def _model_section(
    architecture: Architecture, checkpoint: Checkpoint, choices: Mapping[str, Choice], runs: list[RunPlan]
) -> dict[str, Any]:
    def table(name: str) -> dict[str, Any]:
        tiles = [r for r in runs if r.unit == name]
        return {
            "runs": [r.spec.name for r in tiles],
            "starts": [r.pieces[0].start for r in tiles],
            "rows": architecture.vocab_size,
            "bits": choices[name].bits,
        }

    tables = {"embedding": table("embedding")}
    if architecture.head is not None:
        tables["head"] = table("head")
    return {
        "family": architecture.family,
        "hidden_size": architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
        "embedding_scale": architecture.embedding_scale,
        "softcap": architecture.softcap,
        "shift_logits": architecture.shift_logits,
        "causal_prefix": architecture.causal_prefix,
        "self_conditioning": architecture.self_conditioning is not None,
        "canvas_length": architecture.canvas_length,
        "ropes": {n: list(r.inverse_frequency) for n, r in architecture.ropes.items()},
        "tables": tables,
        "config": checkpoint.config,
    }


def _layer_section(architecture: Architecture, kinds: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "program": kind,
            "run": f"layers.{i}",
            "experts": [f"layers.{i}.experts.{e}" for e in range(len(layer.experts))],
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "rope": layer.rope,
            "window": layer.window,
        }
        for i, (kind, layer) in enumerate(zip(kinds, architecture.layers, strict=True))
    ]


def _program_files(entries: Any) -> list[str]:
    if isinstance(entries, dict):
        return (
            [entries["file"]]
            if "file" in entries
            else [f for e in entries.values() for f in _program_files(e)]
        )
    return []


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, sha256_file(path))


def _versions() -> dict[str, str]:
    found = {}
    for package in ("edgekit", "torch", "onnx", "onnxscript"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
