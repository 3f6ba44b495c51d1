"""Layers that are one program: of one kind, with their matrices stored alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from edgekit.export.models.base import Architecture, LayerSpec
from edgekit.export.quantize import Choice


def layer_choices(layer: LayerSpec, index: int, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """The choices of a layer's matrices by their names in it, those of experts under `experts.`."""
    own = {s.name: choices[f"layers.{index}.{s.name}"] for s in layer.weights if s.role != "float"}
    if layer.experts:
        own |= {"experts." + s.name: choices[f"layers.{index}.experts.0.{s.name}"] for s in layer.experts[0]}
    return own


def numbered_kinds(
    architecture: Architecture,
    choices: Mapping[str, Choice],
    form: Callable[[LayerSpec, Mapping[str, Choice]], Hashable],
) -> list[str]:
    """The program name of every layer: its kind, with a number where layers of a kind differ in `form`, which
    is what a format makes of a layer with its `layer_choices`.
    """
    known: dict[tuple[str, Hashable], str] = {}
    names = []
    for i, layer in enumerate(architecture.layers):
        key = (layer.kind, form(layer, layer_choices(layer, i, choices)))
        if key not in known:
            same = sum(kind == layer.kind for kind, _ in known)
            known[key] = layer.kind if same == 0 else f"{layer.kind}_{same + 1}"
        names.append(known[key])
    return names
