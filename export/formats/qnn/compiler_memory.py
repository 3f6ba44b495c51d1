"""An estimate of what Qualcomm's compiler takes of memory, which is none of its promises.

It was measured with onnxruntime-qnn 2.7.0 (`tools/bench/RESULTS.md`): the peak of the process that compiles a
package grows with its layers times its functions, since each function is held as a graph of its own until all
have been compiled. Of each layer in each function it holds the weights several times, and arrays of what is
computed: the products, by positions, and attention's scores, by positions squared. The estimate is above all
that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.export.programs import Lengths

#: Bytes of the process before it compiles anything.
_BASE = 400_000_000
#: For each stored byte of weights, each number of a product, and each score of a head.
_OF_WEIGHT, _OF_PRODUCT, _OF_SCORE = 6, 8, 24
#: The share of the machine's memory that a package may take: the export itself takes some too.
SHARE = 0.75


@dataclass(frozen=True)
class LayerSize:
    """A layer: bytes of its stored weights, numbers that its products make of a position, and heads."""

    nbytes: int
    products: int
    heads: int


def compile_bytes(layers: Sequence[LayerSize], lengths: Sequence[Lengths]) -> int:
    """Bytes to compile layers as one package with functions of these lengths."""
    positions = sum(each.t for each in lengths)
    scores = sum(each.t * (each.t + each.p) for each in lengths)
    own = (
        _OF_WEIGHT * layer.nbytes * len(lengths)
        + _OF_PRODUCT * layer.products * positions
        + _OF_SCORE * layer.heads * scores
        for layer in layers
    )
    return _BASE + sum(own)


def most_layers(
    layers: Sequence[LayerSize], lengths: Sequence[Lengths], memory_bytes: int, at_most: int
) -> int:
    """The most layers of a package whose packages can all be compiled in this memory; at least 1."""

    def fits(count: int) -> bool:
        packages = (layers[i : i + count] for i in range(0, len(layers), count))
        return all(compile_bytes(own, lengths) <= SHARE * memory_bytes for own in packages)

    return next((count for count in range(at_most, 1, -1) if fits(count)), 1)
