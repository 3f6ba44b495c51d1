"""Weights stored in the packages of a Core ML bundle, read back through their programs: what a device would
use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.audit import StoredMatrix, packaged_matrices, packaged_vectors

from edgekit.export.errors import ExportError
from edgekit.export.formats.packages.layout import FLIP
from edgekit.runtime.checks.mil import Constant, Package

_EXPERTS = re.compile(r"w_(\d+)_experts_(\d+)_(\d+)_(\w+)")


@dataclass(frozen=True)
class Weight:
    """A matrix or stack of a program: a float constant, or codes with scales."""

    data: Constant
    scales: Constant | None

    @property
    def bits(self) -> int:
        return 16 if self.scales is None else self.data.dtype.bits

    @property
    def places(self) -> tuple[int | None, ...]:
        """Offsets in the weight file: equal ones are equal bytes."""
        constants = (self.data,) if self.scales is None else (self.data, self.scales)
        return tuple(None if c.record is None else c.record.offset for c in constants)


def weights(package: Package) -> dict[str, Weight]:
    """The matrices and stacks of a package by their names in it.

    Raises:
        ExportError: functions differ in the weights that they use. MilError: the package is damaged.
    """
    found: dict[str, Weight] = {}
    for name in package.functions:
        function = package.function(name)
        own = {
            output.removesuffix("_weight"): Weight(constant, None)
            for output, constant in function.constants.items()
            if output.startswith("w_") and len(constant.shape) > 1
        }
        for operation in function.operations:
            if operation.is_constexpr:
                data, scale = (operation.inputs[key][0] for key in ("data", "scale"))
                assert isinstance(data, Constant) and isinstance(scale, Constant)
                own[operation.outputs[0].name] = Weight(data, scale)
        for weight, value in own.items():
            if found.setdefault(weight, value).places != value.places:
                raise ExportError(f"{package.path}: function {name} has a {weight} of its own")
    return found


def stored_matrices(bundle: Path) -> Iterator[StoredMatrix]:
    """Every matrix of a Core ML bundle; see `audit.packaged_matrices`."""
    return packaged_matrices(bundle, _matrices)


def stored_vectors(bundle: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every float vector of a Core ML bundle; see `audit.packaged_vectors`."""
    return packaged_vectors(bundle, _vectors)


def _vectors(path: Path) -> dict[str, np.ndarray]:
    """The float vectors of a package by name."""
    package, found = Package(path), dict[str, Constant]()
    for name in package.functions:
        for output, constant in package.function(name).constants.items():
            if not output.startswith("w_") or len(constant.shape) > 1:
                continue
            if found.setdefault(output, constant).record != constant.record:
                raise ExportError(f"{path}: function {name} has a {output} of its own")
    return {output.removeprefix("w_"): constant.all() for output, constant in found.items()}


@dataclass(frozen=True)
class _Matrix:
    """A weight of a program, or one of its stack, as an audit reads it."""

    weight: Weight
    index: int | None

    @property
    def bits(self) -> int:
        return self.weight.bits

    def read(self) -> tuple[np.ndarray, np.ndarray | None]:
        data = self._values(self.weight.data)
        if self.weight.scales is None:
            return data, None
        codes: np.ndarray = data.view(np.uint8)
        if self.bits == 4:
            codes = (codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)
        return codes ^ np.uint8(FLIP[self.bits]), self._values(self.weight.scales)

    def _values(self, constant: Constant) -> np.ndarray:
        values: np.ndarray = (
            constant.all() if self.index is None else constant.rows(self.index, self.index + 1)[0]
        )
        return values


def _matrices(path: Path) -> dict[str, _Matrix]:
    """The matrices of a package by name."""
    found = {}
    for name, weight in weights(Package(path)).items():
        if match := _EXPERTS.fullmatch(name):
            slot, first, last, own = match.groups()
            for i, expert in enumerate(range(int(first), int(last) + 1)):
                found[f"{slot}_experts_{expert}_{own}"] = _Matrix(weight, i)
        else:
            found[name.removeprefix("w_")] = _Matrix(weight, None)
    return found
