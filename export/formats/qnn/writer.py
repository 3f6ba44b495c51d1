"""The `qnn` format: packages of ONNX graphs with codes for Qualcomm's NPU.

What a bundle holds and what its manifest says of packages: see `packages.writer`. A package is a folder with
an ONNX model for each of its functions and one file of weights for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.calibrate.canvases import Plan, canvases
from edgekit.export.calibrate.ranges import ProductRange, Told, collect
from edgekit.export.calibrate.texts import Samples
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats.base import WrittenPrograms
from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.writer import PackagedFormat
from edgekit.export.formats.qnn import layout
from edgekit.export.formats.qnn.contexts import check_compiler, compiled_files
from edgekit.export.formats.qnn.graph import Conversions, QnnGraph
from edgekit.export.formats.row import FormatRow
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice, Quantized, Scheme
from edgekit.export.weights import TensorSource
from edgekit.flashload.format import TensorSpec
from edgekit.runtime.engines.qnn.programs import SUFFIX

#: Kinds of packages that run on the processor.
ON_PROCESSOR = ("final", "head")


class QnnFormat(PackagedFormat):
    """Layout `qnn-2`, see `layout`."""

    SUFFIX = SUFFIX
    # An NPU maps less than 4 GB for a process, and a package beside what is read ahead must fit in.
    LIMIT_BYTES = 1_000_000_000

    def __init__(
        self, row: FormatRow, architecture: Architecture, scheme: Scheme, options: FormatOptions
    ) -> None:
        super().__init__(row, architecture, scheme, options)
        self._socs = options.socs or ()
        if self._socs:
            check_compiler()
        self._converted, self._ranges = Conversions(), dict[str, ProductRange]()
        self._compiled: dict[str, list[str]] = {}

    def graph(self, package: PackagePlan) -> QnnGraph:
        return QnnGraph("processor" if package.kind in ON_PROCESSOR else "npu", self._converted)

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """The choices, all of which the NPU can multiply with.

        Raises:
            ExportError: the model has experts.
            QuantizationError: a matrix is float, or its groups are not the NPU's.
        """
        if any(layer.experts for layer in self.architecture.layers):
            raise ExportError(
                f"format {self.row.name} is for models without experts, {self.architecture.family} has some; "
                "--format native takes them"
            )
        for name, choice in choices.items():
            if choice.bits == 16:
                raise QuantizationError(
                    f"{name}: has 16 bits; format {self.row.name} multiplies codes of 4 and 8 bits: use "
                    "--quant mixed4 or int8, and merge adapters"
                )
            if choice.bits == 4 and choice.group_size not in layout.GROUP_SIZES:
                sizes = " or ".join(map(str, layout.GROUP_SIZES))
                raise QuantizationError(
                    f"{name}: has groups of {choice.group_size}; the NPU takes groups of {sizes}: use "
                    f"--group-size {layout.GROUP_SIZES[0]}"
                )
        return choices

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q, self._ranges.get(name))

    def head_array(self, suffix: str, rows: np.ndarray) -> np.ndarray:
        return rows

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """The entries of the packages, and the files that chips load in their place."""
        written = super().write_programs(folder, progress)
        on_npu = [
            (folder / written.entries[p.name]["path"], list(self.content(p).plans))
            for p in self.packages
            if p.kind not in ON_PROCESSOR
        ]
        self._compiled = compiled_files(folder, on_npu, self._socs, self.LIMIT_BYTES, progress)
        files = [name for own in self._compiled.values() for name in own]
        return WrittenPrograms(written.entries, (*written.files, *files))

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({"compiled": self._compiled} if self._compiled else {})

    def observe(self, source: TensorSource, samples: Samples | None, told: Told) -> None:
        plan, pieces = (Plan(), None) if samples is None else (samples.plan, samples.pieces)
        self._ranges = collect(self.architecture, source, canvases(self.architecture, plan, pieces), told)
