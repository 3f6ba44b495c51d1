"""The `onnx` format: programs as .onnx files with weights as inputs, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgekit.export.formats import onnx_layout
from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.formats.onnx_graph import check, convert, split_at_experts
from edgekit.export.formats.onnx_uint8 import uint8_variant
from edgekit.export.models.base import Architecture
from edgekit.export.programs import (
    Program,
    expert_program,
    final_program,
    head_programs,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice
from edgekit.flashload.files import write_atomic

NAME = "onnx"
#: Names the stored layouts; the engine refuses a bundle whose layout it does not know.
LAYOUT = "onnx-3"
specs, arrays = onnx_layout.specs, onnx_layout.arrays

PROGRAM_FOLDER = "programs"


def layer_kinds(architecture: Architecture, choices: Mapping[str, Choice]) -> list[str]:
    """The program name of every layer. 4 and 8 bits are one form here: both reach the program as int8."""
    return numbered_kinds(architecture, choices, lambda _, own: tuple(c.bits == 16 for c in own.values()))


def write_programs(
    folder: Path, architecture: Architecture, choices: Mapping[str, Choice], progress: Callable[[str], None]
) -> dict[str, Any]:
    """Write every program below `folder` and return the manifest's `programs` section.

    An entry is {"file", "inputs", "outputs"}, and "file_uint8" where the program has integer products
    (`onnx_uint8`); a layer with experts is {"before", "expert", "after"} of such entries.
    """
    entries: dict[str, Any] = {}

    def save(name: str, model: Any) -> dict[str, Any]:
        (folder / PROGRAM_FOLDER).mkdir(parents=True, exist_ok=True)
        entry: dict[str, Any] = {
            "file": f"{PROGRAM_FOLDER}/{name}.onnx",
            "inputs": [i.name for i in model.graph.input],
            "outputs": [o.name for o in model.graph.output],
        }
        write_atomic(folder / entry["file"], check(model))
        if (variant := uint8_variant(model)) is not None:
            entry["file_uint8"] = f"{PROGRAM_FOLDER}/{name}.u8.onnx"
            write_atomic(folder / entry["file_uint8"], check(variant))
        return entry

    def add(program: Program) -> None:
        progress(program.name)
        entries[program.name] = save(program.name, convert(program))

    for i, (name, layer) in enumerate(
        zip(layer_kinds(architecture, choices), architecture.layers, strict=True)
    ):
        if name in entries:
            continue
        progress(name)
        own = layer_choices(layer, i, choices)
        model = convert(layer_program(name, architecture, layer, own, onnx_layout.placeholders))
        if not layer.experts:
            entries[name] = save(name, model)
            continue
        before, after = split_at_experts(model)
        kind = layer.activation
        expert = convert(
            expert_program(
                f"{name}.expert",
                architecture.hidden_size,
                layer.experts[0],
                kind,
                own,
                onnx_layout.placeholders,
            )
        )
        entries[name] = {
            "before": save(f"{name}.before", before),
            "expert": save(f"{name}.expert", expert),
            "after": save(f"{name}.after", after),
        }
    add(final_program(architecture))
    if architecture.self_conditioning is not None:
        own = {
            s.name: choices[f"self_conditioning.{s.name}"]
            for s in architecture.self_conditioning_weights
            if s.role != "float"
        }
        add(self_conditioning_program(architecture, own, onnx_layout.placeholders))
    table = choices["head" if architecture.head is not None else "embedding"]
    for program in head_programs(architecture, table, onnx_layout.placeholders):
        add(program)
    return entries
