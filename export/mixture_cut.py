"""The cut of a layer with experts, for engines that leave the experts to the core.

    dense    its large products and attention: x -> what the mixture takes of them (`dense.0`, ...); k, v
    mixture  the router, the experts, and what stands between them and those products: x, dense.J -> y

Norms and sums before the experts are the mixture's: it takes what the products give and nothing else. What
both need of them, as the norm before a router and a shared expert, both compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from edgekit.export.errors import ExportError
from edgekit.export.models.base import Architecture, LayerSpec
from edgekit.export.programs import Program, core_layer_program, export_program

edgekit = torch.ops.edgekit
#: What the dense part computes.
_HEAVY = (edgekit.linear.default, edgekit.attention.default)
#: Products that the core takes of a layer, at most.
_MOST_DENSE = 4
#: Inputs of layers that the core feeds to a mixture.
_TAKEN = ("x", "phase", "adapter")


def dense_part(program: Program) -> Program:
    """The dense part of a layer's program, of its lengths.

    Raises:
        ExportError: the layer cannot be cut.
    """
    found = _find(program)
    results = dict(zip(program.outputs, found.results, strict=True))
    outputs = {f"dense.{i}": node for i, node in enumerate(found.dense)} | {n: results[n] for n in "kv"}
    return _part(program, outputs, {})


def mixture_part(program: Program) -> Program:
    """The mixture of a layer's program, of its lengths. Raises ExportError as `dense_part` does."""
    found = _find(program)
    given = {node: f"dense.{i}" for i, node in enumerate(found.dense)}
    return _part(program, {"y": found.results[0]}, given)


@dataclass(frozen=True)
class MixtureCut:
    """The parts that the layers of a kind are cut into: the program of the mixture, for any length, and the
    names of the weights of both parts, but of experts. Vectors may be in both, matrices are in one.
    """

    mixture: Program
    dense: frozenset[str]
    own: frozenset[str]

    @classmethod
    def of(cls, architecture: Architecture, layer: LayerSpec) -> MixtureCut:
        """Cut a layer of the model. Raises ExportError: it cannot be cut."""
        whole = core_layer_program(architecture, layer)
        mixture = mixture_part(whole)
        found = _find(whole)
        needed = _before((*found.dense, *found.results[1:]), lambda _: True)
        read = [name for node, name in zip(_placeholders(whole), whole.inputs, strict=True) if node in needed]
        cut = cls(mixture, _specs(layer, read), _specs(layer, mixture.inputs))
        for spec in layer.weights:
            if spec.role != "float" and spec.name in cut.dense & cut.own:
                raise ExportError(f"layers of kind {layer.kind}: both parts multiply with {spec.name}")
        return cut


def _specs(layer: LayerSpec, inputs: Iterable[str]) -> frozenset[str]:
    """The weights of a layer that are among the inputs of a program."""
    names = {name.removeprefix("w.") for name in inputs if name.startswith("w.")}
    names |= {name.rpartition(".")[0] for name in names}
    return frozenset(spec.name for spec in layer.weights if spec.name in names)


class _PartCall(nn.Module):
    """A part of an exported graph, whose inputs are `names`, with the signature of programs."""

    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        super().__init__()
        self.part, self.names = GraphModule(nn.Module(), graph), tuple(names)

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> tuple[Tensor, ...]:
        given = inputs | {f"w.{name}": value for name, value in w.items()}
        out: tuple[Tensor, ...] = self.part(*(given[name] for name in self.names))
        return out


@dataclass(frozen=True)
class _Found:
    """Where a layer's graph is cut: products that the mixture takes, in the graph's order; and y, k, v."""

    dense: Sequence[Node]
    results: Sequence[Node]


def _find(program: Program) -> _Found:
    nodes = list(program.exported.graph.nodes)
    mixed = [n for n in nodes if n.target is edgekit.experts.default]
    routes = [n for n in nodes if n.target is edgekit.route.default]

    def refuse(why: str) -> NoReturn:
        raise ExportError(f"program {program.name}: {why}; no format but native takes such experts beside it")

    if len(mixed) != 1 or len(routes) != 1:
        refuse(f"has {len(mixed)} mixtures of experts and {len(routes)} routers, not one")
    behind: set[Node] = set()
    for node in nodes:
        if node is mixed[0] or not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    if heavy := [n for n in behind if n.target in _HEAVY]:
        refuse(f"{heavy[0].name} multiplies what the experts give")
    results = nodes[-1].args[0]
    if results[0] not in behind or not behind.isdisjoint(results[1:]):
        refuse("y, and not keys and values, must be what its experts give")
    router = _logits(routes[0])
    near = _before([results[0]], lambda n: n is router or n.target not in _HEAVY)
    dense = [n for n in nodes if n in near and n.target in _HEAVY and n is not router]
    inputs = dict(zip(_placeholders(program), program.inputs, strict=True))
    foreign = [inputs[n] for n in near if n in inputs and not inputs[n].startswith(("w.", *_TAKEN))]
    shape = _placeholders(program)[program.inputs.index("x")].meta["val"].shape
    if foreign:
        refuse(f"its mixture takes {foreign[0]}")
    if wrong := [n.name for n in dense if n.meta["val"].shape != shape]:
        refuse(f"its mixture takes {wrong[0]}, whose shape is not that of x")
    if not 1 <= len(dense) <= _MOST_DENSE:
        refuse(f"its mixture takes {len(dense)} products, not 1 to {_MOST_DENSE}")
    return _Found(dense, results)


def _logits(route: Node) -> Node:
    """The product that a router looks at."""
    node = route
    while node.target is not edgekit.linear.default and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _placeholders(program: Program) -> list[Node]:
    return [node for node in program.exported.graph.nodes if node.op == "placeholder"]


def _before(ends: Iterable[Node], beyond: Callable[[Node], bool]) -> set[Node]:
    """What `ends` are made of, themselves included; of nodes that `beyond` does not allow nothing more."""
    found: set[Node] = set()
    open_ends = list(ends)
    while open_ends:
        node = open_ends.pop()
        if node in found:
            continue
        found.add(node)
        if beyond(node):
            open_ends += node.all_input_nodes
    return found


def _part(program: Program, outputs: Mapping[str, Node], given: Mapping[Node, str]) -> Program:
    """The program of these outputs, which takes what `given` names as inputs."""
    needed = _before(outputs.values(), lambda n: n not in given)
    graph, known = Graph(), dict[Node, Node]()
    names = dict(zip(_placeholders(program), program.inputs, strict=True))
    taken = {node: name for node, name in names.items() if node in needed} | dict(given)
    taken = dict(sorted(taken.items(), key=lambda each: each[1].startswith("w.")))
    examples = {}
    for node, name in taken.items():
        known[node] = graph.placeholder(f"input_{len(known)}")
        examples[name] = _example(node)
    for node in program.exported.graph.nodes:
        if node in needed and node not in known:
            known[node] = graph.node_copy(node, lambda n: known[n])
    graph.output(tuple(known[node] for node in outputs.values()))
    inputs = {name: value for name, value in examples.items() if not name.startswith("w.")}
    weights = {name.removeprefix("w."): value for name, value in examples.items() if name.startswith("w.")}
    lengths = dict(program.axes) | {name: program.axes.get("x", {}) for name in given.values()}
    axes = {name: dict(lengths.get(name, {})) for name in inputs}
    module = _PartCall(graph, list(taken.values()))
    static = not program.axes
    return export_program(program.name, module, inputs, axes, weights, tuple(outputs), static=static)


def _example(node: Node) -> Tensor:
    """A tensor of the type and, for dynamic sizes, of the example's size."""
    value = node.meta["val"]
    sizes = [n if isinstance(n, int) else n.node.hint for n in value.shape]
    return torch.zeros(sizes, dtype=value.dtype)
