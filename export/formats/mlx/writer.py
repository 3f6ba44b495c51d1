"""The `mlx` format: weights as mlx-lm packs them, programs as functions exported by MLX.

A bundle is also a folder that mlx-vlm loads where it knows the family: `model.safetensors` with its index,
tensors under the names that mlx-vlm has for them (see `names`), `config.json` with a `quantization`
section, tokenizer files and a README beside them. `mx.load` and `mx.dequantize` give every weight.

`programs` in the manifest: `mlx` the version that wrote the functions (see `runtime.mlx_version`),
`precision` that of the stored scales, and per program an entry

    {"inputs": [argument...], "outputs": [argument...], "gpu": {"file"}, "cpu": {"file"}}
    argument = {"name", "dtype", "shape"}, dtype as in safetensors, sizes as numbers or names of lengths

A function takes arrays in the order of `inputs` and gives those of `outputs`, for all lengths ("t" positions
of the pass or rows, "p" of the prefix, "s" of both, "v" entries of a tile). Inputs `w.<name>` are the tensors
`<name>` of the run that the call is for. MLX records the device in the file, so there is one for each; they
differ in nothing else.

Layers with experts are three entries: `before` ends in `experts.x` [t, H], `experts.index` and
`experts.weight` [t, k]; `expert` maps rows of x that chose an expert; `after` begins with `experts.y`, the
sum over j of weight[t, j] * expert[index[t, j]](x[t]), and takes by name whatever else `before` gave.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from edgekit.export.errors import ExportError
from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.formats.mlx import layout, names
from edgekit.export.formats.mlx.graph import Argument, Function, Graph, matrix_arguments
from edgekit.export.formats.mlx.layout import EXPERT_PARTS, Form, form
from edgekit.export.formats.mlx.ops import Matrix, expert
from edgekit.export.models.base import LayerSpec, WeightSpec
from edgekit.export.programs import (
    EXAMPLE_T,
    final_program,
    head_programs,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice, Quantized, Scheme
from edgekit.export.runs import RunPlan
from edgekit.flashload.files import write_atomic
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.packed import Slice
from edgekit.runtime.engines.mlx import functions as mlx_functions
from edgekit.runtime.engines.mlx import version as mlx_version
from edgekit.runtime.errors import one_line

PROGRAM_FOLDER = "programs"
#: The devices that functions are exported for.
DEVICES = ("gpu", "cpu")
CONFIG_FILE, INDEX_FILE, README_FILE = "config.json", "model.safetensors.index.json", "README.md"
#: The families, as `model_type` of config.json, that mlx-vlm 0.7.10 loads from these folders.
MLX_VLM_TYPES = ("diffusion_gemma",)
_CARD = """---
library_name: mlx
pipeline_tag: text-generation
tags:
- mlx
- edgekit
---

A diffusion language model, quantized by edgekit for MLX. Its weights stream from flash, within a budget:

    pip install 'edgekit[mlx]'
    edgekit run . -p "Why is the sky blue?" --memory 8GB
"""
_CARD_MLX_VLM = """
Or all in memory, with mlx-vlm:

    pip install mlx-vlm
    python -m mlx_vlm generate --model . --prompt "Why is the sky blue?"
"""
_CARD_OTHER = """
No other program known to edgekit runs models of type `{}`. `mx.load` gives the tensors, under the names of
the checkpoint, and `mx.dequantize` their values: groups and bits are in config.json.
"""


class MlxFormat(Format):
    """Layout `mlx-2`, see `layout`. The precision is that of the stored scales: float16 leaves 75 dB a
    layer and better against the same codes with float32 scales, which take a bit more for each weight in
    groups of 32.
    """

    WEIGHTS_FILE = "model.safetensors"
    TOKENIZER_FOLDER = "."

    @classmethod
    def check_versions(cls) -> None:
        """Refuse a version of MLX whose files edgekit does not know. Raises ExportError."""
        version = mlx_version.installed()
        if not mlx_version.reads(version):
            raise ExportError(
                f"mlx {version} writes functions that edgekit does not know; "
                f"pip install '{mlx_version.REQUIREMENT}'"
            )

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        return layout.storable(self.architecture, scheme, choices)

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice, self.precision)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q, self.precision)

    def packed(self, runs: Sequence[RunPlan]) -> dict[str, tuple[Slice, ...]]:
        """The names of the checkpoint; see `names`."""
        return names.stored(runs)

    def facts(self) -> dict[str, Any]:
        return {"mlx": mlx_version.installed(), "precision": self.precision}

    def layer_kinds(self) -> list[str]:
        return numbered_kinds(
            self.architecture, self.choices, lambda layer, own: tuple(_forms(layer, own).values())
        )

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """Export every function below `folder`/programs."""
        architecture, choices = self.architecture, self.choices
        entries: dict[str, Any] = {}
        files: list[str] = []

        def save(function: Function) -> dict[str, Any]:
            progress(function.name)
            entry = _save(folder, function)
            files.extend(entry[device]["file"] for device in DEVICES)
            return entry

        for i, (name, layer) in enumerate(zip(self.layer_kinds(), architecture.layers, strict=True)):
            if name in entries:
                continue
            own = layer_choices(layer, i, choices)
            forms = _forms(layer, own)
            program = layer_program(name, architecture, layer, own, layout.placeholders)
            graph = Graph(program, forms, self.precision)
            if not layer.experts:
                entries[name] = save(graph.whole())
                continue
            before, after = graph.split()
            middle = _expert(name, architecture.hidden_size, layer, forms, self.precision)
            entries[name] = {"before": save(before), "expert": save(middle), "after": save(after)}
        entries["final"] = save(Graph(final_program(architecture), {}, self.precision).whole())
        if architecture.self_conditioning is not None:
            specs = [s for s in architecture.self_conditioning_weights if s.role != "float"]
            own = {s.name: choices[f"self_conditioning.{s.name}"] for s in specs}
            program = self_conditioning_program(architecture, own, layout.placeholders)
            forms = {s.name: form(s, own[s.name]) for s in specs}
            entries[program.name] = save(Graph(program, forms, self.precision).whole())
        table = architecture.head or architecture.embedding
        choice = choices["head" if architecture.head is not None else "embedding"]
        for program in head_programs(architecture, choice, layout.placeholders):
            graph = Graph(program, {"table": form(table, choice)}, self.precision)
            entries[program.name] = save(graph.whole())
        return WrittenPrograms(entries, tuple(files))

    def write_files(self, folder: Path, config: Mapping[str, Any], runs: Sequence[RunPlan]) -> list[str]:
        """Write config.json with the stored forms, the index of the weights and a README."""
        described = {k: v for k, v in config.items() if k != "quantization_config"}
        if "vision_config" in described or config.get("model_type") in MLX_VLM_TYPES:
            described["vision_config"] = None  # else mlx-vlm looks for its weights, which are not here
        described["quantization"] = quantization_section(self.choices, runs)
        index = {
            "metadata": {"total_size": sum(t.nbytes for run in runs for t in run.spec.tensors)},
            "weight_map": {
                part.name: self.WEIGHTS_FILE for parts in self.packed(runs).values() for part in parts
            },
        }
        readme = model_card(str(config.get("model_type", "")))
        write_atomic(folder / CONFIG_FILE, json.dumps(described, indent=1).encode())
        write_atomic(folder / INDEX_FILE, json.dumps(index, indent=1).encode())
        write_atomic(folder / README_FILE, readme.encode())
        return [CONFIG_FILE, INDEX_FILE, README_FILE]


def quantization_section(choices: Mapping[str, Choice], runs: Sequence[RunPlan]) -> dict[str, Any]:
    """`quantization` of config.json: the most frequent form, and by path what differs; false is not
    quantized.
    """
    forms: dict[str, Form] = {}
    odd = set()  # mlx-vlm goes by the default only where the elements are a multiple of 64
    for run in runs:
        for piece in run.pieces:
            if piece.spec.role == "float":
                continue
            for path in names.modules(piece):
                forms[path] = form(piece.spec, choices[piece.matrix])
                if math.prod(piece.spec.shape) % 64:
                    odd.add(path)
    counts = Counter(f for f in forms.values() if f.bits != 16)
    usual = counts.most_common(1)[0][0] if counts else Form(8, 64)

    def described(f: Form) -> Any:
        return False if f.bits == 16 else {"group_size": f.group_size, "bits": f.bits, "mode": "affine"}

    return described(usual) | {p: described(f) for p, f in forms.items() if f != usual or p in odd}


def model_card(model_type: str) -> str:
    """The README of a folder."""
    return _CARD + (_CARD_MLX_VLM if model_type in MLX_VLM_TYPES else _CARD_OTHER.format(model_type))


def _forms(layer: LayerSpec, own: Mapping[str, Choice]) -> dict[str, Form]:
    forms = {s.name: form(s, own[s.name]) for s in layer.weights if s.role != "float"}
    for spec in layer.experts[0] if layer.experts else ():
        forms["experts." + spec.name] = form(spec, own["experts." + spec.name])
    return forms


def _expert(name: str, hidden: int, layer: LayerSpec, forms: Mapping[str, Form], precision: str) -> Function:
    """One expert on rows routed to it: x [t, H] -> y [t, H]."""
    matrices = [
        (part, spec.shape[0] // len(EXPERT_PARTS[spec.name]), spec.shape[1], forms["experts." + spec.name])
        for spec in layer.experts[0]
        for part in EXPERT_PARTS[spec.name]
    ]
    arguments = [matrix_arguments(*m, precision) for m in matrices]

    def call(x: mx.array, *arrays: mx.array) -> list[mx.array]:
        source = iter(arrays)
        parts = {
            m[0]: Matrix(m[3], *(next(source) for _ in a)) for m, a in zip(matrices, arguments, strict=True)
        }
        return [expert(x, parts["gate_proj"], parts["up_proj"], parts["down_proj"], layer.activation)]

    row = ("t", hidden)
    inputs = (Argument("x", "F32", row), *(a for group in arguments for a in group))
    return Function(f"{name}.expert", inputs, (Argument("y", "F32", row),), call, {"t": EXAMPLE_T})


def _save(folder: Path, function: Function) -> dict[str, Any]:
    """Export a function for each device; returns its entry."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "function.mlxfn"
        try:
            mx.export_function(str(path), function.call, *function.examples(), shapeless=True)
        except (ValueError, RuntimeError) as error:
            raise ExportError(f"program {function.name}: mlx cannot export it: {one_line(error)}") from error
        exported = mlx_functions.parse(path.read_bytes(), f"program {function.name}")
    entry: dict[str, Any] = {
        "inputs": [a.as_dict() for a in function.inputs],
        "outputs": [a.as_dict() for a in function.outputs],
    }
    for device in DEVICES:
        file = f"{PROGRAM_FOLDER}/{device}/{function.name}.mlxfn"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / file, mlx_functions.encode(exported, device))
        entry[device] = {"file": file}
    return entry
