"""The template of a package: its functions over its constants, from the programs of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.functions import FunctionPlan, Signature, functions
from edgekit.export.formats.packages.graph import EXPERTS_AT_ONCE, ExpertStack, PackageBuilder
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.formats.packages.programs import StaticPrograms
from edgekit.export.formats.packages.stamp import Template
from edgekit.export.models.base import LayerSpec, WeightSpec
from edgekit.export.programs import Lengths
from edgekit.export.quantize import Choice

#: What gives the value of a weight in the function that is being built.
Weight = Callable[[], Any]


@dataclass(frozen=True)
class Content:
    """The content that packages may share: files without weights, functions with their inputs and outputs."""

    template: Template
    plans: Mapping[str, FunctionPlan]
    signatures: Mapping[str, Signature]


def build(
    graph: PackageBuilder,
    programs: StaticPrograms,
    package: PackagePlan,
    lengths: Sequence[Lengths],
    precision: str,
) -> Content:
    """Build a package in an empty graph.

    Raises:
        ExportError: a program cannot be expressed in the graph's format.
    """
    weights = _weights(graph, programs, package, precision)
    plans = functions(programs, package, lengths, precision)
    for plan in plans:
        body = functools.partial(_body, graph, programs, package, plan, weights)
        graph.add(plan.name, plan.inputs, body)
    return Content(graph.finish(), {p.name: p for p in plans}, graph.functions)


def _body(
    graph: PackageBuilder,
    programs: StaticPrograms,
    package: PackagePlan,
    plan: FunctionPlan,
    weights: Sequence[Mapping[str, Weight]],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """The results of a function by role, from its inputs by role."""
    if plan.kind == "final":
        return graph.translate(programs.final(plan.lengths), values, weights[0])
    if plan.kind == "self_conditioning":
        return graph.translate(programs.self_conditioning(plan.lengths), values, weights[0])
    if plan.kind == "head":
        program = programs.head(plan.variant, plan.lengths, package.rows)
        return graph.translate(program, values, weights[0])
    x, kept = values["x"], {}
    for slot, (index, roles) in enumerate(zip(package.layers, plan.bindings, strict=True)):
        given = {"x": x} | {name: values[role] for name, role in roles.items()}
        made = graph.translate(programs.layer(index, plan.lengths), given, weights[slot])
        kept[f"k.{slot}"], kept[f"v.{slot}"] = made.pop("k"), made.pop("v")
        x = made.get("y")
    return made | kept


def _weights(
    graph: PackageBuilder, programs: StaticPrograms, package: PackagePlan, precision: str
) -> list[dict[str, Weight]]:
    """Sources of the weights of each program of the package, by their names in it."""
    architecture, choices = programs.architecture, programs.choices

    def single(prefix: str, spec: WeightSpec, matrix: str) -> Weight:
        choice = choices.get(matrix, Choice(16, 0))
        stored = graph.constants(prefix + spec.name, spec, choice, precision)
        return functools.partial(graph.weight, stored)

    def layer(slot: int, index: int, own: LayerSpec) -> dict[str, Weight]:
        weights = {s.name: single(f"{slot}.", s, f"layers.{index}.{s.name}") for s in own.weights}
        for spec in own.experts[0] if own.experts else ():
            choice = choices[f"layers.{index}.experts.0.{spec.name}"]
            weights["experts." + spec.name] = functools.partial(
                _experts, graph, f"{slot}.experts", spec, choice, precision, len(own.experts)
            )
        return weights

    if package.kind == "layers":
        return [layer(slot, index, architecture.layers[index]) for slot, index in enumerate(package.layers)]
    if package.kind == "final":
        return [{s.name: single("", s, "") for s in architecture.final}]
    if package.kind == "self_conditioning":
        specs = architecture.self_conditioning_weights
        return [{s.name: single("", s, f"self_conditioning.{s.name}") for s in specs}]
    table = architecture.head or architecture.embedding
    tile = WeightSpec("table", (package.rows, table.shape[1]), "head", ())
    return [{"table": single("", tile, "head" if architecture.head is not None else "embedding")}]


def _experts(
    graph: PackageBuilder, prefix: str, spec: WeightSpec, choice: Choice, precision: str, count: int
) -> ExpertStack:
    """The matrices of a layer's experts, several to a constant."""
    one = graph.constants(spec.name, spec, choice, precision)
    groups = []
    for first in range(0, count, EXPERTS_AT_ONCE):
        own = range(first, min(count, first + EXPERTS_AT_ONCE))
        stacks: list[Constant] = [
            replace(c, name=f"{prefix}.{first}-{own[-1]}.{c.name}", shape=(len(own), *c.shape)) for c in one
        ]
        parts = [[f"{prefix}.{e}.{c.name}" for e in own] for c in one]
        groups.append(graph.weight(stacks, parts))
    return ExpertStack(tuple(groups))
