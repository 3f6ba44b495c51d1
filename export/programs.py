"""One `torch.export` program per distinct layer kind, plus the small ones around the layers; weights are
inputs.

The exported graph, with its `edgekit::` nodes, is what every format translates. Lengths are dynamic: T
positions of the canvas (or of a prefill chunk), P positions of prefix KV. Formats whose functions have
static shapes give `Lengths` instead. A format may store weights in a layout of its own: it supplies the
placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node

from edgekit.export import ops
from edgekit.export.models.base import Architecture, LayerInputs, LayerSpec, WeightSpec, stored_form
from edgekit.export.quantize import Choice

#: Placeholders by tensor name for one weight in the form it has been given.
Placeholders = Callable[[WeightSpec, Choice], dict[str, Tensor]]


def code_placeholders(spec: WeightSpec, choice: Choice) -> dict[str, Tensor]:
    """Untouched codes [N, K] and scales [N] whatever the form: for formats whose translation of a product
    does not depend on how its matrix is stored. Adapters are float.
    """
    if spec.role == "adapter":
        return {spec.name + ".weight": torch.empty(spec.shape)}
    return {
        spec.name + ".codes": torch.empty(spec.shape, dtype=torch.uint8),
        spec.name + ".scales": torch.empty(spec.shape[0]),
    }


#: Example lengths. Tracing specialises on 0 and 1 and on equal sizes, so they are larger and distinct;
#: nothing depends on them.
EXAMPLE_T, EXAMPLE_P, EXAMPLE_ROWS = 12, 7, 20

#: Windowed prefixes of static programs are whole multiples of it: accelerators want rows of such lengths.
PREFIX_MULTIPLE = 32


@dataclass(frozen=True)
class Lengths:
    """Fixed sizes of a program: `t` positions of the pass, `p` of the prefix, 0 for none.

    Shorter passes and prefixes are padded, so every static layer has a mask.
    """

    t: int
    p: int

    def prefix(self, window: int | None) -> int:
        """Positions of prefix of a layer: those that its window reaches, rounded up, where it has one."""
        if window is None:
            return self.p
        return min(self.p, -(-(window - 1) // PREFIX_MULTIPLE) * PREFIX_MULTIPLE)


@dataclass(frozen=True)
class Program:
    """An exported graph: names of its inputs in order (weights under `w.`), and of its outputs. `axes` names
    the lengths among the sizes of its inputs, by input and axis.
    """

    name: str
    exported: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Mapping[str, Mapping[int, str]]


class _LayerCall(nn.Module):
    """A layer with a uniform signature; inputs that the layer does not use are left out of the program."""

    def __init__(self, layer: LayerSpec) -> None:
        super().__init__()
        self.layer, self.module = layer, layer.module

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer.apply(LayerInputs(**inputs), w)


class _SelfConditioningCall(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        y: Tensor = self.module(inputs["embedded"], inputs["soft"], w)
        return y


class _FinalCall(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        return ops.rms_norm(inputs["x"], w["norm.weight"], self.eps)


class _ExpertCall(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        return ops.expert(inputs["x"], stored_form(w, "gate_up"), stored_form(w, "down"), self.kind)


class _HeadCall(nn.Module):
    """A tile of the vocabulary head: `sample` adds Gumbel noise as an input, `soft` the soft embedding,
    `logits` gives z itself.
    """

    def __init__(self, softcap: float, sample: bool, soft: bool, logits: bool) -> None:
        super().__init__()
        self.softcap, self.sample, self.soft, self.logits = softcap, sample, soft, logits

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> list[Tensor]:
        table = w["table.weight"] if "table.weight" in w else w["table.codes"]
        scales = w.get("table.scales")
        if self.logits:
            return [ops.vocab_logits(inputs["x"], table, scales, self.softcap) / inputs["temperature"]]
        noise = inputs["noise"] if self.sample else None
        return list(
            ops.vocab_head(inputs["x"], table, scales, inputs["temperature"], noise, self.softcap, self.soft)
        )


HEAD_OUTPUTS = ("max", "argmax", "sum_others", "sum_z_others")
SAMPLE_OUTPUTS = ("score", "sample", "sample_z")
#: The variants of the head program: name -> (sample, soft, logits).
HEADS = {
    "head": (False, False, False),
    "head_sample": (True, False, False),
    "head_soft": (False, True, False),
    "head_sample_soft": (True, True, False),
    "head_logits": (False, False, True),
}


def export_program(
    name: str,
    module: nn.Module,
    inputs: dict[str, Tensor],
    axes: dict[str, dict[int, str]],
    w: dict[str, Tensor],
    outputs: tuple[str, ...],
    weight_axes: dict[str, dict[int, str]] | None = None,
    static: bool = False,
) -> Program:
    """Export a module that is called with `inputs` and weights `w`, by name. `axes` and `weight_axes` name
    the lengths among their sizes, which are dynamic unless `static`.
    """
    dims: dict[str, Any] = {}
    if static:
        axes, weight_axes = {}, {}

    def shape_of(tensors: dict[str, Tensor], dynamic: dict[str, dict[int, str]]) -> dict[str, dict[int, Any]]:
        return {
            n: {a: dims.setdefault(d, Dim(d, min=1, max=1 << 24)) for a, d in dynamic.get(n, {}).items()}
            for n in tensors
        }

    shapes = {"inputs": shape_of(inputs, axes), "w": shape_of(w, weight_axes or {})}
    exported = torch.export.export(module.eval(), (inputs, w), dynamic_shapes=shapes)
    named = axes | {f"w.{n}": sizes for n, sizes in (weight_axes or {}).items()}
    return Program(name, exported, (*inputs, *(f"w.{n}" for n in w)), outputs, named)


def call_arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call in an exported graph by name, defaults included."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given = dict(zip((a.name for a in arguments), node.args, strict=False))
    return defaults | given | node.kwargs


def layer_program(
    name: str,
    architecture: Architecture,
    layer: LayerSpec,
    choices: dict[str, Choice],
    placeholders: Placeholders,
    lengths: Lengths | None = None,
) -> Program:
    """The program of one layer kind. Expert weights are stacked over experts, as `edgekit::experts` takes
    them.

    Inputs: x [1, T, H]; prefix_k, prefix_v [1, KV, P, D]; cos, sin [T, R]; query_scale and adapter [T, 1],
    mask [T, P + T] additive and phase [1] (int64) where the layer uses them; weights. Outputs: y [1, T, H];
    k, v [1, KV, T, D] of these positions, which the runtime keeps or drops. With `lengths`, sizes are fixed,
    there is always a mask, and no prefix where it has no positions.
    """
    t, p = (EXAMPLE_T, EXAMPLE_P) if lengths is None else (lengths.t, lengths.prefix(layer.window))
    inputs = {"x": torch.zeros(1, t, architecture.hidden_size)}
    axes: dict[str, dict[int, str]] = {"x": {1: "t"}}
    for prefix in ("prefix_k", "prefix_v") if p else ():
        inputs[prefix] = torch.zeros(1, layer.kv_heads, p, layer.head_dim)
        axes[prefix] = {2: "p"}
    for table, width in architecture.ropes[layer.rope].widths.items():
        inputs[table] = torch.zeros(t, width)
        axes[table] = {0: "t"}
    if layer.uses_adapter:
        inputs["adapter"] = torch.ones(t, 1)
        axes["adapter"] = {0: "t"}
    if layer.uses_mask or lengths is not None:
        inputs["mask"] = torch.zeros(t, p + t)
        axes["mask"] = {0: "t", 1: "s"}
    if layer.uses_phase:
        inputs["phase"] = torch.zeros(1, dtype=torch.int64)
    w: dict[str, Tensor] = {}
    for spec in layer.weights:
        w |= (
            placeholders(spec, choices[spec.name])
            if spec.role != "float"
            else {spec.name: torch.empty(spec.shape)}
        )
    for spec in layer.experts[0] if layer.experts else ():
        for tensor, value in placeholders(spec, choices["experts." + spec.name]).items():
            w[f"experts.{tensor}"] = value.new_empty(len(layer.experts), *value.shape)
    static = lengths is not None
    return export_program(name, _LayerCall(layer), inputs, axes, w, ("y", "k", "v"), static=static)


def one_form(weights: Iterable[WeightSpec], prefix: str = "") -> dict[str, Choice]:
    """8 bits for every matrix: the form that lets products round their activations where the model allows
    it. Op lists of the core are the same for all forms.
    """
    return {prefix + s.name: Choice(8, 0) for s in weights if s.role != "float"}


def core_layer_program(architecture: Architecture, layer: LayerSpec) -> Program:
    """The program of a layer kind for any length and form, of which the core's op list is made."""
    choices = one_form(layer.weights)
    if layer.experts:
        choices |= one_form(layer.experts[0], "experts.")
    return layer_program(layer.kind, architecture, layer, choices, code_placeholders)


def expert_program(
    name: str,
    hidden: int,
    expert: tuple[WeightSpec, ...],
    kind: str,
    choices: dict[str, Choice],
    placeholders: Placeholders,
) -> Program:
    """One expert on the rows routed to it: x [R, H] -> y [R, H]. `choices` by `experts.<name>` as in
    `layer_program`.
    """
    w: dict[str, Tensor] = {}
    for spec in expert:
        w |= placeholders(spec, choices["experts." + spec.name])
    return export_program(
        name, _ExpertCall(kind), {"x": torch.zeros(EXAMPLE_T, hidden)}, {"x": {0: "t"}}, w, ("y",)
    )


def self_conditioning_program(
    architecture: Architecture,
    choices: dict[str, Choice],
    placeholders: Placeholders,
    lengths: Lengths | None = None,
) -> Program:
    """embedded, soft [1, T, H] (both times the embedding scale) -> y [1, T, H]."""
    assert architecture.self_conditioning is not None
    w: dict[str, Tensor] = {}
    for spec in architecture.self_conditioning_weights:
        w |= (
            placeholders(spec, choices[spec.name])
            if spec.role != "float"
            else {spec.name: torch.empty(spec.shape)}
        )
    example = torch.zeros(1, _positions(lengths), architecture.hidden_size)
    return export_program(
        "self_conditioning",
        _SelfConditioningCall(architecture.self_conditioning),
        {"embedded": example, "soft": example.clone()},
        {"embedded": {1: "t"}, "soft": {1: "t"}},
        w,
        ("y",),
        static=lengths is not None,
    )


def _positions(lengths: Lengths | None) -> int:
    return EXAMPLE_T if lengths is None else lengths.t


def final_program(architecture: Architecture, lengths: Lengths | None = None) -> Program:
    """The last norm: x [1, T, H] -> y [1, T, H]."""
    return export_program(
        "final",
        _FinalCall(architecture.norm_eps),
        {"x": torch.zeros(1, _positions(lengths), architecture.hidden_size)},
        {"x": {1: "t"}},
        {spec.name: torch.empty(spec.shape) for spec in architecture.final},
        ("y",),
        static=lengths is not None,
    )


def head_programs(
    architecture: Architecture,
    choice: Choice,
    placeholders: Placeholders,
    lengths: Lengths | None = None,
    rows: int = EXAMPLE_ROWS,
) -> Iterator[Program]:
    """The vocabulary head over a tile of the table, in the variants of `HEADS` (soft ones only with
    self-conditioning).

    Inputs: x [T, H]; temperature [1]; noise [T, V'] for the sampling ones; table [V', H]. Outputs: see
    `edgekit::vocab_head`. With `lengths`, sizes are fixed, those of the tile at `rows`.
    """
    spec = architecture.head or architecture.embedding
    t = _positions(lengths)
    tile = WeightSpec("table", (rows, spec.shape[1]), spec.role, ())
    for name, (sample, soft, logits) in HEADS.items():
        if soft and architecture.self_conditioning is None:
            continue
        inputs = {"x": torch.zeros(t, architecture.hidden_size), "temperature": torch.ones(1)}
        axes: dict[str, dict[int, str]] = {"x": {0: "t"}}
        if sample:
            inputs["noise"] = torch.empty(t, rows)  # kept with the program, and large: never touched
            axes["noise"] = {0: "t", 1: "v"}
        outputs = (
            ("z",)
            if logits
            else HEAD_OUTPUTS + (SAMPLE_OUTPUTS if sample else ()) + (("soft",) if soft else ())
        )
        w = placeholders(tile, choice)
        yield export_program(
            name,
            _HeadCall(architecture.softcap, sample, soft, logits),
            inputs,
            axes,
            w,
            outputs,
            {n: {0: "v"} for n in w},
            static=lengths is not None,
        )
