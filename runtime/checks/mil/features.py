"""Inputs, outputs and states as a package describes them: element type and the shapes that are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit.runtime.checks.mil.errors import InvalidInput, MalformedPackage, UnsupportedPackage
from edgekit.runtime.checks.mil.types import BY_NAME, Array, DType

#: ArrayFeatureType.ArrayDataType: 0x10000 for floats, 0x20000 for integers, plus the bits.
_ARRAY_TYPES: Mapping[int, DType] = {
    0x10010: BY_NAME["fp16"],
    0x10020: BY_NAME["fp32"],
    0x10040: BY_NAME["fp64"],
    0x20008: BY_NAME["int8"],
    0x20020: BY_NAME["int32"],
}


@dataclass(frozen=True)
class Feature:
    """An array that goes in or out.

    `shape` is the fixed or default one; () where the package leaves it open. `choices` are the enumerated
    shapes, `ranges` the inclusive limits per dimension (no upper limit: None); at most one of the two is
    there. `default` is the value of an optional input that is not given.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()
    default: float | None = None

    def allows(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape may be passed."""
        if self.choices:
            return tuple(shape) in self.choices
        if self.ranges:
            return len(shape) == len(self.ranges) and all(
                low <= size and (high is None or size <= high)
                for size, (low, high) in zip(shape, self.ranges, strict=True)
            )
        return tuple(shape) == self.shape

    def examples(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the package itself writes down."""
        return (self.shape, *self.choices)

    def shapes_text(self) -> str:
        """The allowed shapes in a few words."""
        if self.choices:
            return "one of " + ", ".join(str(list(choice)) for choice in self.choices)
        if self.ranges:
            limits = (
                str(low) if low == high else f"{low}..{'' if high is None else high}"
                for low, high in self.ranges
            )
            return f"[{', '.join(limits)}]"
        return str(list(self.shape))

    def checked(self, array: Any, where: str) -> Array:
        """The array as an input of this type: floats are rounded to it, integers must fit it.

        Raises:
            InvalidInput: another kind of numbers, numbers that do not fit, or a shape that is not allowed.
        """
        array = np.asarray(array)
        if not self.allows(array.shape):
            raise InvalidInput(f"{where} has shape {list(array.shape)}; expected {self.shapes_text()}")
        wanted = self.dtype.numpy
        if array.dtype == wanted:
            return array
        if wanted.kind == "f" and array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                return array.astype(wanted)
        if wanted.kind in "iu" and array.dtype.kind in "iub":
            converted = array.astype(wanted)
            if np.array_equal(converted, array):
                return converted
            raise InvalidInput(f"{where} has values that do not fit {self.dtype}")
        raise InvalidInput(f"{where} is {array.dtype}; expected {self.dtype}")


def features(descriptions: Iterable[Any], where: str) -> dict[str, Feature]:
    """The described features by name, in order.

    Raises:
        MalformedPackage: one is described twice, or inconsistently.
        UnsupportedPackage: one is not an array: an image, a dictionary, a sequence.
    """
    result: dict[str, Feature] = {}
    for description in descriptions:
        at = f"{where} '{description.name}'"
        if description.name in result:
            raise MalformedPackage(f"{at} is described twice")
        kind = description.type.WhichOneof("Type")
        if kind == "multiArrayType":
            array = description.type.multiArrayType
        elif kind == "stateType" and description.type.stateType.WhichOneof("Type") == "arrayType":
            array = description.type.stateType.arrayType
        else:
            raise UnsupportedPackage(
                f"{at} is a {kind or 'feature without a type'}; only arrays are supported"
            )
        optional = bool(description.type.isOptional)
        result[description.name] = _array_feature(description.name, array, optional, at)
    return result


def _array_feature(name: str, array: Any, optional: bool, where: str) -> Feature:
    dtype = _ARRAY_TYPES.get(array.dataType)
    if dtype is None:
        raise MalformedPackage(f"{where} has the unknown array type {array.dataType}")
    flexibility = array.WhichOneof("ShapeFlexibility")
    choices: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()
    if flexibility == "enumeratedShapes":
        choices = tuple(tuple(choice.shape) for choice in array.enumeratedShapes.shapes)
        if not choices:
            raise MalformedPackage(f"{where} has an empty list of shapes")
    elif flexibility == "shapeRange":
        ranges = tuple(
            (r.lowerBound, None if r.upperBound < 0 else r.upperBound) for r in array.shapeRange.sizeRanges
        )
    shape = tuple(array.shape) or (choices[0] if choices else tuple(low for low, _ in ranges))
    default = None
    if optional:
        field = array.WhichOneof("defaultOptionalValue")
        default = float(getattr(array, field)) if field else 0.0
    feature = Feature(name, dtype, shape, choices, ranges, default)
    if (choices or ranges) and not feature.allows(shape):
        raise MalformedPackage(f"{where} has shape {list(shape)}, which is not {feature.shapes_text()}")
    return feature
