"""The files of a bundle beside its weights: programs, the report on quantization and, last, the manifest."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import CheckpointError
from edgekit.export.checkpoint.text_files import read_file
from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.quantize import QuantizationReport, Scheme
from edgekit.export.role_head import RoleHead
from edgekit.export.runs import RunPlan
from edgekit.flashload import manifest as manifests
from edgekit.flashload.files import write_atomic
from edgekit.flashload.manifest import Manifest, WeightsEntry
from edgekit.flashload.writer import FileDigest
from edgekit.runtime.bundle import model_card
from edgekit.runtime.bundle.golden import GOLDEN_FILE

REPORT_FILE = manifests.REPORT_NAME
_MOST_GOLDEN_BYTES = 64 << 20


@dataclass(frozen=True)
class Contents:
    """The parts of a manifest that are neither programs nor files. `config` is a config.json, `adapters` are
    as `edgekit.export.adapters.adapter_facts` has them.
    """

    format: Format
    scheme: Scheme
    runs: Sequence[RunPlan]
    report: QuantizationReport
    weights: FileDigest
    config: dict[str, Any]
    sampler_config: dict[str, Any]
    adapters: Sequence[dict[str, Any]] = ()  # beside the weights
    role_head: RoleHead | None = None


def write_manifest(
    folder: Path,
    contents: Contents,
    programs: WrittenPrograms,
    files: Sequence[str],
    provenance: dict[str, Any],
    new_tokens: int | None = None,
) -> Manifest:
    """Write the report, the model card and then edgekit.json, with which the folder becomes a bundle; returns
    what it says. `files` are those that lie there beside programs and report; a README among them becomes
    part of the card. `new_tokens`: the answer that programs have room for, see `model_card.card`.
    """
    report, form = contents.report, contents.format
    write_atomic(folder / REPORT_FILE, json.dumps(report.tensors_as_dicts(), indent=1).encode())
    manifest = Manifest(
        model=_model_section(contents),
        programs={
            "format": form.row.name,
            "layout": form.row.layout,
            **form.facts(),
            form.SECTION: programs.entries,
        },
        layers=_layer_section(contents),
        sampler={
            "name": form.architecture.sampler,
            "config": contents.sampler_config,
        },
        quantization=report.as_dict()
        | {
            "group_size": contents.scheme.group_size,
            "overrides": [asdict(o) for o in contents.scheme.overrides],
        },
        weights=WeightsEntry(form.WEIGHTS_FILE, **asdict(contents.weights)),
        files={name: manifests.file_entry(folder / name) for name in (REPORT_FILE, *files, *programs.files)},
        provenance=provenance | {"versions": _versions(form)},
    )
    path = folder / model_card.CARD
    if model_card.CARD in files:
        text = model_card.with_front_matter(manifest, path.read_text(encoding="utf-8"))
    else:
        text = model_card.card(manifest, new_tokens)
    write_atomic(path, text.encode())
    card = {model_card.CARD: manifests.file_entry(path)}
    manifest = replace(manifest, files=manifest.files | card)
    manifests.save(manifest, folder)
    return manifest


def golden_name(scheme: Scheme) -> str:
    """The file of a checkpoint with golden results for the bundles that a scheme without overrides makes."""
    return f"golden-{scheme.preset}-{scheme.group_size}.json"


def copy_golden(source: Path, target: Path, scheme: Scheme) -> list[str]:
    """Put the golden results of the checkpoint in folder `source` into the bundle `target`, if there are any
    for this scheme; returns the names written. Raises CheckpointError or WriteFailed.
    """
    file = source / golden_name(scheme)
    if scheme.overrides or not file.is_file():
        return []
    write_atomic(target / GOLDEN_FILE, read_file(file, _MOST_GOLDEN_BYTES, CheckpointError))
    return [GOLDEN_FILE]


def _model_section(contents: Contents) -> dict[str, Any]:
    form, architecture = contents.format, contents.format.architecture

    def table(name: str) -> dict[str, Any]:
        tiles = [r for r in contents.runs if r.unit == name]
        return {
            "runs": [r.spec.name for r in tiles],
            "starts": [r.pieces[0].start for r in tiles],
            "rows": architecture.vocab_size,
            "bits": form.choices[name].bits,
        }

    tables = {"embedding": table("embedding")}
    if architecture.head is not None:
        tables["head"] = table("head")
        if not form.HEAD_IN_RUNS:
            del tables["head"]["runs"], tables["head"]["starts"]
    scales = {
        name: {"beta": own.beta, "positions": own.positions}
        for name, own in ((name, rope.query_scale) for name, rope in architecture.ropes.items())
        if own is not None
    }
    return {
        "family": architecture.family,
        "hidden_size": architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
        "embedding_scale": architecture.embedding_scale,
        "softcap": architecture.softcap,
        "shift_logits": architecture.shift_logits,
        "causal_prefix": architecture.causal_prefix,
        **({"prefix_block": architecture.prefix_block} if architecture.prefix_block != 1 else {}),
        "self_conditioning": architecture.self_conditioning is not None,
        "canvas_length": architecture.canvas_length,
        "max_positions": architecture.max_positions,
        "ropes": {n: list(r.inverse_frequency) for n, r in architecture.ropes.items()},
        **({"query_scales": scales} if scales else {}),
        **({"adapters": list(contents.adapters)} if contents.adapters else {}),
        **({"role_head": contents.role_head.facts()} if contents.role_head else {}),
        "tables": tables,
        "config": contents.config,
    }


def _layer_section(contents: Contents) -> list[dict[str, Any]]:
    form = contents.format
    each = zip(form.layer_kinds(), form.architecture.layers, form.layer_facts(), strict=True)
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
        | own
        for i, (kind, layer, own) in enumerate(each)
    ]


def package_bytes(programs: dict[str, Any]) -> int:
    """Bytes of the packages that the manifest's section on programs lists."""
    return sum(package["bytes"] for package in programs.get("packages", {}).values())


def _versions(form: Format) -> dict[str, str]:
    """The installed versions of what the export was made with."""
    found = {}
    for name in ("edgekit", *form.distributions()):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
