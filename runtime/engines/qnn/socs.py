"""Snapdragon's chips by their names in short, as programs are compiled for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Soc:
    """A chip: its number among `soc_model`s of QNN, and what it is sold as."""

    model: int
    title: str


SOCS: Mapping[str, Soc] = {
    "sm8550": Soc(43, "Snapdragon 8 Gen 2"),
    "sm8650": Soc(57, "Snapdragon 8 Gen 3"),
    "sm8750": Soc(69, "Snapdragon 8 Elite"),
}
#: The chip whose NPU is emulated where there is none. Without one the emulation's floats are those of an NPU
#: that lacks most of the operators.
EMULATED = "sm8650"
