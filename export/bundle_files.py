"""What a bundle holds beside its weights: programs, the report on quantization and, last, the manifest."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.export import formats
from edgekit.export.formats import Format
from edgekit.export.models.base import Architecture
from edgekit.export.quantize import Choice, QuantizationReport, Scheme
from edgekit.export.units import RunPlan
from edgekit.flashload import manifest as manifests
from edgekit.flashload.files import write_atomic
from edgekit.flashload.manifest import Manifest, WeightsEntry
from edgekit.flashload.writer import FileDigest
from edgekit.runtime import model_card

WEIGHTS_FILE: str = formats.OPTIONAL["WEIGHTS_FILE"]
REPORT_FILE = manifests.REPORT_NAME


@dataclass(frozen=True)
class Contents:
    """What a manifest is made of besides programs and files. `config` is a config.json."""

    format: Format
    architecture: Architecture
    scheme: Scheme
    choices: Mapping[str, Choice]
    runs: Sequence[RunPlan]
    report: QuantizationReport
    weights: FileDigest
    config: dict[str, Any]
    sampler_config: dict[str, Any]


def write_programs(folder: Path, contents: Contents, progress: Callable[[str], None]) -> dict[str, Any]:
    """Compile the programs; returns the manifest's section about them."""
    module = contents.format
    entries = module.write_programs(folder, contents.architecture, contents.choices, progress)
    facts = formats.optional(module, "facts")()
    section = formats.optional(module, "SECTION")
    return {"format": module.NAME, "layout": module.LAYOUT, **facts, section: entries}


def write_manifest(
    folder: Path,
    contents: Contents,
    programs: dict[str, Any],
    files: Sequence[str],
    provenance: dict[str, Any],
) -> None:
    """Write the report, the model card and then edgekit.json, with which the folder becomes a bundle. `files`
    are those that lie there besides programs and report; a README among them becomes part of the card.
    """
    report, architecture = contents.report, contents.architecture
    write_atomic(folder / REPORT_FILE, json.dumps(report.tensors_as_dicts(), indent=1).encode())
    manifest = Manifest(
        model=_model_section(contents),
        programs=programs,
        layers=_layer_section(contents),
        sampler={
            "name": architecture.sampler,
            "config": contents.sampler_config,
        },
        quantization=report.as_dict()
        | {
            "group_size": contents.scheme.group_size,
            "overrides": [asdict(o) for o in contents.scheme.overrides],
        },
        weights=WeightsEntry(formats.optional(contents.format, "WEIGHTS_FILE"), **asdict(contents.weights)),
        files={
            name: manifests.file_entry(folder / name)
            for name in (REPORT_FILE, *files, *_program_files(programs))
        },
        provenance=provenance | {"versions": _versions()},
    )
    path = folder / model_card.CARD
    if model_card.CARD in files:
        text = model_card.with_front_matter(manifest, path.read_text(encoding="utf-8"))
    else:
        text = model_card.card(manifest)
    write_atomic(path, text.encode())
    card = {model_card.CARD: manifests.file_entry(path)}
    manifests.save(replace(manifest, files=manifest.files | card), folder)


def _model_section(contents: Contents) -> dict[str, Any]:
    architecture = contents.architecture

    def table(name: str) -> dict[str, Any]:
        tiles = [r for r in contents.runs if r.unit == name]
        return {
            "runs": [r.spec.name for r in tiles],
            "starts": [r.pieces[0].start for r in tiles],
            "rows": architecture.vocab_size,
            "bits": contents.choices[name].bits,
        }

    tables = {"embedding": table("embedding")}
    if architecture.head is not None:
        tables["head"] = table("head")
        if formats.optional(contents.format, "open_store") is not None:
            # Packages of a head have rows of their own, which their entries say.
            del tables["head"]["runs"], tables["head"]["starts"]
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
        "max_positions": architecture.max_positions,
        "ropes": {n: list(r.inverse_frequency) for n, r in architecture.ropes.items()},
        "tables": tables,
        "config": contents.config,
    }


def _layer_section(contents: Contents) -> list[dict[str, Any]]:
    architecture, module = contents.architecture, contents.format
    kinds = module.layer_kinds(architecture, contents.choices)
    facts = formats.optional(module, "layer_facts")
    own = facts() if facts is not None else [{}] * len(kinds)
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
        | own[i]
        for i, (kind, layer) in enumerate(zip(kinds, architecture.layers, strict=True))
    ]


def _program_files(entries: Any) -> list[str]:
    """The files that entries name, nested ones included; a format whose programs are all in the manifest
    names none.
    """
    if isinstance(entries, dict) and "files" in entries:
        return list(entries["files"])
    if isinstance(entries, dict):
        if "file" in entries:
            return [entries[key] for key in ("file", "file_uint8") if key in entries]
        return [f for e in entries.values() for f in _program_files(e)]
    return []


def package_bytes(programs: dict[str, Any]) -> int:
    """Bytes of the packages that the manifest's section on programs lists."""
    return sum(package["bytes"] for package in programs.get("packages", {}).values())


def _versions() -> dict[str, str]:
    found = {}
    for package in ("edgekit", "torch", "onnx", "onnxscript", "mlx", "coremltools", "coreai-core"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
