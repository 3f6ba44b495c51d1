"""The exported programs that packages are built from: of fixed lengths, each made once for a model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.mixture_cut import dense_part
from edgekit.export.models.base import Architecture
from edgekit.export.programs import (
    Lengths,
    Placeholders,
    Program,
    final_program,
    head_programs,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice


@dataclass(frozen=True)
class StaticPrograms:
    """Exported programs of a model for fixed lengths, each made once. Those of layers with experts are their
    dense parts where `dense` is set.
    """

    architecture: Architecture
    choices: Mapping[str, Choice]
    placeholders: Placeholders
    dense: bool = False
    _made: dict[tuple[Any, ...], Program] = field(default_factory=dict)

    @functools.cached_property
    def kinds(self) -> list[str]:
        """The program name of every layer."""
        return numbered_kinds(
            self.architecture,
            self.choices,
            lambda _, own: tuple((c.bits, c.group_size) for c in own.values()),
        )

    def layer(self, index: int, lengths: Lengths) -> Program:
        """The program of a layer; see `programs.layer_program` and `mixture_cut.dense_part`."""
        layer, kind = self.architecture.layers[index], self.kinds[index]
        own = Lengths(lengths.t, lengths.prefix(layer.window))
        key = ("layers", kind, own)
        if key not in self._made:
            choices = layer_choices(layer, index, self.choices)
            whole = layer_program(kind, self.architecture, layer, choices, self.placeholders, own)
            self._made[key] = dense_part(whole) if self.dense and layer.experts else whole
        return self._made[key]

    def final(self, lengths: Lengths) -> Program:
        """The last norm."""
        return final_program(self.architecture, lengths)

    def self_conditioning(self, lengths: Lengths) -> Program:
        """Self-conditioning."""
        specs = [s for s in self.architecture.self_conditioning_weights if s.role != "float"]
        own = {s.name: self.choices[f"self_conditioning.{s.name}"] for s in specs}
        return self_conditioning_program(self.architecture, own, self.placeholders, lengths)

    def head(self, variant: str, lengths: Lengths, rows: int) -> Program:
        """A variant of the head over a tile of `rows`."""
        if ("head", variant, lengths, rows) not in self._made:
            choice = self.choices["head" if self.architecture.head is not None else "embedding"]
            for program in head_programs(self.architecture, choice, self.placeholders, lengths, rows):
                self._made[("head", program.name, lengths, rows)] = program
        return self._made[("head", variant, lengths, rows)]
