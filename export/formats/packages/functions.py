"""The functions of a package: what each takes and gives, before it is built.

What the roles of features mean is said in `edgekit.runtime.bundle.packages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.programs import StaticPrograms
from edgekit.export.programs import HEADS, Lengths


@dataclass(frozen=True)
class Feature:
    """An input or output of a function. `role` says what a runtime feeds or gets; names are identifiers."""

    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.role.replace(".", "_")

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "role": self.role}


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function."""

    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]


@dataclass(frozen=True)
class FunctionPlan:
    """A function to be made. `inputs` are by role; `bindings` are, for each layer of a chunk, the roles of
    its program's inputs other than x; `variant` is one of `programs.HEADS`.
    """

    name: str
    kind: str
    lengths: Lengths
    inputs: tuple[Feature, ...]
    bindings: tuple[Mapping[str, str], ...] = ()
    variant: str = ""

    def as_dict(self, signature: Signature) -> dict[str, Any]:
        """The manifest's entry."""
        return {
            "kind": self.kind,
            "t": self.lengths.t,
            "p": self.lengths.p,
            "inputs": [f.as_dict() for f in signature.inputs],
            "outputs": [f.as_dict() for f in signature.outputs],
        }


def functions(
    programs: StaticPrograms, package: PackagePlan, lengths: Sequence[Lengths], number: str
) -> list[FunctionPlan]:
    """The functions of a package, over inputs of type `number` ("float16", "float32")."""
    architecture = programs.architecture
    if package.kind == "layers":
        return [_layers_function(programs, package, own, number) for own in lengths]
    hidden, plans = architecture.hidden_size, []
    for t in sorted({own.t for own in lengths}):
        own, name, whole = Lengths(t, 0), f"t{t}", (1, t, hidden)
        if package.kind == "final":
            plans.append(FunctionPlan(name, "final", own, (Feature("x", number, whole),)))
        elif package.kind == "self_conditioning":
            inputs = tuple(Feature(role, number, whole) for role in ("embedded", "soft"))
            plans.append(FunctionPlan(name, "self_conditioning", own, inputs))
        else:
            for variant, (sample, soft, _) in HEADS.items():
                if soft and architecture.self_conditioning is None:
                    continue
                features = [Feature("x", number, (t, hidden)), Feature("temperature", number, (1,))]
                if sample:
                    features.append(Feature("noise", number, (t, package.rows)))
                plans.append(FunctionPlan(f"{variant}_{name}", "head", own, tuple(features), variant=variant))
    return plans


def _layers_function(
    programs: StaticPrograms, package: PackagePlan, lengths: Lengths, number: str
) -> FunctionPlan:
    architecture, t = programs.architecture, lengths.t
    inputs: dict[str, Feature] = {}
    bindings = []

    def take(role: str, dtype: str, *shape: int) -> str:
        inputs[role] = Feature(role, dtype, shape)
        return role

    take("x", number, 1, t, architecture.hidden_size)
    for slot, i in enumerate(package.layers):
        layer = architecture.layers[i]
        p, own = lengths.prefix(layer.window), {}
        for name in ("prefix_k", "prefix_v") if p else ():
            own[name] = take(f"{name}.{slot}", number, 1, layer.kv_heads, p, layer.head_dim)
        for name, width in architecture.ropes[layer.rope].widths.items():
            own[name] = take(f"{name}.{layer.rope}", number, t, width)
        if "adapter" in programs.layer(i, lengths).inputs:
            own["adapter"] = take("adapter", number, t, 1)
        reach = "full" if layer.window is None else str(layer.window)
        own["mask"] = take(f"mask.{reach}", number, t, p + t)
        if "phase" in programs.layer(i, lengths).inputs:
            own["phase"] = take("phase", "int32", 1)
        bindings.append(own)
    return FunctionPlan(
        f"t{t}_p{lengths.p}", "layers", lengths, tuple(inputs.values()), bindings=tuple(bindings)
    )
