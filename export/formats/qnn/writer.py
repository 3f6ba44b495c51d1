"""The `qnn` format: packages of ONNX graphs with codes for Qualcomm's NPU.

What a bundle holds and what its manifest says of packages: see `packages.writer`. A package is a folder with
an ONNX model for each of its functions and one file of weights for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.calibrate.canvases import Plan, canvases
from edgekit.export.calibrate.ranges import ProductRange, Told, collect
from edgekit.export.calibrate.texts import Samples
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.base import Stages
from edgekit.export.formats.native import layout as by_core
from edgekit.export.formats.native.writer import head_entry
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.packages.cut import MOST_LAYERS, PACKAGE_FOLDER, PackagePlan
from edgekit.export.formats.packages.writer import PackagedFormat
from edgekit.export.formats.qnn import layout
from edgekit.export.formats.qnn.compiler_memory import LayerSize, compile_bytes, most_layers
from edgekit.export.formats.qnn.contexts import binary_bytes, check_compiler, compiled_files
from edgekit.export.formats.qnn.graph import Conversions, QnnGraph
from edgekit.export.formats.row import FormatRow
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice, Quantized, Scheme
from edgekit.export.runs import RunPlan
from edgekit.export.weights import TensorSource
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.sizes import size
from edgekit.runtime.bench import describe_machine
from edgekit.runtime.engines.qnn.programs import SUFFIX

#: Kinds of packages that run on the processor.
ON_PROCESSOR = ("final",)
#: Distributions that compile packages for chips.
COMPILERS = ("onnxruntime", "onnxruntime-qnn")
#: Positions of a pass.
_WRONG_WITH_ONE_HEAD = 16
_NOT_COMPILED = (
    "no chip was named: phones compile a package each time that they open it, which takes long; --soc "
    "sm8650,sm8750 or others have it compiled here"
)


class QnnFormat(PackagedFormat):
    """Layout `qnn-2`, see `layout`."""

    SUFFIX = SUFFIX
    HEAD_IN_RUNS = True  # the core's kernels compute it
    CORE_EXPERTS = True
    # An NPU maps less than 4 GB for a process, and a package beside what is read ahead must fit in.
    LIMIT_BYTES = 1_000_000_000

    def __init__(
        self, row: FormatRow, architecture: Architecture, scheme: Scheme, options: FormatOptions
    ) -> None:
        # Where packages are compiled here, how they are cut depends on what that takes.
        self._socs, self._fitting = options.socs or (), MOST_LAYERS
        self._asked = None if options.packaging is None else options.packaging.layers_per_chunk
        super().__init__(row, architecture, scheme, options)
        self._check_heads()
        if self._socs:
            check_compiler()
        self._converted, self._ranges = Conversions(), dict[str, ProductRange]()
        self._compiled: dict[str, list[str]] = {}

    def _check_heads(self) -> None:
        """Refuse layers that Qualcomm's libraries compute wrong without a word: the output product of
        attention with one head, where a pass has 16 positions.
        """
        if not any(own.t == _WRONG_WITH_ONE_HEAD for own in self.lengths):
            return
        for i, layer in enumerate(self.architecture.layers):
            (output,) = (spec for spec in layer.weights if spec.name == "self_attn.o_proj")
            if output.shape[1] == layer.head_dim:
                raise ExportError(
                    f"layer {i} has one attention head: Qualcomm's libraries compute passes of "
                    f"{_WRONG_WITH_ONE_HEAD} positions of it wrong; give other --lengths"
                )

    def most_layers(self, sizes: Sequence[int]) -> int:
        """As many as can be compiled in the memory of this machine, where they are to be."""
        memory = int(describe_machine()["memory_bytes"]) if self._socs else 0
        if memory:  # else nothing is compiled, or the system does not tell
            layers = self._layer_sizes(sizes)
            self._fitting = most_layers(layers, self.lengths, memory, MOST_LAYERS)
        return self._fitting

    def _layer_sizes(self, sizes: Sequence[int]) -> list[LayerSize]:
        """Sizes of layers of that many bytes."""
        found = []
        for layer, nbytes in zip(self.architecture.layers, sizes, strict=True):
            cut = self.mixtures.get(layer.kind)
            own = [spec for spec in layer.weights if cut is None or spec.name in cut.dense]
            shapes = {spec.name: spec.shape for spec in own if layout.on_npu(spec)}
            heads = shapes["self_attn.o_proj"][1] // layer.head_dim
            found.append(LayerSize(nbytes, sum(shape[0] for shape in shapes.values()), heads))
        return found

    def notes(self) -> Sequence[str]:
        """That nothing is compiled, if so, and what has decided how many layers a package has."""
        return (*(() if self._socs else (_NOT_COMPILED,)), *self._cut_notes())

    def _cut_notes(self) -> Sequence[str]:
        chunks = [package.layers for package in self.packages if package.kind == "layers"]
        most = max(map(len, chunks))
        if self._asked is not None and self._asked > 1 and self.mixtures:
            return ("each layer with experts is a package of its own, whatever --layers-per-chunk says",)
        if self._asked is not None or self._fitting == MOST_LAYERS or most < self._fitting:
            return ()
        sizes = self._layer_sizes(self.layer_bytes())
        taken = max(compile_bytes([sizes[i] for i in layers], self.lengths) for layers in chunks)
        layers = f"up to {most} layers" if most > 1 else "one layer"
        return (
            f"packages have {layers}, since compiling takes about {size(taken)} of memory for one; "
            "--layers-per-chunk asks for others, and fewer --lengths take less",
        )

    def graph(self, package: PackagePlan) -> QnnGraph:
        return QnnGraph("processor" if package.kind in ON_PROCESSOR else "npu", self._converted)

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """The choices. The NPU can multiply with all that are its own; the core takes any.

        Raises:
            ExportError: the experts of a layer cannot be cut off.
            QuantizationError: a matrix is float, or its groups are not the NPU's.
        """
        on_npu = {
            f"{owner}.{spec.name}" for unit, owner, spec in self.units() if not self.in_flash(unit)
        }  # tables have names without an owner
        for name, choice in choices.items():
            if name not in on_npu:
                continue
            if choice.bits == 16:
                raise QuantizationError(
                    f"{name}: has 16 bits; format {self.row.name} multiplies codes of 4 and 8 bits: use "
                    "--quant mixed4, int4 or int8, no --override with 16 bits, and --adapter-mode merged"
                )
            if choice.bits == 4 and choice.group_size not in layout.GROUP_SIZES:
                sizes = " or ".join(map(str, layout.GROUP_SIZES))
                # Groups are smaller than was asked for where columns cannot be divided by that.
                use = f"--group-size {layout.GROUP_SIZES[0]}"
                if scheme.group_size in layout.GROUP_SIZES:
                    use = f"--override '*{name.rpartition('.')[2]}=8'"
                raise QuantizationError(
                    f"{name}: has groups of {choice.group_size}; the NPU takes groups of {sizes}: use {use}"
                )
        return choices

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return (by_core if self.in_flash(name) else layout).specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        if self.in_flash(name):
            return by_core.arrays(name, role, q)
        return layout.arrays(name, role, q, self._ranges.get(name))

    def distributions(self) -> tuple[str, ...]:
        return super().distributions() + (COMPILERS if self._socs else ())

    def compile_beside(self, folder: Path, progress: Stages) -> Sequence[str]:
        """The files that chips load in place of the packages, which are whole by now."""
        on_npu = [
            (folder / PACKAGE_FOLDER / (p.name + self.SUFFIX), list(self.content(p).plans))
            for p in self.packages
            if p.kind not in ON_PROCESSOR
        ]
        self._compiled = compiled_files(folder, on_npu, self._socs, self.LIMIT_BYTES, progress)
        return [name for own in self._compiled.values() for name in own]

    def planned_bytes(self, runs: Sequence[RunPlan], tag: str) -> int:
        sizes = self.layer_bytes()
        on_npu = binary_bytes(sum(sizes), len(sizes), len(self.lengths))
        return super().planned_bytes(runs, tag) + on_npu * len(self._socs)

    def facts(self) -> dict[str, Any]:
        compiled = {"compiled": self._compiled} if self._compiled else {}
        return super().facts() | {"head": head_entry(self.architecture)} | compiled

    def observe(self, source: TensorSource, samples: Samples | None, told: Told) -> None:
        plan, pieces = (Plan(), None) if samples is None else (samples.plan, samples.pieces)
        self._ranges = collect(self.architecture, source, canvases(self.architecture, plan, pieces), told)
