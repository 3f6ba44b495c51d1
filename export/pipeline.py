"""Checkpoint in, bundle out: the weights are read, quantized and written tensor by tensor, so that memory
holds a few at most.

The manifest is written last: a folder without edgekit.json is an unfinished export, which `resume`
continues to the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch

from edgekit.export import formats
from edgekit.export.bundle_files import (
    REPORT_FILE,
    Contents,
    max_positions,
    package_bytes,
    write_manifest,
    write_programs,
)
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.tokenizer_files import copy_tokenizer
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.package_writer import JOURNAL as PACKAGE_JOURNAL
from edgekit.export.formats.packaging import PACKAGE_FOLDER, Packaging
from edgekit.export.models import architecture as architecture_of
from edgekit.export.models.base import Architecture
from edgekit.export.quantize import (
    Choice,
    QuantizationReport,
    Scheme,
    TensorReport,
    choose,
    joined_report,
    quantize_matrix,
)
from edgekit.export.sampler_config import sampler_config
from edgekit.export.units import TABLE_TILE_BYTES, RunPlan, plan_runs
from edgekit.export.weights import read_rows
from edgekit.flashload import manifest as manifests
from edgekit.flashload.writer import FileDigest, FlashWriter


class Progress(Protocol):
    """Told what an export is doing; `done` and `total` are bytes of source weights."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


class Store(Protocol):
    """Where the runs of an export go: `FlashWriter`, or what a format with packages has."""

    def done(self, run_name: str) -> bool: ...
    def write_run(self, name: str, tensors: Iterator[tuple[str, np.ndarray]]) -> None: ...
    def finish(self) -> FileDigest: ...
    def __enter__(self) -> Store: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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
    precision: str | None = None  # of scales and arithmetic, where the format offers several; None: its own
    packaging: Packaging | None = None  # for formats whose weights are in packages


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
    writer_module = formats.load(options.format, options.precision, options.packaging)
    checkpoint = Checkpoint.open(model)
    architecture = architecture_of(checkpoint.config, _embedding_dtype(checkpoint))
    coverage = checkpoint.check(architecture.stored_shapes(), architecture.ignored)
    choices = choose(architecture, options.scheme)
    choices = formats.optional(writer_module, "storable")(architecture, options.scheme, choices)
    if (fitted := formats.optional(writer_module, "fitted")) is not None:
        writer_module = fitted(architecture, choices, max_positions(checkpoint.config))
    runs = plan_runs(architecture, choices, writer_module, options.tile_bytes)
    weights = output / formats.optional(writer_module, "WEIGHTS_FILE")
    _claim(output, options, weights)

    tag = _fingerprint(checkpoint, options, architecture)
    if options.resume and (finished := _finished(output, tag)) is not None:
        return finished
    with _open_store(writer_module, weights, runs, options.resume, tag) as writer:
        reports = _ReportJournal(_report_journal(weights), keep=options.resume)
        progress.stage("quantizing weights", sum(r.source_elements for r in runs) * 4)
        for run in runs:
            if not writer.done(run.spec.name):
                writer.write_run(run.spec.name, _tensors(run, checkpoint, writer_module, choices, reports))
            progress.advance(run.source_elements * 4, run.spec.name)
        progress.stage("checksum of the weights", 0)
        digest = writer.finish()
        report = reports.result(options.scheme, runs)

    folder = output / formats.optional(writer_module, "TOKENIZER_FOLDER")
    files = [(folder / n).relative_to(output).as_posix() for n in copy_tokenizer(checkpoint.path, folder)]
    sampler = sampler_config(architecture, checkpoint.generation_config, folder)
    contents = Contents(
        writer_module, architecture, options.scheme, choices, runs, report, digest, checkpoint.config, sampler
    )
    progress.stage("compiling programs", 0)
    programs = write_programs(output, contents, lambda name: progress.advance(0, name))
    files += formats.optional(writer_module, "write_files")(output, checkpoint.config, choices, runs)
    notes = [*architecture.notes, *report.notes()]
    if coverage.ignored_nbytes:
        left_out = f"{len(coverage.ignored)} stored tensors ({coverage.ignored_nbytes / 1e6:.1f} MB)"
        notes.insert(0, f"{left_out} are not part of the bundle")
    provenance = {
        "checkpoint": options.source or model.name,
        "target": options.target,
        "notes": notes,
        "tag": tag,
    }
    write_manifest(output, contents, programs, files, provenance)
    for journal in (_report_journal(weights), output / PACKAGE_JOURNAL):
        journal.unlink(missing_ok=True)
    return ExportResult(output, report, tuple(notes), digest.size + package_bytes(programs))


def _open_store(module: Any, weights: Path, runs: list[RunPlan], resume: bool, tag: str) -> Store:
    """Where the runs go: the flash file, or what the format has for them."""
    opening = formats.optional(module, "open_store")
    if opening is None:
        return FlashWriter(weights, [r.spec for r in runs], resume=resume, tag=tag)
    store: Store = opening(weights, runs, resume=resume, tag=tag)
    return store


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
    size = manifest.weights.size + package_bytes(manifest.programs)
    return ExportResult(output, report, tuple(manifest.provenance["notes"]), size)


def _embedding_dtype(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    named = (
        config.get("dtype")
        or config.get("torch_dtype")
        or (config.get("text_config") or {}).get("dtype")
        or "float32"
    )
    return named if named in ("float32", "float16", "bfloat16") else "float32"


def _report_journal(weights: Path) -> Path:
    """Where reports on finished runs wait for the export to finish."""
    return weights.with_name(weights.name + ".report")


def _claim(output: Path, options: ExportOptions, weights: Path) -> None:
    """Make the output folder ours, or say why it is not."""
    leftovers = [weights.with_name(weights.name + end) for end in (".journal", ".partial")]
    leftovers += [_report_journal(weights), output / PACKAGE_JOURNAL]
    if output.exists() and not output.is_dir():
        raise ExportError(f"{output}: is a file; give a folder")
    if output.exists() and any(output.iterdir()):
        # Weights alone are no sign of an export: a checkpoint may have a file of that name.
        whole = (output / manifests.MANIFEST_NAME).exists()
        if not (whole or any(p.exists() for p in leftovers)):
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
            earlier = output / manifests.load(output).weights.file if whole else weights
            for path in (output / manifests.MANIFEST_NAME, earlier, weights, *leftovers):
                path.unlink(missing_ok=True)
            shutil.rmtree(output / PACKAGE_FOLDER, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)


def _fingerprint(checkpoint: Checkpoint, options: ExportOptions, architecture: Architecture) -> str:
    """What the stored bytes depend on besides shapes: the checkpoint's files and the options."""
    weights = sorted({checkpoint.file(n) for n in architecture.stored_shapes()})
    sizes = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in weights]
    scheme = [options.scheme.preset, options.scheme.group_size, [asdict(o) for o in options.scheme.overrides]]
    form: Any = options.format if options.precision is None else [options.format, options.precision]
    if options.packaging is not None:
        form = [*form, asdict(options.packaging)]
    text = json.dumps([form, scheme, options.tile_bytes, checkpoint.config, sizes], sort_keys=True)
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
            yield piece.name, formats.optional(module, "floats")(piece.name, value)
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

    def result(self, scheme: Scheme, runs: list[RunPlan]) -> QuantizationReport:
        """One entry per matrix in execution order; tiles of a table are joined."""
        rows = [
            TensorReport(**{**row, "shape": tuple(row["shape"])})
            for run in runs
            for row in self._rows.get(run.spec.name, ())
        ]
        return joined_report(scheme.preset, rows, sum(r.float_elements for r in runs))
