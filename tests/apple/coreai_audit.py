"""Weights stored in the assets of a Core AI bundle, read back through their programs: what a device would
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
from edgekit.export.formats.coreai import bytecode as coreai_bytecode
from edgekit.export.formats.coreai.graph import PROGRAM_FILE, NamedConstant, read_program
from edgekit.export.formats.packages.layout import FLIP

_EXPERTS = re.compile(r"(\d+\.experts)\.(\d+)-(\d+)\.(\w+)")
_BITS = {"si4": 4, "si8": 8}
_FLOATS = {"f16": np.float16, "f32": np.float32}


@dataclass(frozen=True)
class Constant:
    """A named constant of a program: its type in MLIR's words, its shape, where it lies in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Weight:
    """Matrix `index` of the `count` that lie below each other in a kernel [count * N, K, 1, 1]: a float
    constant, or codes with scales.
    """

    path: Path
    data: Constant
    scales: Constant | None
    count: int = 1
    index: int = 0

    @property
    def bits(self) -> int:
        return 16 if self.scales is None else _BITS[self.data.kind]

    def read(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Codes [N, K * bits / 8] as in `edgekit.export.ops`, or the float weight [N, K]; scales."""
        if self.scales is None:
            return self._values(self.data, np.dtype(_FLOATS[self.data.kind])), None
        scales = self._values(self.scales, np.dtype(_FLOATS[self.scales.kind]))
        return self._values(self.data, np.dtype(np.uint8)) ^ np.uint8(FLIP[self.bits]), scales

    def _values(self, constant: Constant, dtype: np.dtype) -> np.ndarray:
        nbytes = constant.nbytes // self.count
        with open(self.path, "rb") as file:
            file.seek(constant.offset + self.index * nbytes)
            data = np.frombuffer(file.read(nbytes), dtype)
        return data.reshape(constant.shape[0] // self.count, -1)


def weights(package: Path) -> dict[str, Weight]:
    """The matrices of an asset by name, with underscores for dots.

    Raises:
        ExportError: the file is damaged, or codes are used otherwise than in products with their scales.
    """
    path = package / PROGRAM_FILE
    places = coreai_bytecode.resources(path)
    written = read_program(path)

    def at(constant: NamedConstant) -> Constant:
        return Constant(constant.kind, constant.shape, *places[constant.name])

    found: dict[str, Weight] = {}
    for function, products in written.scaled.items():
        for codes, scales in products:
            if codes is None or scales is None or not codes.name.endswith(".codes"):
                raise ExportError(f"{path}: a weight of {function} is not made of codes and scales")
            _add(found, path, codes.name.removesuffix(".codes"), at(codes), at(scales))
        for constant in written.constants[function]:
            if constant.kind in _FLOATS and constant.name.endswith(".weight"):
                _add(found, path, constant.name.removesuffix(".weight"), at(constant), None)
    return found


def stored_matrices(bundle: Path) -> Iterator[StoredMatrix]:
    """Every matrix of a Core AI bundle; see `audit.packaged_matrices`."""
    return packaged_matrices(bundle, weights)


def stored_vectors(bundle: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every float vector of a Core AI bundle; see `audit.packaged_vectors`."""
    return packaged_vectors(bundle, _vectors)


def _vectors(package: Path) -> dict[str, np.ndarray]:
    """The float vectors of an asset by name, with underscores for dots."""
    path = package / PROGRAM_FILE
    places, found = coreai_bytecode.resources(path), {}
    named = {c for constants in read_program(path).constants.values() for c in constants}
    with open(path, "rb") as file:
        for constant in named:
            if constant.kind in _FLOATS and len(constant.shape) < 2:
                offset, nbytes = places[constant.name]
                file.seek(offset)
                values = np.frombuffer(file.read(nbytes), _FLOATS[constant.kind])
                found[constant.name.replace(".", "_")] = values.reshape(constant.shape)
    return found


def _add(found: dict[str, Weight], path: Path, name: str, data: Constant, scales: Constant | None) -> None:
    if len(data.shape) < 2:
        return
    match = _EXPERTS.fullmatch(name)
    own = {name: Weight(path, data, scales)}
    if match:
        numbers = range(int(match[2]), int(match[3]) + 1)
        own = {
            f"{match[1]}.{e}.{match[4]}": Weight(path, data, scales, len(numbers), i)
            for i, e in enumerate(numbers)
        }
    for key, weight in own.items():
        if found.setdefault(key.replace(".", "_"), weight) != weight:
            raise ExportError(f"{path}: functions differ in {key}")
