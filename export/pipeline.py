"""Checkpoint in, bundle out: the weights are read, quantized and written tensor by tensor, so that memory
holds a few at most.

The manifest is written last: a folder without edgekit.json is an unfinished export, which `resume`
continues to the same bytes, as far as the compilers of formats repeat theirs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import torch

from edgekit.export import formats
from edgekit.export.adapters import Tuned, tuned
from edgekit.export.bundle_files import (
    Contents,
    copy_golden,
    package_bytes,
    write_manifest,
)
from edgekit.export.calibrate.texts import Samples, Texts, samples
from edgekit.export.chat_form import CHAT_FILE, chat_form
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.provenance import copy_legal_files, legal_files, provenance
from edgekit.export.checkpoint.tokenizer_files import check_texts
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.base import Format, Stages
from edgekit.export.formats.options import FormatOptions, Packaging
from edgekit.export.formats.packages.store import JOURNAL as PACKAGE_JOURNAL
from edgekit.export.models import architecture as architecture_of
from edgekit.export.models import complete
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.output_folder import (
    Claimed,
    Found,
    check_space,
    claim,
    examine,
    report_journal,
    resumable,
    told_apart,
)
from edgekit.export.presets import ADAPTER_MODES
from edgekit.export.quantize import (
    QuantizationReport,
    Scheme,
    TensorReport,
    check_finite,
    joined_report,
    quantize_matrix,
)
from edgekit.export.role_head import BUNDLE_FILE, RoleHead, read_role_head
from edgekit.export.role_head import FILE as ROLE_HEAD_FILE
from edgekit.export.runs import TABLE_TILE_BYTES, RunPlan, plan_runs
from edgekit.export.sampler_config import check_generation_config, sampler_config
from edgekit.export.tied_head import check_tied_head
from edgekit.export.weights import read_rows
from edgekit.flashload.errors import EdgekitError, ResumeMismatch
from edgekit.flashload.files import write_atomic, write_failed
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.sizes import size
from edgekit.flashload.writer import FileDigest
from edgekit.runtime.bundle import Bundle, quantization_report
from edgekit.runtime.bundle.compiled import Device, device_of
from edgekit.runtime.bundle.sections import Wrong
from edgekit.runtime.hub import verification
from edgekit.runtime.hub.repository import origin
from edgekit.runtime.sampling import SamplerModel
from edgekit.runtime.sampling.answer_room import SHORT_PROMPT, short_of
from edgekit.runtime.sampling.options import declared
from edgekit.runtime.tokenizer import TOKENIZER_FILE, Tokenizer

#: The embedding of the family whose scale is rounded to the embedding's type.
_EMBEDDING = "model.decoder.embed_tokens.weight"
#: Rows for every matrix in the report, its journal and MLX's index, and for every run in the manifest and the
#: journal.
_ROW_BYTES = 640
#: Compiled programs of a layer, and how many are as large that are none of layers: final norm, head. Those of
#: tiny-llada take 10 kB (native) to 46 kB (coreml) a layer.
_PROGRAM_BYTES, _OTHER_PROGRAMS = 64 << 10, 2
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


#: What is said of ranges without texts.
_RANDOM = (
    "ranges of activations came from random tokens, which do not show the outliers of real text; --calibrate "
    "FILE takes texts like those that the model is for"
)
#: What to do about a finished export that is damaged.
_ANEW = "--overwrite writes it anew"


class Progress(Stages, Protocol):
    """Told what an export is doing; `done` and `total` are bytes of source weights, layers, or packages."""


class _Silent:
    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; equal options and checkpoint give equal bytes."""

    format: str = "onnx"
    target: str = "host"
    scheme: Scheme = field(default_factory=Scheme)
    tile_bytes: int = TABLE_TILE_BYTES
    source: str = ""  # what the manifest calls the checkpoint; the name of its folder if empty
    resume: bool = False
    overwrite: bool = False
    precision: str | None = None  # of scales and arithmetic, where the format offers several; None: its own
    packaging: Packaging | None = None  # for formats whose weights are in packages
    activations: str | None = None  # "int8" or "float" before products with 8 bits, where formats let choose
    device: str | None = None  # what programs are compiled for, where the format compiles them; None: its own
    socs: tuple[str, ...] | None = None  # chips that packages are compiled for beside, where the format does
    calibrate: Texts | None = (
        None  # what ranges of activations come from, where formats take them; random text
    )
    decoding: str | None = None  # mdlm or bd3lm, where a family has both; None: what the source's name says
    adapter: Path | None = None  # the folder of a LoRA adapter
    adapter_name: str = ""  # what the manifest calls it; the name of its folder if empty
    adapter_mode: str = ADAPTER_MODES[0]  # or "switched": passes say which rows it is for
    together: bool = False  # its format is one of several that the target chose, and nobody named

    @property
    def form(self) -> FormatOptions:
        """The options that formats let choose."""
        return FormatOptions(
            self.precision,
            self.packaging,
            self.activations,
            self.device,
            self.socs,
            None if self.calibrate is None else True,
        )

    def as_words(self) -> str:
        """The options that decide about the stored bytes, as `edgekit export` takes them."""
        scheme, cut = self.scheme, self.packaging or Packaging()
        named = {
            "target": self.target,
            "format": None if self.together else self.format,
            "quant": scheme.preset,
            "group-size": scheme.group_size,
            "precision": self.precision,
            "activations": self.activations,
            "device": self.device,
            "soc": None if self.socs is None else ",".join(self.socs),
            "calibrate": None if self.calibrate is None else self.calibrate.name,
            "decoding": self.decoding,
            "min-os": cut.minimum_os,
            "lengths": None if cut.lengths is None else ",".join(map(str, cut.lengths)),
            "max-positions": cut.max_positions,
            "layers-per-chunk": cut.layers_per_chunk,
            "adapter": self.adapter,
            "adapter-mode": None if self.adapter is None else self.adapter_mode,
        }
        words = [word for k, v in named.items() if v is not None for word in (f"--{k}", str(v))]
        for override in scheme.overrides:
            words += ["--override", f"{override.pattern}={override.bits}"]
        return shlex.join(words)


@dataclass(frozen=True)
class ExportResult:
    """A finished bundle: its folder, what quantization did, and what the user should know."""

    path: Path
    format: str
    report: QuantizationReport
    notes: tuple[str, ...]
    weights_bytes: int
    device: Device | None = None  # of programs that are compiled for one
    compiled: tuple[str, ...] = ()  # chips that packages are compiled for
    total_bytes: int = 0  # of all files that the manifest lists, and the weights


@dataclass(frozen=True)
class ExportPlan:
    """A validated export: only the output folder is unchecked."""

    options: ExportOptions
    checkpoint: Checkpoint
    format: Format
    runs: Sequence[RunPlan]
    tag: str
    sampler: dict[str, Any]  # configuration of the denoising loop
    left_out: tuple[str, ...]  # what of the checkpoint is not used, in sentences
    tuned: Tuned  # the model with its adapter, if it has one
    role_head: RoleHead | None = None
    samples: Samples | None = None  # texts to run the model on

    @property
    def weights_file(self) -> str:
        """The name of the flash file."""
        return self.format.WEIGHTS_FILE

    @property
    def weights_bytes(self) -> int:
        """Bytes that the weights will take, without alignment and without the rest of packages."""
        runs = sum(tensor.nbytes for run in self.runs for tensor in run.spec.tensors)
        return runs + self.format.copied_bytes()

    @property
    def output_bytes(self) -> int:
        """An estimate, hardly too large, of the bytes in the folder just before the export ends: programs are
        compiled later, and what they take is estimated.
        """
        weights = self.format.planned_bytes(self.runs, self.tag)
        programs = self.format.layer_programs() + _OTHER_PROGRAMS
        texts = sum(map(len, self.checkpoint.tokenizer.values()))
        texts += sum(path.stat().st_size for path in legal_files(self.checkpoint.path).values())
        rows = sum(len(run.pieces) for run in self.runs) + len(self.runs)
        roles = 0 if self.role_head is None else len(self.role_head.stored())
        return weights + texts + roles + rows * _ROW_BYTES + programs * _PROGRAM_BYTES

    @functools.cached_property
    def answer_shortfall(self) -> tuple[int, int] | None:
        """What `answer_room.short_of` says of the programs."""
        offered, architecture = self.format.pass_lengths(), self.format.architecture
        if not offered:
            return None
        section = {"name": architecture.sampler, "config": self.sampler}
        model = SamplerModel.of(section, architecture, self.role_head is not None)
        return short_of(model, offered)

    def alike(self, other: ExportPlan) -> bool:
        """Whether both store the same arrays."""
        return self.runs == other.runs and self.format.stores_like(other.format)


def export(
    model: Path, output: Path, options: ExportOptions, progress: Progress | None = None
) -> ExportResult:
    """Export the checkpoint in folder `model` to the bundle folder `output`.

    Raises:
        EdgekitError: one line on what is wrong with the checkpoint, the options or the disk. What was written
            stays for `resume`, and does not look like a bundle.
    """
    return write(plan_export(model, options), output, progress)


def plan_export(model: Path | Checkpoint, options: ExportOptions) -> ExportPlan:
    """Plan the export of a checkpoint, opened or in folder `model`. Writes nothing; of weights reads headers
    alone. Everything that can be refused is refused here, but for the output folder.

    Raises:
        EdgekitError: one line on what is wrong with the checkpoint or the options.
    """
    formats.get(options.format).check_installed(options.device)
    bind = formats.load(options.format)
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint.open(model)
    name = options.source or checkpoint.path.name
    config = complete(checkpoint.config, checkpoint.names, name, options.decoding)
    architecture = architecture_of(config, _embedding_dtype(checkpoint))
    check_generation_config(architecture, checkpoint.generation_config)
    coverage = checkpoint.check(architecture.stored_shapes(), architecture.ignored)
    check_tied_head(checkpoint, architecture)
    own = tuned(
        architecture, checkpoint, checkpoint.path, options.adapter, options.adapter_name, options.adapter_mode
    )
    form = bind(own.architecture, options.scheme, options.form)
    runs = plan_runs(form, options.tile_bytes)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer, str(checkpoint.path))
    sampler = {**_sampler(tokenizer, checkpoint, architecture), **own.defaults}
    texts = options.calibrate
    pieces = None if texts is None else samples(texts, tokenizer, architecture.vocab_size)
    role_head = read_role_head(checkpoint.path, architecture.hidden_size)
    left_out = []
    if coverage.ignored_nbytes:
        stored = f"{len(coverage.ignored)} stored tensors ({size(coverage.ignored_nbytes)})"
        left_out.append(f"{stored} are not part of the bundle")
    if role_head is not None and all(option.name != "order" for option in declared(architecture.sampler)):
        left_out.append(f"{ROLE_HEAD_FILE} is not part of the bundle: {architecture.sampler} takes no order")
        role_head = None
    tag = _fingerprint(checkpoint, config, options, architecture, own, role_head)
    return ExportPlan(options, checkpoint, form, runs, tag, sampler, tuple(left_out), own, role_head, pieces)


def check_output(
    plans: Sequence[ExportPlan], output: Path, members: Sequence[str] = (), download_bytes: int = 0
) -> Found | None:
    """Refuse an output folder that cannot take these bundles, in its folders `members` where they are
    several. `download_bytes` go to the same disk before. Changes nothing; returns what is there.

    Raises:
        ExportError: what is wrong with the folder or the space on its disk.
        ResumeMismatch: what is complete there is another export's.
    """
    first = plans[0]
    resume, overwrite = first.options.resume, first.options.overwrite
    found = examine(output, first.weights_file, resume=resume, overwrite=overwrite, members=members)
    if found is not None and found.whole and resume:
        for plan, each in zip(plans, [found.members[m] for m in members] or [found], strict=True):
            finished(plan, each)
    check_space(output, sum(plan.output_bytes for plan in plans) + download_bytes)
    return found


def check_leftovers(plan: ExportPlan, found: Found | None) -> None:
    """Refuse to go on with what another export has left in a folder, if anything. Opens it as `write` does.

    Raises:
        ResumeMismatch or MalformedFile: it is another export's, or cannot be read.
    """
    if found is not None and finished(plan, found) is None:
        _Sink(plan, Claimed.of(found.path)).close()


def begin(plan: ExportPlan, folder: Claimed) -> None:
    """Leave in a folder what says which export it is of, before it has any weights: one that goes on is
    compared with that. Raises as `write` does.
    """
    if folder.found is None:
        sink = _Sink(plan, folder)
        try:
            sink.reports.begin()
        finally:
            sink.close()


def write(plan: ExportPlan, output: Path, progress: Progress | None = None) -> ExportResult:
    """Do what is planned, in the folder `output`. Raises EdgekitError as `export` does."""
    found = check_output([plan], output)
    folder = claim(output, plan.weights_file, found, overwrite=plan.options.overwrite)
    return write_each([plan], [folder], progress or _Silent())[0]


def write_each(
    plans: Sequence[ExportPlan], folders: Sequence[Claimed], progress: Progress
) -> list[ExportResult]:
    """Do what is planned, each in a folder of its own. Every weight is quantized once: plans of several must
    store them alike, see `ExportPlan.alike`. Raises EdgekitError as `export` does.
    """
    results: dict[Path, ExportResult] = {}
    todo: list[tuple[ExportPlan, Claimed]] = []
    for plan, folder in zip(plans, folders, strict=True):
        if (done := finished(plan, folder.found)) is not None:
            assert folder.found is not None, "it is complete"
            check_whole(folder.found.bundle, progress)
            results[folder.path] = done
        else:
            todo.append((plan, folder))
    with resumable(folders[0].path):
        written = _write_weights(todo, progress)
    for (plan, folder), weights in zip(todo, written, strict=True):
        named = f"{plan.options.format}: " if len(plans) > 1 else ""
        progress.stage(f"{named}compiling programs", 0)
        with resumable(folder.path):
            results[folder.path] = _complete(plan, folder, *weights, progress)
    return [results[folder.path] for folder in folders]


def _write_weights(
    todo: Sequence[tuple[ExportPlan, Claimed]], progress: Progress
) -> list[tuple[FileDigest, QuantizationReport]]:
    """Write what the runs of alike plans store; what `_complete` is to know of each."""
    if not todo:
        return []
    first, runs = todo[0][0], todo[0][0].runs
    with ExitStack() as stack:
        sinks = []
        for plan, folder in todo:
            sinks.append(_Sink(plan, folder))
            stack.callback(sinks[-1].close)
        for (plan, _), sink in zip(todo, sinks, strict=True):
            if not all(map(sink.has, runs)):
                _observe(plan, progress)
        progress.stage("quantizing weights", sum(r.source_elements for r in runs) * 4)
        for run in runs:
            lacking = [sink for sink in sinks if not sink.has(run)]
            rows: list[TensorReport] = []
            tensors = _tensors(run, first, rows)
            if len(lacking) > 1:
                # Several stores take their turns, so that the run is held; one takes tensor by tensor.
                held = list(tensors)
                for sink in lacking:
                    sink.write_run(run.spec.name, iter(held), rows)
                del held
            elif lacking:
                lacking[0].write_run(run.spec.name, tensors, rows)
            progress.advance(run.source_elements * 4, run.spec.name)
        progress.stage("checksum of the weights", 0)
        return [(s.finish(), s.reports.result(first.options.scheme, runs)) for s in sinks]


def _observe(plan: ExportPlan, progress: Progress) -> None:
    """Let the format look at the weights; the layers that it has run the model through are counted."""

    def told(unit: str) -> None:
        progress.advance(1 if unit.startswith("layers.") else 0, unit)

    if plan.format.row.calibrates:
        progress.stage("calibrating", len(plan.format.architecture.layers))
    plan.format.observe(plan.tuned.weights, plan.samples, told)


class _Sink:
    """The destination of a plan's runs, and of the reports on them."""

    def __init__(self, plan: ExportPlan, folder: Claimed) -> None:
        self._folder = folder
        weights, resume = folder.path / plan.weights_file, plan.options.resume
        try:
            self.store = plan.format.open_store(weights, plan.runs, resume=resume, tag=plan.tag)
        except ResumeMismatch as error:
            how = told_apart(report_journal(weights), plan.options.as_words())
            raise ResumeMismatch(f"{error}{how}") from error
        self.reports = _ReportJournal(report_journal(weights), plan.options.as_words(), keep=resume)

    def has(self, run: RunPlan) -> bool:
        """Whether a run is stored, and what is to be reported on it is known: of a report that was lost or
        damaged, the run is quantized once more.
        """
        return self.store.done(run.spec.name) and self.reports.has(run)

    def write_run(
        self, name: str, tensors: Iterator[tuple[str, np.ndarray]], rows: list[TensorReport]
    ) -> None:
        """Write a run; `rows` are complete once `tensors` has given the last one."""

        def reported() -> Iterator[tuple[str, np.ndarray]]:
            yield from tensors
            self._folder.check()
            self.reports.append(name, rows)

        self._folder.check()
        if self.store.done(name):
            for _ in reported():
                pass
            return
        self.store.write_run(name, reported())

    def finish(self) -> FileDigest:
        """Let the store name what it has written. Raises as that does, and ExportError."""
        self._folder.check()
        return self.store.finish()

    def close(self) -> None:
        """Release the files, which stay for `resume`."""
        self.store.close()
        self.reports.close()


def _complete(
    plan: ExportPlan, claimed: Claimed, digest: FileDigest, report: QuantizationReport, progress: Progress
) -> ExportResult:
    """Write all files of a bundle but its weights, the manifest last."""
    output = claimed.path

    def advance(name: str) -> None:
        claimed.check()
        progress.advance(0, name)

    claimed.check()
    options, checkpoint, form = plan.options, plan.checkpoint, plan.format
    for half_written in output.rglob(".*.tmp"):  # of an export that was killed
        half_written.unlink()
    folder = output / form.TOKENIZER_FOLDER
    text_files, left_out = _text_files(checkpoint)
    for name, content in text_files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    files = [(folder / name).relative_to(output).as_posix() for name in text_files]
    contents = Contents(
        form,
        options.scheme,
        plan.runs,
        report,
        digest,
        checkpoint.config,
        plan.sampler,
        plan.tuned.beside,
        plan.role_head,
    )
    if plan.role_head is not None:
        write_atomic(output / BUNDLE_FILE, plan.role_head.stored())
        files.append(BUNDLE_FILE)
    programs = form.write_programs(output, advance)
    claimed.check()
    files += form.compile_beside(output, progress)
    claimed.check()
    files += form.write_files(output, checkpoint.config, plan.runs)
    files += copy_legal_files(checkpoint.path, output)
    if not plan.tuned.merged:  # they are those of the weights alone
        files += copy_golden(checkpoint.path, output, options.scheme)
    short = plan.answer_shortfall
    notes = [*_answer_notes(short, options.format), *form.notes(), *form.architecture.notes, *report.notes()]
    if form.row.calibrates:
        notes.insert(0, _RANDOM if plan.samples is None else plan.samples.note)
    if plan.tuned.merged:
        notes.insert(0, plan.tuned.note())
    notes = [*plan.left_out, *left_out, *notes]
    made_of = {
        "checkpoint": options.source or checkpoint.path.name,
        **provenance(checkpoint.path),
        "target": options.target,
        **({"adapter": dict(plan.tuned.facts)} if plan.tuned.merged else {}),
        **({} if plan.samples is None else {"calibration": dict(plan.samples.facts)}),
        "notes": notes,
        "tag": plan.tag,
    }
    claimed.check()
    manifest = write_manifest(output, contents, programs, files, made_of, short[1] if short else None)
    claimed.check()
    for journal in (report_journal(output / plan.weights_file), output / PACKAGE_JOURNAL):
        journal.unlink(missing_ok=True)
    return _result(plan, output, manifest, report)


def _answer_notes(short: tuple[int, int] | None, form: str) -> list[str]:
    """That programs have no room for a default answer, if they have none."""
    if short is None:
        return []
    default, fits = short
    way = "export with longer --lengths"
    what = f"the programs of format {form} have room for {fits or 'no'} new tokens behind a prompt of"
    if not fits:
        return [f"{what} {SHORT_PROMPT}: {way}"]
    asked = f"a default answer has {default}: ask for fewer (--max-new-tokens {fits}), or {way}"
    return [f"{what} {SHORT_PROMPT}, {asked}"]


def finished(plan: ExportPlan, found: Found | None) -> ExportResult | None:
    """The result of an export that was found complete; its journal of reports is gone.

    Raises:
        ResumeMismatch: what is complete is another export's.
        ExportError: it cannot be read.
    """
    if found is None or found.several or not found.whole:
        return None
    output = found.path
    with _unreadable(output):
        bundle = found.bundle
    manifest = bundle.manifest
    if manifest.provenance.get("tag") != plan.tag:
        raise ResumeMismatch(
            f"{output}: holds the bundle of another export (other model, texts, format, lengths, preset or "
            "version); "
            "give another folder, or replace it with --overwrite"
        )
    for name in verification.listed(manifest):
        if not (output / name).is_file():
            raise ExportError(f"{output / name}: is missing from the finished export; {_ANEW}")
    with _unreadable(output):
        tensors = tuple(_tensor_report(row) for row in quantization_report.read(bundle.folder))
    floats = manifest.quantization["parameters"] - sum(math.prod(t.shape) for t in tensors)
    report = QuantizationReport(manifest.quantization["preset"], tensors, floats * 4, floats)
    return _result(plan, output, manifest, report)


def _result(plan: ExportPlan, output: Path, manifest: Manifest, report: QuantizationReport) -> ExportResult:
    """The result of an export whose manifest is written."""
    return ExportResult(
        output,
        plan.options.format,
        report,
        tuple(manifest.provenance.get("notes") or ()),
        manifest.weights.size + package_bytes(manifest.programs),
        device_of(manifest.programs),
        tuple(manifest.programs.get("compiled") or ()),
        manifest.weights.size + sum(entry.size for entry in manifest.files.values()),
    )


def check_whole(bundle: Bundle, progress: Progress) -> None:
    """Compare the files of a complete export with their checksums. Raises BundleError."""
    verification.check(bundle.path, verification.listed(bundle.manifest), progress, advice=_ANEW)


@contextmanager
def _unreadable(output: Path) -> Iterator[None]:
    """Errors about a complete export with what to do: resuming leaves it as it is."""
    try:
        yield
    except EdgekitError as error:
        raise ExportError(f"{output}: holds a finished export that is damaged ({error}); {_ANEW}") from error


def _sampler(tokenizer: Tokenizer, checkpoint: Checkpoint, architecture: Architecture) -> dict[str, Any]:
    """The sampler's configuration, with what the tokenizer says, which is checked.

    Raises:
        EdgekitError: what is wrong with which file.
    """
    check_texts(tokenizer)
    return sampler_config(architecture, checkpoint.generation_config, tokenizer)


def _text_files(checkpoint: Checkpoint) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer's files with the form of its chats, and in a sentence what applications without Python
    lack.
    """
    files = dict(checkpoint.tokenizer)
    tokenizer = Tokenizer.from_files(files, str(checkpoint.path))
    try:
        return {**files, CHAT_FILE: chat_form(tokenizer, files[TOKENIZER_FILE])}, []
    except EdgekitError as error:  # there is no such form, or one larger than the core takes
        lacks = "write the conversation's text themselves"
        return files, [f"applications without Python {lacks}: {error}"] if tokenizer.chat_templates else []


def _embedding_dtype(checkpoint: Checkpoint) -> str:
    """The type that the checkpoint's own class loads the embedding in: the one that config.json names, else
    the stored one. What is no type is left to the family to refuse.
    """
    config = checkpoint.config
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(named := part.get(key), str):
                return named if named in _DTYPES.values() else "float32"
    if _EMBEDDING not in checkpoint:
        return "float32"
    return _DTYPES.get(checkpoint.dtype(_EMBEDDING), "float32")


def _fingerprint(
    checkpoint: Checkpoint,
    config: dict[str, Any],
    options: ExportOptions,
    architecture: Architecture,
    own: Tuned,
    role_head: RoleHead | None,
) -> str:
    """A digest of what the stored bytes depend on beside shapes: the checkpoint's files and the options."""
    stamps = sorted({checkpoint.stamp(n) for n in architecture.stored_shapes()})
    commit = _commit(checkpoint.path)
    sizes = [[*stamp[:2], commit or stamp[2]] for stamp in stamps]
    scheme = [options.scheme.preset, options.scheme.group_size, [asdict(o) for o in options.scheme.overrides]]
    packaging = None if options.packaging is None else asdict(options.packaging)
    form = [options.format, options.precision, packaging, options.activations, options.device]
    chips: list[Any] = [list(options.socs)] if options.socs else []
    if options.calibrate is not None:
        chips.append({"calibrate": options.calibrate.digest})
    beside: list[Any] = []
    if own.adapter is not None:
        nbytes, changed = own.adapter.stamp
        beside = [own.mode, own.adapter.config, nbytes, _commit(own.adapter.path) or changed]
    if role_head is not None:
        beside.append(role_head.digest)
    text = json.dumps([form, scheme, options.tile_bytes, config, sizes, *beside, *chips], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _commit(folder: Path) -> str | None:
    """The commit of a folder in the hub's cache. Nobody changes files there, and when they are downloaded
    again their times are others.
    """
    came = origin(folder)
    return came[1] if came is not None and came[0] is not None else None


def _tensors(run: RunPlan, plan: ExportPlan, rows: list[TensorReport]) -> Iterator[tuple[str, np.ndarray]]:
    """The stored arrays of a run in order, made one weight at a time; what is to be reported on them goes to
    `rows`.
    """
    checkpoint, form = plan.checkpoint, plan.format
    for piece in run.pieces:
        value = read_rows(plan.tuned.weights, piece.spec, piece.start, piece.stop)
        if piece.spec.role == "float":
            with _named(checkpoint, piece.spec):
                check_finite(torch.from_numpy(value))
            yield piece.name, form.floats(piece.name, value)
            continue
        choice = form.choices[piece.matrix]
        with _named(checkpoint, piece.spec):
            quantized = quantize_matrix(torch.from_numpy(value), choice.bits, choice.group_size)
        stored = form.arrays(piece.name, piece.spec.role, quantized)
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


@contextmanager
def _named(checkpoint: Checkpoint, spec: WeightSpec) -> Iterator[None]:
    """Errors of quantization with the folder and the tensors that a weight is read from."""
    try:
        yield
    except QuantizationError as error:
        parts = ", ".join(p.tensor for p in spec.parts)
        raise QuantizationError(f"{checkpoint.path}: {parts}: {error}") from None


def _tensor_report(row: dict[str, Any]) -> TensorReport:
    return TensorReport(**{**row, "shape": tuple(row["shape"])})


class _ReportJournal:
    """Reports of finished runs, kept on disk so that a resumed export reports on all of them; the first line
    says what options the export was begun with.
    """

    def __init__(self, path: Path, options: str, keep: bool) -> None:
        self._path, self._options = path, options
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._file: TextIO | None = None
        if keep and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = json.loads(line)
                    rows = [quantization_report.checked(row, "a row") for row in record["tensors"]]
                    self._rows[str(record["run"])] = rows
                except (ValueError, TypeError, KeyError, Wrong, RecursionError):
                    continue  # torn when the export was killed; its run does not count as done either
        else:
            path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Write the first line. Raises WriteFailed."""
        self._write("")

    def append(self, run: str, rows: list[TensorReport]) -> None:
        """Record a run; synced before the run itself counts as done. Raises WriteFailed."""
        self._rows[run] = [asdict(r) for r in rows]
        # A torn line of a killed export has no line end: start a new one.
        self._write("\n" + json.dumps({"run": run, "tensors": self._rows[run]}) + "\n")

    def _write(self, text: str) -> None:
        try:
            # Kept open, so that it stays the same file wherever the folder goes.
            self._file = self._file or open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - see `close`
            if self._file.tell() == 0:
                self._file.write(json.dumps({"options": self._options}) + "\n")
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise write_failed(f"{self._path}: cannot write", error) from error

    def has(self, run: RunPlan) -> bool:
        """Whether the reports on a run are there, one for each of its matrices."""
        matrices = [piece.matrix for piece in run.pieces if piece.spec.role != "float"]
        return [row["name"] for row in self._rows.get(run.spec.name, ())] == matrices

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            with suppress(OSError):  # what a full disk did not take is tried again
                self._file.close()
            self._file = None

    def result(self, scheme: Scheme, runs: Sequence[RunPlan]) -> QuantizationReport:
        """One entry per matrix in execution order; tiles of a table are joined."""
        rows = [_tensor_report(row) for run in runs for row in self._rows.get(run.spec.name, ())]
        return joined_report(scheme.preset, rows, sum(r.float_elements for r in runs))
