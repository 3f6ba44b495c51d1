"""Snapdragon's chips by their names in short, as programs are compiled for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Soc:
    """A chip: its number among `soc_model`s of QNN, and what it is sold as."""

    model: int
    title: str


#: Qualcomm's library calls these numbers by these names (`tests/support/qnn_chips.py`), and a binary says its
#: number. No device has run one.
SOCS: Mapping[str, Soc] = {
    "sm8450": Soc(36, "Snapdragon 8 Gen 1"),
    "sm8475": Soc(42, "Snapdragon 8+ Gen 1"),
    "sm8550": Soc(43, "Snapdragon 8 Gen 2"),
    "sm8650": Soc(57, "Snapdragon 8 Gen 3"),
    "sm8750": Soc(69, "Snapdragon 8 Elite"),
    "sm8850": Soc(87, "Snapdragon 8 Elite Gen 5"),
}
#: Chips that the library knows too, whose NPU lacks floats: its compiler refuses the norms.
WITHOUT_FLOATS = ("sm7550", "sm7675", "sm8635", "sm8735")
#: The chip whose NPU is emulated where there is none. Without one the emulation's floats are those of an NPU
#: that lacks most of the operators.
EMULATED = "sm8650"
