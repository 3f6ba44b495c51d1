"""The formats for ONNX Runtime, on processors and on GPUs: programs as .onnx files with weights as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.formats.onnx import gpu_layout, gpu_ops, layout, ops
from edgekit.export.formats.onnx.graph import Operators, check, convert, split_at_experts
from edgekit.export.formats.onnx.uint8 import uint8_variant
from edgekit.export.models.base import LayerSpec, WeightSpec
from edgekit.export.programs import (
    Program,
    expert_program,
    final_program,
    head_programs,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice, Quantized, Scheme
from edgekit.flashload.files import write_atomic
from edgekit.flashload.format import TensorSpec

PROGRAM_FOLDER = "programs"


class OnnxFormat(Format):
    """Layout `onnx-3`, see `layout`; the engine refuses a bundle whose layout it does not know."""

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q)

    def placeholders(self, spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
        """The inputs of programs that stand for a weight, see `programs.Placeholders`."""
        return layout.placeholders(spec, choice)

    def operators(self) -> Operators:
        """What stands for `edgekit::` operators."""
        return ops.decompositions()

    def form(self, choice: Choice) -> Any:
        """What programs see of a choice. 4 and 8 bits are one form: both reach the program as int8."""
        return choice.bits == 16

    def layer_kinds(self) -> list[str]:
        return numbered_kinds(
            self.architecture, self.choices, lambda _, own: tuple(self.form(c) for c in own.values())
        )

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """Write every program below `folder`/programs.

        An entry is {"file", "inputs", "outputs"}, and "file_uint8" where the program has integer products
        (`uint8`); a layer with experts is {"before", "expert", "after"} of such entries.
        """
        architecture, choices, files = self.architecture, self.choices, _Files(folder, self.row.name)
        entries: dict[str, Any] = {}

        def add(program: Program) -> None:
            progress(program.name)
            entries[program.name] = files.save(program.name, self._convert(program))

        for i, (name, layer) in enumerate(zip(self.layer_kinds(), architecture.layers, strict=True)):
            if name not in entries:
                progress(name)
                entries[name] = self._layer(name, layer, layer_choices(layer, i, choices), files)
        add(final_program(architecture))
        if architecture.self_conditioning is not None:
            own = {
                s.name: choices[f"self_conditioning.{s.name}"]
                for s in architecture.self_conditioning_weights
                if s.role != "float"
            }
            add(self_conditioning_program(architecture, own, self.placeholders))
        table = choices["head" if architecture.head is not None else "embedding"]
        for program in head_programs(architecture, table, self.placeholders):
            add(program)
        return WrittenPrograms(entries, tuple(files.names))

    def _layer(self, name: str, layer: LayerSpec, own: dict[str, Choice], files: _Files) -> dict[str, Any]:
        """Write the programs of a layer kind; returns its entry."""
        model = self._convert(layer_program(name, self.architecture, layer, own, self.placeholders))
        if not layer.experts:
            return files.save(name, model)
        before, after = split_at_experts(model)
        hidden, experts = self.architecture.hidden_size, layer.experts[0]
        program = expert_program(f"{name}.expert", hidden, experts, layer.activation, own, self.placeholders)
        expert = self._convert(program)
        return {
            "before": files.save(f"{name}.before", before),
            "expert": files.save(f"{name}.expert", expert),
            "after": files.save(f"{name}.after", after),
        }

    def _convert(self, program: Program) -> Any:
        return convert(program, self.operators())


class OnnxGpuFormat(OnnxFormat):
    """Layout `onnx-gpu-1`, see `gpu_layout`."""

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        return gpu_layout.storable(self.architecture, choices)

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return gpu_layout.specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return gpu_layout.arrays(name, role, q)

    def placeholders(self, spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
        return gpu_layout.placeholders(spec, choice)

    def operators(self) -> Operators:
        return gpu_ops.decompositions()

    def form(self, choice: Choice) -> Any:
        """Products are told the bits and groups."""
        return choice.bits, choice.group_size


class _Files:
    """The program files of a bundle in the making; `names` are theirs, relative to its folder."""

    def __init__(self, folder: Path, program_format: str) -> None:
        self._folder, self._format = folder, program_format
        self.names: list[str] = []

    def save(self, name: str, model: Any) -> dict[str, Any]:
        """Write a checked model, and its variant for uint8 where it has one; returns its entry."""
        entry: dict[str, Any] = {
            "file": self._write(f"{name}.onnx", model),
            "inputs": [i.name for i in model.graph.input],
            "outputs": [o.name for o in model.graph.output],
        }
        if (variant := uint8_variant(model)) is not None:
            entry["file_uint8"] = self._write(f"{name}.u8.onnx", variant)
        return entry

    def _write(self, name: str, model: Any) -> str:
        path = f"{PROGRAM_FOLDER}/{name}"
        (self._folder / PROGRAM_FOLDER).mkdir(parents=True, exist_ok=True)
        write_atomic(self._folder / path, check(model, self._format))
        self.names.append(path)
        return path
