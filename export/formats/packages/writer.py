"""The writer of formats that keep weights in packages; a subclass adds what is a format's own.

A bundle holds `packages/NAME<suffix>`, see `cut`, and a flash file with the embedding table, whose rows are
looked up outside of the packages, and with what the core computes: the table of a head, and of layers with
experts the runs `layers.I.experts.E` and `layers.I.mixture`, see `mixture_cut`. The manifest's section
is described in `edgekit.runtime.bundle.packages`. Masks are additive, -3e4 where nothing is to be seen: the
largest round number that float16 has twice.
"""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgekit.export.errors import QuantizationError
from edgekit.export.formats import floats
from edgekit.export.formats.base import Format, WrittenPrograms
from edgekit.export.formats.native.lowering import lower
from edgekit.export.formats.options import FormatOptions, Packaging
from edgekit.export.formats.packages import layout
from edgekit.export.formats.packages.content import Content, build
from edgekit.export.formats.packages.cut import (
    MOST_LAYERS,
    PackagePlan,
    choose_lengths,
    content_key,
    cut,
    layer_places,
    manifest_entry,
)
from edgekit.export.formats.packages.graph import PackageBuilder
from edgekit.export.formats.packages.programs import StaticPrograms
from edgekit.export.formats.packages.stamp import Template
from edgekit.export.formats.packages.store import PackageStore
from edgekit.export.formats.row import FormatRow
from edgekit.export.mixture_cut import MixtureCut
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.programs import code_placeholders
from edgekit.export.quantize import Choice, Quantized, Scheme, check_experts_alike
from edgekit.export.runs import RunPlan
from edgekit.flashload.format import RUN_ALIGNMENT, TensorSpec


class PackagedFormat(Format):
    """A format whose weights, but for the embedding table, are in packages; the head's too, where it lies in
    runs.
    """

    SECTION = "packages"
    HEAD_IN_RUNS = False  # packages of a head have rows of their own, which their entries say
    #: Whether the core computes experts, out of the flash file, and what follows them in a layer.
    CORE_EXPERTS: ClassVar[bool] = False
    #: How the names of packages end.
    SUFFIX: ClassVar[str]
    #: The most that a package may have.
    LIMIT_BYTES: ClassVar[int]

    def __init__(
        self, row: FormatRow, architecture: Architecture, scheme: Scheme, options: FormatOptions
    ) -> None:
        super().__init__(row, architecture, scheme, options)
        packaging = options.packaging or Packaging()
        self._ios = packaging.minimum_os or next(iter(self.row.versions), "")
        self.lengths = choose_lengths(architecture, packaging)
        self.packages: Sequence[PackagePlan] = self._cut(packaging)
        self.programs = StaticPrograms(architecture, self.choices, code_placeholders, self.CORE_EXPERTS)
        self._contents: dict[tuple[Any, ...], Content] = {}

    def notes(self) -> Sequence[str]:
        """That all experts are computed, where packages have them."""
        most = max(len(layer.experts) for layer in self.architecture.layers)
        if self.CORE_EXPERTS or not most:
            return ()
        return (
            f"format {self.row.name} computes all {most} experts of a layer for every position; "
            "--format native computes those that are chosen, on the processor",
        )

    @abstractmethod
    def graph(self, package: PackagePlan) -> PackageBuilder:
        """An empty package to be built, for one of the plan or those that differ in weights alone."""

    # --- weights ----------------------------------------------------------------------------------------

    @functools.cached_property
    def mixtures(self) -> Mapping[str, MixtureCut]:
        """The cuts of layers whose experts the core computes, by kind. Raises ExportError."""
        layers = {layer.kind: layer for layer in self.architecture.layers if layer.experts}
        return {
            kind: MixtureCut.of(self.architecture, layer)
            for kind, layer in layers.items()
            if self.CORE_EXPERTS
        }

    def units(self) -> Iterator[tuple[str, str, WeightSpec]]:
        for unit, spec in self.architecture.weights():
            cut = self.mixtures.get(self.architecture.layers[int(unit[7:])].kind) if _is_layer(unit) else None
            if cut is None:
                yield unit, unit, spec
                continue
            if spec.name in cut.dense:
                yield unit, unit, spec
            if spec.name in cut.own:
                yield f"{unit}.mixture", unit, spec

    def in_flash(self, unit: str) -> bool:
        """Whether a unit is in the flash file; see `PackageSource`. A weight's own name tells as well."""
        if unit == "head":
            return self.HEAD_IN_RUNS
        own = unit.split(".")[2:3] if unit.startswith("layers.") else []
        return unit == "embedding" or (self.CORE_EXPERTS and own in (["experts"], ["mixture"]))

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """The choices, all of which the layout can store.

        Raises:
            QuantizationError: the experts of a layer differ in bits, while they are stored as one; or
                activations are to be int8 for matrices that have not 8 bits.
        """
        check_experts_alike(self.architecture, choices, self.row.name)
        if self.activations == "int8":
            _check_eight_bits(choices)
        return choices

    def _cut(self, packaging: Packaging) -> list[PackagePlan]:
        """The packages of the model. Raises ExportError where its chunks are not possible."""
        architecture, choices, sizes = self.architecture, self.choices, self.layer_bytes()
        table = architecture.head or architecture.embedding
        row = WeightSpec("table", (1, table.shape[1]), "head", ())
        row_bytes = sum(t.nbytes for t in self.specs("table", row, choices[table.name]))
        most = self.most_layers(sizes)
        alone = [i for i, layer in enumerate(architecture.layers) if layer.kind in self.mixtures]
        packages = cut(architecture, sizes, row_bytes, packaging, self.LIMIT_BYTES, most, alone)
        return [package for package in packages if package.kind != "head" or not self.HEAD_IN_RUNS]

    def layer_bytes(self) -> list[int]:
        """The stored bytes of each layer in packages."""
        sizes = [0] * len(self.architecture.layers)
        for unit, _, spec in self.units():
            if unit.startswith("layers.") and not self.in_flash(unit):
                matrix = f"{unit}.{spec.name}"
                stored = self.specs(matrix, spec, self.choices.get(matrix, Choice(16, 0)))
                sizes[int(unit.split(".")[1])] += sum(t.nbytes for t in stored)
        return sizes

    def most_layers(self, sizes: Sequence[int]) -> int:
        """How many layers a package has at most where nothing is asked for; `sizes` are the bytes of each."""
        return MOST_LAYERS

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        return layout.specs(name, spec, choice, self.precision)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        return layout.arrays(name, role, q, self.precision)

    def floats(self, name: str, values: np.ndarray) -> np.ndarray:
        return floats.numbers(name, values, self.precision)

    def copied_bytes(self) -> int:
        """A tied table is in the head's packages as well, where there are any."""
        if self.architecture.head is not None or self.HEAD_IN_RUNS:
            return 0
        table = WeightSpec("table", self.architecture.embedding.shape, "head", ())
        return sum(t.nbytes for t in self.specs("table", table, self.choices["embedding"]))

    def stores_like(self, other: Format) -> bool:
        same = isinstance(other, PackagedFormat) and other.precision == self.precision
        return same and other.choices == self.choices

    def sharing(self, other: Format) -> Format:
        if not isinstance(other, PackagedFormat):
            return self
        shared = copy.copy(self)
        shared.programs = other.programs
        return shared

    def open_store(self, weights: Path, runs: Sequence[RunPlan], *, resume: bool, tag: str) -> PackageStore:
        tied = self.architecture.head is None
        return PackageStore(weights, runs, self, tied=tied, resume=resume, tag=tag)

    def planned_bytes(self, runs: Sequence[RunPlan], tag: str) -> int:
        weights = sum(tensor.nbytes for run in runs for tensor in run.spec.tensors)
        return weights + self.copied_bytes() + RUN_ALIGNMENT * len(runs)

    # --- packages ---------------------------------------------------------------------------------------

    def content(self, package: PackagePlan) -> Content:
        """The files and functions of a package, without its weights."""
        key = content_key(package, self.programs.kinds)
        if key not in self._contents:
            self._contents[key] = build(
                self.graph(package), self.programs, package, self.lengths, self.precision
            )
        return self._contents[key]

    def template(self, package: PackagePlan) -> Template:
        """See `PackageSource`."""
        return self.content(package).template

    def head_array(self, suffix: str, rows: np.ndarray) -> np.ndarray:
        """See `PackageSource`."""
        return layout.head_array(suffix, rows, self.precision)

    def layer_kinds(self) -> list[str]:
        return self.programs.kinds

    def layer_programs(self) -> int:
        return len(self.layer_kinds())

    def layer_facts(self) -> list[dict[str, Any]]:
        found = layer_places(self.packages)
        for i, layer in enumerate(self.architecture.layers):
            if layer.kind in self.mixtures:
                found[i]["mixture"] = {"program": layer.kind, "run": f"layers.{i}.mixture"}
        return found

    def pass_lengths(self) -> Sequence[tuple[int, int]]:
        return [(each.t, each.p) for each in self.lengths]

    def minimum_os(self) -> Mapping[str, str]:
        return {"ios": self._ios, "macos": self.row.versions[self._ios]} if self._ios else {}

    def facts(self) -> dict[str, Any]:
        mixtures = {kind: lower(cut.mixture) for kind, cut in self.mixtures.items()}
        return {
            "minimum_os": self.minimum_os(),
            "precision": self.precision,
            **({"activations": self.activations} if self.activations else {}),
            **({"mixtures": mixtures} if mixtures else {}),
        }

    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """The entries of the packages, which are whole by now."""
        entries: dict[str, Any] = {}
        for package in self.packages:
            progress(package.name)
            content = self.content(package)
            described = {name: plan.as_dict(content.signatures[name]) for name, plan in content.plans.items()}
            entries[package.name] = manifest_entry(package, self.SUFFIX, folder, described)
        return WrittenPrograms(entries, tuple(name for entry in entries.values() for name in entry["files"]))


def _is_layer(unit: str) -> bool:
    """Whether a unit is a layer itself, and not one of its experts."""
    return unit.startswith("layers.") and unit.count(".") == 1


def _check_eight_bits(choices: Mapping[str, Choice]) -> None:
    """That activations can be int8: they are for hardware that multiplies 8 bits with 8 bits, off which
    weights of 4 bits keep a layer. Single matrices may stay float.
    """
    bits = {name: choice.bits for name, choice in choices.items()}
    small = next((name for name in bits if bits[name] < 8), None)
    wrong = small if 8 in bits.values() else next(iter(bits))
    if wrong is not None:
        raise QuantizationError(
            f"int8 activations are for weights of 8 bits, {wrong} has {bits[wrong]}; export with --quant int8"
        )
