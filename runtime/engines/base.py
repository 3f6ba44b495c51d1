"""What every engine implements: the programs of a bundle, run on arrays; all else (streaming, prefix, head,
sampling) is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from edgekit.runtime.head import TilePart
from edgekit.runtime.sampling.types import Floats

Arrays = Mapping[str, np.ndarray]
#: Experts as they become available, in any order: (index, tensors of its run by short name).
Experts = Iterable[tuple[int, Arrays]]


class Engine(Protocol):
    """Weights come as the stored tensors of a run, under their names within it; arrays are float32 unless
    stated.

    Weights are valid during the call only: they lie in the read-ahead ring.
    """

    name: str

    def layer(
        self, program: str, inputs: Arrays, weights: Arrays, experts: Experts
    ) -> tuple[Floats, Floats, Floats]:
        """One layer: y [1, T, H], and k, v [1, KV, T, D] of these positions. Inputs as in
        `export.programs.layer_program`.
        """

    def self_condition(self, embedded: Floats, soft: Floats, weights: Arrays) -> Floats:
        """The decoder's input [1, T, H]; both arguments carry the embedding scale."""

    def final(self, x: Floats, weights: Arrays) -> Floats:
        """The last norm: [1, T, H]."""

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Arrays
    ) -> TilePart:
        """One tile of the vocabulary head for rows x [R, H]; `table` holds codes (or weight) and scales of
        the tile's rows.
        """

    def head_logits(self, x: Floats, temperature: float, table: Arrays) -> Floats:
        """z [R, V'] of one tile."""

    def scratch_bytes(self) -> int:
        """Memory the engine allocates for itself at most, besides activations: unpacked weights, for
        instance.
        """

    def statistics(self) -> dict[str, Any]:
        """Counters for the `done` event."""
