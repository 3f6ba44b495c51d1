"""The `native` format: programs as op lists in the manifest, for the native core (no other dependency)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.formats.native import layout
from edgekit.export.formats.native.lowering import lower
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.programs import (
    Program,
    code_placeholders,
    core_layer_program,
    final_program,
    one_form,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice, Quantized
from edgekit.flashload.format import TensorSpec


class NativeFormat(Format):
    """Layout `native-1`, see `layout`; the core refuses a bundle whose layout it does not know."""

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q)

    def layer_kinds(self) -> list[str]:
        """The kind of every layer: one op list serves all stored forms of its matrices."""
        return [layer.kind for layer in self.architecture.layers]

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """An op list (see `lowering`) per layer kind, `final`, `self_conditioning` where the model has
        it, and `head`. No files are written.
        """
        architecture, entries = self.architecture, dict[str, Any]()

        def add(program: Program) -> None:
            progress(program.name)
            entries[program.name] = lower(program)

        for layer in architecture.layers:
            if layer.kind in entries:
                continue
            add(core_layer_program(architecture, layer))
        add(final_program(architecture))
        if architecture.self_conditioning is not None:
            own = one_form(architecture.self_conditioning_weights)
            add(self_conditioning_program(architecture, own, code_placeholders))
        entries["head"] = head_entry(architecture)
        return WrittenPrograms(entries)


def head_entry(architecture: Architecture) -> dict[str, Any]:
    """The entry of the head: scores of x [T, H] over the table. What is kept of them depends on the request,
    not on the model.
    """
    table = architecture.head or architecture.embedding
    op = {"op": "vocab_head", "in": [0], "w": ["table"], "out": [1], "softcap": architecture.softcap}
    return {
        "inputs": ["x"],
        "outputs": [1],
        "weights": {"table": list(table.shape)},
        "values": 2,
        "ops": [op],
    }
