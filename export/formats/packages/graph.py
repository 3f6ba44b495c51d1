"""A package being built: functions over shared constants, from exported programs.

One class per format derives from `PackageGraph` and says what constants, weights and nodes are in its words,
or from `PackageBuilder`, where programs are translated as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from edgekit.export.formats.nodes import Arguments, NodeTranslator
from edgekit.export.formats.packages import layout
from edgekit.export.formats.packages.functions import Feature, Signature
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.stamp import Region, Template
from edgekit.export.models.base import WeightSpec
from edgekit.export.programs import Program
from edgekit.export.quantize import Choice

#: Experts that are computed as one product. It bounds what is unpacked and computed at a time, and is no
#: limit on how many there are. The Neural Engine takes no more than 16384 output channels; 8 experts of
#: DiffusionGemma have 11264.
EXPERTS_AT_ONCE = 8
#: Int8 activations: rows are divided by a factor that makes their largest value 127 steps. The step is a
#: power of two, so that float16 has its multiples exactly and every engine makes the same product of them; it
#: is this one so that the factor, 64 / 127 of the largest value, is within float16 whatever that value is.
STEP = 1 / 64
LARGEST = 127 * STEP
#: Rounds a value: returns the rounded value, as a product takes it, and the factors that it was divided by.
Rounding = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class ExpertStack:
    """Matrices [n, N, K] of up to `EXPERTS_AT_ONCE` consecutive experts each."""

    groups: tuple[Any, ...]


@dataclass(frozen=True)
class Stack:
    """A constant [n, ...] of the program that is stored in n parts, the tensors of `parts`; none where it
    stays zero.
    """

    constant: Constant
    parts: tuple[str, ...]

    def regions(self, file: str, offset: int) -> dict[str, Region]:
        """Regions of the parts in a file that has the constant at `offset`."""
        size = self.constant.nbytes // max(1, len(self.parts))
        return {part: Region(file, offset + i * size, size) for i, part in enumerate(self.parts)}


class PackageBuilder(ABC):
    """A package being built: functions over constants, which they share by name."""

    def __init__(self) -> None:
        self.functions: dict[str, Signature] = {}
        #: The constants of all functions, in the order of their first use.
        self.stored: dict[str, Stack] = {}
        # Of the function that is being built: constants and weights.
        self._known: dict[str, Any] = {}

    def constants(self, name: str, spec: WeightSpec, choice: Choice, precision: str) -> tuple[Constant, ...]:
        """The constants that a weight is in a package, in the order of the format's `specs`."""
        return layout.constants(name, spec, choice, precision)

    @abstractmethod
    def add(
        self,
        name: str,
        inputs: Sequence[Feature],
        body: Callable[[dict[str, Any]], Mapping[str, Any]],
    ) -> None:
        """Add a function. `body` maps values by role to results by role, building with `constant`,
        `weight` and `translate`.
        """

    @abstractmethod
    def finish(self) -> Template:
        """The files of the package and the regions of its tensors."""

    @abstractmethod
    def _constant(self, stored: Constant) -> Any:
        """A new constant in the function that is being built; what it holds does not matter."""

    def constant(self, stored: Constant, parts: Sequence[str] = (), tensor: bool = True) -> Any:
        """A constant in the function that is being built; `parts` are its tensors where it is a stack. One
        that is no tensor stays zero.
        """
        if stored.name not in self._known:
            tensors = tuple(parts or [stored.name] if tensor else ())
            self.stored.setdefault(stored.name, Stack(stored, tensors))
            self._known[stored.name] = self._constant(stored)
        return self._known[stored.name]

    @abstractmethod
    def weight(self, stored: Sequence[Constant], parts: Sequence[Sequence[str]] = ()) -> Any:
        """The value of a stored weight or stack in the function that is being built."""

    @abstractmethod
    def translate(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Callable[[], Any]],
    ) -> dict[str, Any]:
        """The nodes of an exported program in the function that is being built: outputs by name.

        `inputs` are values of its inputs; `weights` give those of its matrices and vectors (a value or an
        `ExpertStack`), by name.

        Raises:
            ExportError: a node has no form in the format.
        """

    def _begin(self) -> None:
        """Begin a function."""
        self._known = {}


class PackageGraph(PackageBuilder, NodeTranslator):
    """A package that is built node by node. With `int8_activations` what is multiplied with a matrix of 8
    bits is rounded to int8 first, by rows; see `edgekit.export.ops.round_rows`.
    """

    def __init__(self, int8_activations: bool = False) -> None:
        super().__init__()
        self.int8_activations = int8_activations
        # Of the function that is being built: weights of 8 bits, and what has been rounded.
        self._eight_bits: set[Any] = set()
        self._rounded: dict[Any, tuple[Any, Any]] = {}

    @abstractmethod
    def _round_rows(self, x: Any) -> tuple[Any, Any]:
        """x [..., K] rounded to multiples of `STEP` after its rows were divided by factors [..., 1], and the
        factors; see `Rounding`.
        """

    @abstractmethod
    def _scaled(self, name: str, codes: Any, scales: Any) -> Any:
        """The product of codes [..., N, K] and their scales [..., N, K / G], repeated over blocks."""

    def _begin(self) -> None:
        super()._begin()
        self._eight_bits, self._rounded = set(), {}

    def _extras(self, node: Node) -> Arguments:
        return {"operand": self._operand}

    def _operand(self, x: Any, weight: Any, rounding: Rounding | None = None) -> tuple[Any, Any]:
        """The operand in x's place in its product with a weight, made by `rounding` if not by `_round_rows`,
        and the factors of the product's rows; None where there are none.
        """
        if not (self.int8_activations and weight in self._eight_bits):
            return x, None
        if x not in self._rounded:  # several products may share it
            self._rounded[x] = (rounding or self._round_rows)(x)
        return self._rounded[x]

    def weight(self, stored: Sequence[Constant], parts: Sequence[Sequence[str]] = ()) -> Any:
        """A float constant, or the product of codes and scales."""
        lists = parts or [()] * len(stored)
        values = [self.constant(c, p) for c, p in zip(stored, lists, strict=True)]
        if len(values) == 1:
            return values[0]
        name = stored[0].name.removesuffix(".codes")
        if name not in self._known:
            self._known[name] = self._scaled(name, *values)
            if stored[0].dtype.bits == 8:
                self._eight_bits.add(self._known[name])
        return self._known[name]

    def translate(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Callable[[], Any]],
    ) -> dict[str, Any]:
        nodes = list(program.exported.graph.nodes)
        names = dict(zip((n for n in nodes if n.op == "placeholder"), program.inputs, strict=True))
        known: dict[Node, Any] = {
            node: inputs[name] if name in inputs else _given(name, weights) for node, name in names.items()
        }
        for node in nodes:
            if node.op == "call_function":
                known[node] = self._computed(program.name, node, known)
        results = dict(zip(program.outputs, nodes[-1].args[0], strict=True))
        return {name: known[node] for name, node in results.items()}


def _given(name: str, weights: Mapping[str, Callable[[], Any]]) -> Any:
    """The value of a placeholder for a tensor of a weight; None for one that comes with another."""
    own = name.removeprefix("w.")
    if own in weights:
        return weights[own]()
    matrix, _, suffix = own.rpartition(".")
    return weights[matrix]() if suffix in ("weight", "codes") else None
