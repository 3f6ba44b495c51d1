"""What every engine implements: the programs of a bundle, run on arrays; all else (streaming, prefix, head,
sampling) is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.head import TilePart
from edgekit.runtime.sampling.types import Floats

Arrays = Mapping[str, np.ndarray]
#: Experts as they become available, in any order: (index, tensors of its run by short name).
Experts = Iterable[tuple[int, Arrays]]


class Engine(Protocol):
    """Weights come as the stored tensors of a run, under their names within it, or as the opened package
    that holds them (`engines.packages.OpenedPackage`); arrays are float32 unless stated.

    Weights are valid during the call only: they lie in the read-ahead ring.
    """

    name: str

    def layers(
        self, program: str, inputs: Sequence[Arrays], weights: Any, experts: Experts
    ) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        """The consecutive layers of one run: y [1, T, H] of the last, and k, v [1, KV, T, D] of these
        positions for each. `inputs` holds those of each layer, as in `export.programs.layer_program`; only
        the first has `x`.
        """

    def self_condition(self, embedded: Floats, soft: Floats, weights: Any) -> Floats:
        """The decoder's input [1, T, H]; both arguments carry the embedding scale."""

    def final(self, x: Floats, weights: Any) -> Floats:
        """The last norm: [1, T, H]."""

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Any
    ) -> TilePart:
        """One tile of the vocabulary head for rows x [R, H]; `table` holds codes (or weight) and scales of
        the tile's rows.
        """

    def head_logits(self, x: Floats, temperature: float, table: Any) -> Floats:
        """z [R, V'] of one tile."""

    def scratch_bytes(self) -> int:
        """Memory the engine allocates for itself at most, besides activations: unpacked weights, for
        instance.
        """

    def statistics(self) -> dict[str, Any]:
        """Counters for the `done` event."""


class OneLayerEngine:
    """For engines whose runs hold one layer each: they have `layer`."""

    def layer(
        self, program: str, inputs: Arrays, weights: Arrays, experts: Experts
    ) -> tuple[Floats, Floats, Floats]:
        """One layer: y [1, T, H], and k, v [1, KV, T, D] of these positions."""
        raise NotImplementedError

    def layers(
        self, program: str, inputs: Sequence[Arrays], weights: Arrays, experts: Experts
    ) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        (only,) = inputs
        y, k, v = self.layer(program, only, weights, experts)
        _, heads, _, width = only["prefix_k"].shape
        kept = (1, heads, only["x"].shape[1], width)
        for name, array, shape in (("y", y, only["x"].shape), ("k", k, kept), ("v", v, kept)):
            if array.shape != shape:
                raise EngineFailed(
                    f"program {program} gives {name} of shape {list(array.shape)}, not {list(shape)}; "
                    "export the bundle again"
                )
        return y, [(k, v)]


class OpenModel(Protocol):
    """A package as its system's runtime has it open. Used by one thread at a time."""

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        """Run a function on arrays by name, of the declared types and shapes. Raises EngineFailed."""

    def close(self) -> None:
        """Give its memory back."""


class Executor(Protocol):
    """What runs packages: the system's own runtime, or one that stands in for it."""

    name: str

    def open(self, path: Path, functions: Sequence[str]) -> OpenModel:
        """Open a package; `functions` are those that will most likely be called. May be called by another
        thread than the calls. Raises EngineFailed.
        """
