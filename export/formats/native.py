"""The `native` format: programs as op lists in the manifest, for the native core (no other dependency)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgekit.export.formats import native_layout
from edgekit.export.formats.native_lowering import lower
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.programs import Program, final_program, layer_program, self_conditioning_program
from edgekit.export.quantize import Choice

NAME = "native"
#: Names the stored layouts; the core refuses a bundle whose layout it does not know.
LAYOUT = "native-1"
specs, arrays = native_layout.specs, native_layout.arrays


def layer_kinds(architecture: Architecture, choices: Mapping[str, Choice]) -> list[str]:
    """The program name of every layer: its kind. One op list serves all stored forms of its matrices."""
    return [layer.kind for layer in architecture.layers]


def write_programs(
    folder: Path, architecture: Architecture, choices: Mapping[str, Choice], progress: Callable[[str], None]
) -> dict[str, Any]:
    """The manifest's `programs` section: an op list (see `native_lowering`) per layer kind, `final`,
    `self_conditioning` where the model has it, and `head`. No files are written.
    """
    entries: dict[str, Any] = {}

    def add(program: Program) -> None:
        progress(program.name)
        entries[program.name] = lower(program)

    for layer in architecture.layers:
        if layer.kind in entries:
            continue
        own = _one_form("", layer.weights)
        if layer.experts:
            own |= _one_form("experts.", layer.experts[0])
        add(layer_program(layer.kind, architecture, layer, own, native_layout.placeholders))
    add(final_program(architecture))
    if architecture.self_conditioning is not None:
        own = _one_form("", architecture.self_conditioning_weights)
        add(self_conditioning_program(architecture, own, native_layout.placeholders))
    entries["head"] = _head(architecture)
    return entries


def _one_form(prefix: str, weights: tuple[WeightSpec, ...]) -> dict[str, Choice]:
    """8 bits for every matrix: the form that lets products round their activations where the model
    allows it.
    """
    return {prefix + s.name: Choice(8, 0) for s in weights if s.role != "float"}


def _head(architecture: Architecture) -> dict[str, Any]:
    """Scores of x [T, H] over the table. What is kept of them depends on the request, not on the model."""
    table = architecture.head or architecture.embedding
    op = {"op": "vocab_head", "in": [0], "w": ["table"], "out": [1], "softcap": architecture.softcap}
    return {
        "inputs": ["x"],
        "outputs": [1],
        "weights": {"table": list(table.shape)},
        "values": 2,
        "ops": [op],
    }
