"""What formats that keep weights in packages do alike: `edgekit.export.formats` asks it of `Packaged`, and
of `PackagedBundle` once there is a model. A `System` says what is a format's own.

A bundle holds `packages/NAME<suffix>`, see `packaging`, and a flash file with the embedding table alone,
whose rows are looked up outside of the packages. `programs` in the manifest:

    {"format", "layout", "minimum_os": {"ios", "macos"}, "precision", "activations": "float" or "int8",
     "packages": {NAME: {"path", "bytes", "files", "parts", "functions", and of the head "start", "rows"}}}
    function = {"kind", "t", "p", "inputs": [feature...], "outputs": [feature...]}
    feature = {"name", "dtype", "shape", "role"}

Roles of inputs: `x`; of a chunk `prefix_k.J`, `prefix_v.J` [1, KV, P, D] of its layer J, `cos.ROPE`,
`sin.ROPE` [t, R], `mask.full` or `mask.WINDOW` [t, P + t], `phase` [1]; `embedded`, `soft`; `temperature`
[1], `noise` [t, rows]. Of outputs: `y`, `k.J`, `v.J`, and those of `programs.HEADS`. Masks are additive,
-3e4 where nothing is to be seen: the largest round number that float16 has twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.formats import floats, native_layout, package_layout
from edgekit.export.formats.floats import PRECISIONS
from edgekit.export.formats.package_content import Content, build
from edgekit.export.formats.package_graph import PackageGraph
from edgekit.export.formats.package_writer import PackageWriter
from edgekit.export.formats.packaging import (
    Package,
    Packaging,
    StaticPrograms,
    choose_lengths,
    content_key,
    cut,
    layer_places,
    manifest_entry,
)
from edgekit.export.formats.stamp import Template
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.programs import Lengths
from edgekit.export.quantize import Choice, Quantized, Scheme, check_experts_alike
from edgekit.export.units import RunPlan
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.names import unknown
from edgekit.runtime.packages import ACTIVATIONS


@dataclass(frozen=True)
class System:
    """What is particular to a format. `versions` of iOS that may be asked for, the first by default, with the
    macOS of the same year; `limit_bytes` of a package.
    """

    name: str
    layout: str
    suffix: str
    versions: Mapping[str, str]
    limit_bytes: int
    graph: Callable[[bool], PackageGraph]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def variant(
        self, precision: str | None, packaging: Packaging | None, activations: str | None = None
    ) -> Packaged:
        """The format in a precision (None: float16), cut as `packaging` says, with activations (None: float)
        as `runtime.packages` knows them.

        Raises:
            ExportError: an unknown precision or activations, or a version of iOS that the format is not for.
        """
        if precision is not None and precision not in PRECISIONS:
            raise ExportError(unknown("precision", precision, PRECISIONS, of=f"format {self.name}"))
        if activations is not None and activations not in ACTIVATIONS:
            raise ExportError(unknown("activations", activations, ACTIVATIONS, of=f"format {self.name}"))
        packaging = packaging or Packaging()
        if packaging.minimum_os is not None and packaging.minimum_os not in self.versions:
            raise ExportError(
                f"format {self.name} is not for iOS {packaging.minimum_os}; "
                f"it is for {' and '.join(self.versions)}"
            )
        return Packaged(self, precision or next(iter(PRECISIONS)), packaging, activations or ACTIVATIONS[0])


@dataclass(frozen=True)
class Packaged:
    """What `edgekit.export.formats` asks of a format, for one precision and one way of cutting."""

    system: System
    precision: str
    packaging: Packaging
    activations: str

    @property
    def NAME(self) -> str:
        return self.system.name

    def storable(
        self, architecture: Architecture, scheme: Scheme, choices: Mapping[str, Choice]
    ) -> dict[str, Choice]:
        """The choices, all of which the layout can store.

        Raises:
            QuantizationError: the experts of a layer differ in bits, while they are stored as one; or
                activations are to be int8 for matrices that have not 8 bits.
        """
        check_experts_alike(architecture, choices, self.system.name)
        if self.activations == "int8":
            _check_eight_bits(choices)
        return dict(choices)

    def fitted(
        self, architecture: Architecture, choices: Mapping[str, Choice], longest: int | None
    ) -> PackagedBundle:
        """The format for one model, which was made for `longest` positions.

        Raises:
            ExportError: its lengths or chunks are not possible.
        """
        lengths = choose_lengths(architecture, longest, self.packaging)
        specs = functools.partial(package_layout.specs, precision=self.precision)
        sizes = [0] * len(architecture.layers)
        for unit, spec in architecture.weights():
            if unit.startswith("layers."):
                matrix = f"{unit}.{spec.name}"
                stored = specs(matrix, spec, choices.get(matrix, Choice(16, 0)))
                sizes[int(unit.split(".")[1])] += sum(t.nbytes for t in stored)
        table = architecture.head or architecture.embedding
        row = WeightSpec("table", (1, table.shape[1]), "head", ())
        row_bytes = sum(t.nbytes for t in specs("table", row, choices[table.name]))
        packages = cut(architecture, sizes, row_bytes, self.packaging, self.system.limit_bytes)
        programs = StaticPrograms(architecture, choices, native_layout.placeholders)
        return PackagedBundle(
            self.system, self.precision, self.packaging, self.activations, lengths, packages, programs
        )


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


@dataclass(frozen=True)
class PackagedBundle:
    """What `edgekit.export.formats` asks of a format, for one model."""

    system: System
    precision: str
    packaging: Packaging
    activations: str
    lengths: Sequence[Lengths]
    packages: Sequence[Package]
    programs: StaticPrograms
    _contents: dict[tuple[Any, ...], Content] = field(default_factory=dict)
    SECTION = "packages"

    @property
    def NAME(self) -> str:
        return self.system.name

    @property
    def LAYOUT(self) -> str:
        return self.system.layout

    @property
    def suffix(self) -> str:
        """How the names of packages end."""
        return self.system.suffix

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        """The stored tensors of a weight, under the full `name`."""
        return package_layout.specs(name, spec, choice, self.precision)

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        """The stored arrays of a quantized weight, matching `specs`."""
        return package_layout.arrays(name, role, q, self.precision)

    def floats(self, name: str, values: np.ndarray) -> np.ndarray:
        """The stored array of a float weight."""
        return floats.numbers(name, values, self.precision)

    def layer_kinds(self, architecture: Architecture, choices: Mapping[str, Choice]) -> list[str]:
        """The kind of every layer."""
        return self.programs.kinds

    def layer_facts(self) -> list[dict[str, Any]]:
        """What the manifest says of every layer besides."""
        return layer_places(self.packages)

    def facts(self) -> dict[str, Any]:
        """What the manifest says about the programs besides the packages."""
        ios = self.packaging.minimum_os or next(iter(self.system.versions))
        minimum = {"ios": ios, "macos": self.system.versions[ios]}
        own = {"minimum_os": minimum, "precision": self.precision, "activations": self.activations}
        return {**own, **self.system.facts}

    def copied_bytes(self) -> int:
        """A tied table is in the head's packages besides."""
        architecture = self.programs.architecture
        if architecture.head is not None:
            return 0
        table = WeightSpec("table", architecture.embedding.shape, "head", ())
        return sum(t.nbytes for t in self.specs("table", table, self.programs.choices["embedding"]))

    def stores_like(self, other: Any) -> bool:
        """Whether the packages of another format hold the same arrays."""
        same = isinstance(other, PackagedBundle) and other.precision == self.precision
        return same and other.programs.choices == self.programs.choices

    def sharing(self, other: PackagedBundle) -> PackagedBundle:
        """This format with the programs of one that stores alike, so that they are made once."""
        return replace(self, programs=other.programs)

    def open_store(self, weights: Path, runs: Sequence[RunPlan], *, resume: bool, tag: str) -> PackageWriter:
        """Where the runs go."""
        tied = self.programs.architecture.head is None
        return PackageWriter(weights, runs, self, tied=tied, resume=resume, tag=tag)

    def content(self, package: Package) -> Content:
        """The files and functions of a package, without its weights."""
        key = content_key(package, self.programs.kinds)
        if key not in self._contents:
            graph = self.system.graph(self.activations == "int8")
            self._contents[key] = build(graph, self.programs, package, self.lengths, self.precision)
        return self._contents[key]

    def template(self, package: Package) -> Template:
        """See `PackageSource`."""
        return self.content(package).template

    def head_array(self, suffix: str, rows: np.ndarray) -> np.ndarray:
        """See `PackageSource`."""
        return package_layout.head_array(suffix, rows, self.precision)

    def write_programs(
        self,
        folder: Path,
        architecture: Architecture,
        choices: Mapping[str, Choice],
        progress: Callable[[str], None],
    ) -> dict[str, Any]:
        """The entries of the packages, which are whole by now."""
        entries = {}
        for package in self.packages:
            progress(package.name)
            content = self.content(package)
            described = {name: plan.as_dict(content.signatures[name]) for name, plan in content.plans.items()}
            entries[package.name] = manifest_entry(package, self.suffix, folder, described)
        return entries
