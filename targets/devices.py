"""What is known of devices: `devices.toml`, each figure with where it is from."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from edgekit.flashload.names import nearest, shown
from edgekit.targets import UnknownTarget

#: How far a figure goes, see the head of the file; "given" is by whoever asks for a plan.
Flag = Literal["given", "measured", "claimed", "spec", "estimate"]
FLAGS = get_args(Flag)


@dataclass(frozen=True)
class Figure:
    """A number with its source; `low` and `high` are what others give."""

    value: float
    flag: Flag
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Device:
    """A device; `target` is what to export for, and `figures` are by name, of those that are known."""

    id: str
    name: str
    os: str
    soc: str
    memory_kind: str
    target: str
    figures: Mapping[str, Figure]
    notes: str = ""


_WORDS = ("id", "name", "os", "soc", "memory_kind", "target", "notes")


@functools.cache
def devices() -> dict[str, Device]:
    """All of them by id, in the order of the file."""
    text = (importlib.resources.files("edgekit.targets") / "devices.toml").read_text(encoding="utf-8")
    return {device.id: device for device in map(_device, tomllib.loads(text)["device"])}


def _device(given: Mapping[str, Any]) -> Device:
    words = {name: given[name] for name in _WORDS if name in given}
    figures = {name: Figure(**value) for name, value in given.items() if isinstance(value, dict)}
    return Device(**words, figures=figures)


def device(name: str) -> Device:
    """The device of that id. Raises UnknownTarget."""
    found = devices().get(name)
    if found is None:
        meant = nearest(name, devices())
        question = f"did you mean {meant}? " if meant else ""
        raise UnknownTarget(
            f"unknown device {shown(name)}; {question}edgekit plan --list shows those that are known"
        )
    return found
