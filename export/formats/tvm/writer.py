"""The `tvm` format: programs compiled by TVM for one device, weights as the native core stores them.

`programs` in the manifest: `tvm` the version that compiled them, `device` what for, `device_summary` that in
words, `kernels` ("core" or "compiled", see `ops`), `library` the file, `cubin` that of kernels for NVIDIA
GPUs (machine code, or PTX), and per program an entry

    {"function": symbol, "inputs": [argument...], "outputs": [argument...], "live": [per position, besides]}
    argument = {"name", "dtype", "shape"}, dtype as in safetensors, sizes as numbers or names of lengths

for all lengths: "t" positions of the pass, "p" of the prefix, "s" of both. Inputs `w.<name>` are the tensors
`<name>` of the run that the call is for; bfloat16 comes as uint16. `live` are float32 values that are alive
at a time, for each position and besides. Entries of layers say with `mask` whether attention has one, and
where they mix experts, `experts`: {"count", "width", "kind", "route": the rule}. Where kernels are compiled,
they have the entries `attention`, `prefix_attention` over a prefix too, and `expert`, of one expert. The head
is the core's: its entry is that of the native format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from torch import Tensor
from tvm import relax, tirx

from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.formats.native import layout
from edgekit.export.formats.native.writer import head_entry
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.row import FormatRow
from edgekit.export.formats.tvm import ops
from edgekit.export.formats.tvm.compilation import compile_library
from edgekit.export.formats.tvm.devices import DEVICES, here
from edgekit.export.formats.tvm.graph import (
    Argument,
    Attention,
    Function,
    Graph,
    named,
    parameters_of,
    product_memory,
)
from edgekit.export.models.base import Architecture, LayerSpec, WeightSpec
from edgekit.export.programs import (
    Program,
    code_placeholders,
    final_program,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice, Quantized, Scheme, check_experts_alike
from edgekit.flashload.files import write_atomic
from edgekit.flashload.format import TensorSpec

PROGRAM_FOLDER = "programs"


class TvmFormat(Format):
    """Layout `tvm-1`: weights as in `native-1`, see `formats.native.layout`.

    Raises:
        ExportError, QuantizationError: as `Format` does, and where compiled kernels, which take all experts
            of a layer, are given some that differ.
    """

    def __init__(
        self, row: FormatRow, architecture: Architecture, scheme: Scheme, options: FormatOptions
    ) -> None:
        super().__init__(row, architecture, scheme, options)
        self.device = DEVICES[options.device or here()]
        if not self.device.core:
            check_experts_alike(architecture, self.choices, f"{row.name} for {self.device.name}")

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q)

    def facts(self) -> dict[str, Any]:
        return {
            "tvm": tvm.__version__,
            "device": self.device.name,
            "device_summary": self.device.summary,
            "kernels": "core" if self.device.core else "compiled",
            "library": f"{PROGRAM_FOLDER}/{self.device.library}",
            **({"cubin": f"{PROGRAM_FOLDER}/{self.device.kernels}"} if self.device.cuda else {}),
        }

    def layer_kinds(self) -> list[str]:
        return numbered_kinds(
            self.architecture,
            self.choices,
            lambda _, own: tuple(
                (name, c.bits, c.group_size if c.bits == 4 else 0) for name, c in own.items()
            ),
        )

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """Compile every program below `folder`/programs, into one library."""
        architecture, choices = self.architecture, self.choices
        builder, entries = relax.BlockBuilder(), dict[str, Any]()
        made: list[Function] = []

        def add(program: Program, weights: tuple[WeightSpec, ...], own: Mapping[str, Choice]) -> Function:
            progress(program.name)
            graph = Graph(program, weights, own, self.device.core)
            made.append(graph.add_to(builder, f"p{len(made)}"))
            entries[program.name] = made[-1].as_dict()
            return made[-1]

        for i, (name, layer) in enumerate(zip(self.layer_kinds(), architecture.layers, strict=True)):
            if name in entries:
                continue
            own = layer_choices(layer, i, choices)
            program = layer_program(name, architecture, layer, own, placeholders)
            function = add(program, layer.weights, own)
            assert function.attention is not None, "it is a layer"
            entries[name]["mask"] = function.attention.masked
            if not self.device.core:
                for part, prefix in (("attention", False), ("prefix_attention", True)):
                    made.append(_attention(builder, f"p{len(made)}", function.attention, prefix))
                    entries[name][part] = made[-1].as_dict()
            if layer.experts:
                mixture = function.mixture
                width = layer.experts[0][0].shape[0] // 2
                entries[name]["experts"] = {
                    "count": len(layer.experts), "width": width, "kind": mixture.kind, "route": mixture.rule,
                }  # fmt: skip
                if not self.device.core:
                    made.append(_expert(builder, f"p{len(made)}", layer, own))
                    entries[name]["expert"] = made[-1].as_dict()
        add(final_program(architecture), (), {})
        if architecture.self_conditioning is not None:
            specs = architecture.self_conditioning_weights
            own = {s.name: choices[f"self_conditioning.{s.name}"] for s in specs if s.role != "float"}
            add(self_conditioning_program(architecture, own, placeholders), specs, own)
        entries["head"] = head_entry(architecture)
        progress(f"compiling for {self.device.name}")
        (folder / PROGRAM_FOLDER).mkdir(parents=True, exist_ok=True)
        files = compile_library(builder.get(), self.device)
        for name, data in files.items():
            write_atomic(folder / PROGRAM_FOLDER / name, data)
        return WrittenPrograms(entries, tuple(f"{PROGRAM_FOLDER}/{name}" for name in files))


def placeholders(spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
    """Untouched tensors that stand for a matrix: what is stored of it, `layout` says."""
    if choice.bits == 16:
        return {spec.name + ".weight": torch.empty(spec.shape, dtype=torch.bfloat16)}
    return code_placeholders(spec, choice)


def _attention(builder: relax.BlockBuilder, symbol: str, layer: Attention, prefix: bool) -> Function:
    """A layer's attention, over a prefix or without, by compiled kernels."""
    t, p, s = (tirx.Var(name, "int64") for name in "tps")
    own = [1, layer.kv_heads, t, layer.head_dim]
    shapes = {"q": [1, layer.heads, t, layer.head_dim], "k": own, "v": own}
    if prefix:
        shapes["prefix_k"] = shapes["prefix_v"] = [1, layer.kv_heads, p, layer.head_dim]
    if layer.masked:
        shapes["mask"] = [t, s if prefix else t]
    made = Function(symbol, [Argument(name, "F32", named(shape)) for name, shape in shapes.items()])
    made.outputs = [Argument("y", "F32", named(shapes["q"]))]
    given = {name: relax.Var(name, relax.TensorType(shape, ops.FLOAT)) for name, shape in shapes.items()}
    q, k, v, *others = given.values()
    before, masks = (others[:2], others[2:]) if prefix else ([], others)
    with builder.function(symbol, list(given.values())):
        with builder.dataflow():
            y = ops.compiled_attention(q, k, v, before, masks, layer.scale)
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    # Beside scores, which the engine counts: they grow with both lengths.
    made.live = (4 * layer.heads * layer.head_dim, 0)
    return made


def _expert(
    builder: relax.BlockBuilder, symbol: str, layer: LayerSpec, choices: Mapping[str, Choice]
) -> Function:
    """One expert on the rows routed to it: x [t, H] -> y [t, H], by compiled kernels."""
    gate_up, down = layer.experts[0]
    rows, hidden = tirx.Var("t", "int64"), gate_up.shape[1]
    x = relax.Var("x", relax.TensorType([rows, hidden], ops.FLOAT))
    made = Function(symbol, [Argument("x", "F32", ("t", hidden))], [Argument("y", "F32", ("t", hidden))])
    matrices, variables = [], [x]
    for spec in (gate_up, down):
        matrix, arguments = parameters_of(spec, choices["experts." + spec.name])
        matrices.append(matrix)
        variables += matrix.tensors
        made.inputs += arguments
    with builder.function(symbol, variables):
        with builder.dataflow():
            gated = ops.gated_halves(ops.compiled_product(x, matrices[0], 8), layer.activation)
            y = ops.compiled_product(gated, matrices[1], 8)
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    within = [product_memory(spec.shape, choices["experts." + spec.name].bits, 8) for spec in (gate_up, down)]
    results = gate_up.shape[0] + down.shape[1] + hidden
    made.live = (results + max(positions for positions, _ in within), sum(besides for _, besides in within))
    return made
