"""The declarations of a model family: its tensors, its layers as plain modules over a dictionary of weights,
and how to run them.

A family is one file of this folder with `architecture(config, dtype) -> Architecture`. Layers hold no
parameters: the same module serves training (float weights), the quantized reference (codes and scales), and
every exported program (weights as inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgekit.export import ops
from edgekit.export.errors import ExportError

Weights = Mapping[str, Tensor]

#: Values of a layer's `phase` input: which kind of pass it is in.
DENOISE, PREFILL = 0, 1


@dataclass(frozen=True)
class Part:
    """A stored tensor, or entry `index` along its first axis, or its rows `rows[0]` to `rows[1]`. Of a tensor
    that is cut into rows, the parts together are all of it.
    """

    tensor: str
    index: int | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class WeightSpec:
    """A weight of ours: its shape, and the stored tensors that make it up when joined along axis 0.

    The names of matrices are without suffix (`self_attn.q_proj`): `.weight`, `.codes`, `.group_scales`,
    `.scales` are added by their form. Names of role "float" are complete. Matrices of role "adapter" have
    the form `.weight` always, see `low_rank`.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class QueryScale:
    """A factor for the queries at position p, behind their rotation: 1 + beta * log1p(floor(p / positions)),
    which is 1 below `positions` (Llama 4's temperature of attention; Ministral 3).
    """

    beta: float
    positions: int

    def factors(self, positions: Tensor) -> Tensor:
        """Factors [..., 1] (float32) for integer positions [...]."""
        periods = torch.div(positions, self.positions, rounding_mode="floor")
        return (1 + self.beta * torch.log1p(periods.float()))[..., None]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: angle[p, j] = p * inverse_frequency[j]. Where `query_scale` is given, layers
    multiply the rotated queries by its factors.
    """

    inverse_frequency: tuple[float, ...]
    query_scale: QueryScale | None = None

    def tables(self, positions: Tensor) -> dict[str, Tensor]:
        """The inputs that layers take of it (float32), for integer positions [...]: cos and sin [..., R], and
        query_scale [..., 1] if it has one.
        """
        angle = positions.float()[..., None] * torch.tensor(self.inverse_frequency, device=positions.device)
        scale = {} if self.query_scale is None else {"query_scale": self.query_scale.factors(positions)}
        return {"cos": angle.cos(), "sin": angle.sin(), **scale}

    @property
    def widths(self) -> dict[str, int]:
        """The last sizes of its tables, by name."""
        half = len(self.inverse_frequency)
        return {"cos": half, "sin": half} | ({} if self.query_scale is None else {"query_scale": 1})


def rope_default(theta: float, dims: int) -> Rope:
    """Frequencies theta^(-2j/dims), j < dims/2 (arXiv 2104.09864)."""
    exponent = torch.arange(0, dims, 2, dtype=torch.int64).float() / dims
    return Rope(tuple((1.0 / theta**exponent).tolist()))


@dataclass(frozen=True)
class LayerInputs:
    """What a layer is given besides its weights; those that it does not use may be left out.

    Where positions differ from row to row of a batch, tables and factors are [B, 1, T, ...].
    """

    x: Tensor  # [B, T, H]
    cos: Tensor  # [T, R]
    sin: Tensor  # [T, R]
    prefix_k: Tensor | None = None  # [B, KV, P, D]; without them there is no prefix
    prefix_v: Tensor | None = None
    mask: Tensor | None = None  # [T, P + T], additive
    phase: Tensor | None = None  # [1], int64: DENOISE or PREFILL
    query_scale: Tensor | None = None  # [T, 1], see QueryScale
    adapter: Tensor | None = None  # [T, 1], factors for what the layer's adapter adds


@dataclass(frozen=True)
class LayerSpec:
    """One transformer layer.

    Layers of equal `kind` share a module and shapes, so that one program serves them all. `window` limits
    how far a causal pass looks back and how much prefix is kept (window - 1 positions). `experts[e]` are
    the weights of one expert.

    A layer is called as `apply`.
    """

    kind: str
    module: torch.nn.Module
    weights: tuple[WeightSpec, ...]
    experts: tuple[tuple[WeightSpec, ...], ...]
    kv_heads: int
    head_dim: int
    rope: str
    window: int | None = None
    uses_mask: bool = False
    uses_phase: bool = False
    uses_adapter: bool = False  # its adapter is switched by row; see LayerInputs.adapter
    activation: str = "silu"  # of the experts; see edgekit::gated_act

    def apply(self, inputs: LayerInputs, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, H], and k, v [B, KV, T, D]: what the module computes. All its products find the factors of
        the adapter beside their matrices.
        """
        factors = {} if inputs.adapter is None else {_FACTORS: inputs.adapter}
        x, k, v = self.module(inputs, {**w, **factors})
        return x, k, v


@dataclass(frozen=True)
class OwnAdapter:
    """A LoRA adapter that checkpoints of a family bring along, in a folder of theirs: it stays beside the
    weights under `name`, and `defaults` are the sampler's then.
    """

    folder: str
    name: str
    defaults: Mapping[str, object]


@dataclass(frozen=True)
class Architecture:
    """A model, ready to be trained, quantized, exported or run by the reference.

    `self_conditioning`, when present, maps (embedded canvas, soft embedding, weights) to the decoder's
    input. `embedding_scale` multiplies both. `shift_logits`: the logits at position j predict token j + 1.
    """

    family: str
    sampler: str
    hidden_size: int
    vocab_size: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    ropes: Mapping[str, Rope]
    embedding: WeightSpec
    head: WeightSpec | None  # None: tied to the embedding
    final: tuple[WeightSpec, ...]  # the last norm
    embedding_scale: float = 1.0
    softcap: float = 0.0
    shift_logits: bool = False
    self_conditioning: torch.nn.Module | None = None
    self_conditioning_weights: tuple[WeightSpec, ...] = ()
    canvas_length: int | None = None
    max_positions: int | None = None  # the longest sequence that the model was made for
    causal_prefix: bool = False  # committed text is encoded before what follows it and kept as prefix KV
    prefix_block: int = 1  # positions of a block of committed text, which see each other; 1: it is causal
    ignored: tuple[str, ...] = ()  # patterns of stored tensors that are not part of the text model
    notes: tuple[str, ...] = ()  # what the user is told about parts and keys of the config that are left out
    own_adapter: OwnAdapter | None = None
    defaults: Mapping[str, object] = field(
        default_factory=dict
    )  # sampler defaults found in the configuration (mask id, eos…)

    def __post_init__(self) -> None:
        known: dict[str, dict[str, tuple[int, ...]]] = {}
        for i, layer in enumerate(self.layers):
            _check_adapters(layer.kind, layer.weights)
            shapes = {spec.name: spec.shape for spec in layer.weights}
            if known.setdefault(layer.kind, shapes) != shapes:
                raise ExportError(
                    f"layer {i} has other weights than those before it of kind {layer.kind}: one program "
                    "serves a kind, and an adapter makes another one"
                )
        _check_adapters("self_conditioning", self.self_conditioning_weights)

    def weights(self) -> Iterator[tuple[str, WeightSpec]]:
        """Every weight with the name of the unit that holds it, in execution order; experts are units of
        their own.
        """
        yield "embedding", self.embedding
        for spec in self.self_conditioning_weights:
            yield "self_conditioning", spec
        for i, layer in enumerate(self.layers):
            for spec in layer.weights:
                yield f"layers.{i}", spec
            for e, expert in enumerate(layer.experts):
                for spec in expert:
                    yield f"layers.{i}.experts.{e}", spec
        for spec in self.final:
            yield "final", spec
        if self.head is not None:
            yield "head", self.head

    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every stored tensor that the model needs."""
        shapes: dict[str, tuple[int, ...]] = {}
        stacked: dict[str, int] = {}
        cut: dict[str, int] = {}
        for _, spec in self.weights():
            rows = spec.shape[0] // len(spec.parts)
            for part in spec.parts:
                if part.rows is not None:
                    rows = cut[part.tensor] = max(cut.get(part.tensor, 0), part.rows[1])
                shapes[part.tensor] = (rows, *spec.shape[1:])
                if part.index is not None:
                    stacked[part.tensor] = max(stacked.get(part.tensor, 0), part.index + 1)
        return {
            name: ((stacked[name], *shape) if name in stacked else shape) for name, shape in shapes.items()
        }


def matrix(name: str, rows: int, columns: int, role: str, *stored: str | Part) -> WeightSpec:
    """A matrix [rows, columns] read from `stored` tensors (joined along rows)."""
    return WeightSpec(
        name, (rows, columns), role, tuple(p if isinstance(p, Part) else Part(p) for p in stored)
    )


def vector(name: str, size: int, *stored: str) -> WeightSpec:
    """A float vector (norm, bias, scalars) of `size` values."""
    return WeightSpec(name, (size,), "float", tuple(Part(p) for p in stored))


#: What a matrix's name is followed by in those of its low-rank adapter.
DOWN, UP = ".lora_down", ".lora_up"
#: Where products look for factors of adapters: beside the weights, none of which has this name.
_FACTORS = "adapter"


def low_rank(name: str, rows: int, columns: int, rank: int, down: str, up: str) -> tuple[WeightSpec, ...]:
    """The low-rank adapter of the matrix `name` [rows, columns], which `linear` then adds: `<name>.lora_down`
    [rank, columns] and `<name>.lora_up` [rows, rank], with the adapter's scale in it, read from the stored
    tensors `down` and `up`.
    """
    return (
        matrix(name + DOWN, rank, columns, "adapter", down),
        matrix(name + UP, rows, rank, "adapter", up),
    )


def _check_adapters(unit: str, weights: tuple[WeightSpec, ...]) -> None:
    """That low-rank adapters come whole and fit their matrices. Raises ExportError."""
    known = {spec.name: spec for spec in weights}
    for name, spec in known.items():
        of, suffix = next(((name.removesuffix(s), s) for s in (DOWN, UP) if name.endswith(s)), ("", ""))
        if (spec.role == "adapter") != bool(suffix):
            raise ExportError(
                f"{unit}: {name} has role {spec.role}; adapters are named ...{DOWN} and ...{UP}"
            )
        if not suffix:
            continue
        if of not in known or len(known[of].shape) != 2:
            raise ExportError(f"{unit}: {name} is the adapter of a matrix {of}, which is not there")
        _both(of, known.get(of + DOWN), known.get(of + UP), f"{unit}: ")
        down, up, (rows, columns) = known[of + DOWN].shape, known[of + UP].shape, known[of].shape
        if down != (up[1], columns) or up[0] != rows:
            raise ExportError(
                f"{unit}: the adapter of {of} [{rows}, {columns}] is {list(down)} and {list(up)}, "
                f"not [R, {columns}] and [{rows}, R]"
            )


def _both(name: str, down: object, up: object, where: str = "") -> None:
    if (down is None) != (up is None):
        here, lacks = (DOWN, UP) if up is None else (UP, DOWN)
        raise ExportError(f"{where}{name}{here} is there without {name}{lacks}: an adapter is both")


def stored_form(w: Weights, name: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The matrix `name` of `w` as operators take it: weight or codes, group scales, scales."""
    if name + ".weight" in w:
        return w[name + ".weight"], None, None
    return w[name + ".codes"], w.get(name + ".group_scales"), w[name + ".scales"]


def linear(x: Tensor, w: Weights, name: str, act_bits: int = 8) -> Tensor:
    """Apply the matrix `name` of `w` in whichever form it is present, with its bias and its low-rank adapter
    where there are such; see `LayerSpec.apply`.

    Raises:
        ExportError: there is half of an adapter.
    """
    weight, group_scales, scales = stored_form(w, name)
    down, up = w.get(f"{name}{DOWN}.weight"), w.get(f"{name}{UP}.weight")
    _both(name, down, up)
    adapter = () if down is None else (down, up, w.get(_FACTORS))
    bits = 16 if scales is None else act_bits
    return ops.linear(x, weight, group_scales, scales, w.get(name + ".bias"), bits, *adapter)


def heads(x: Tensor, count: int) -> Tensor:
    """[B, T, count * D] -> [B, count, T, D]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, count, T, D] -> [B, T, count * D]."""
    return x.transpose(1, 2).flatten(2)


def rotated(q: Tensor, k: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
    """Queries and keys at their positions."""
    q, k = (ops.rope(each, inputs.cos, inputs.sin) for each in (q, k))
    return q if inputs.query_scale is None else q * inputs.query_scale, k


def mlp(x: Tensor, w: Weights, prefix: str, kind: str) -> Tensor:
    """`down(act(gate x) * up x)`."""
    gated = ops.gated_act(linear(x, w, prefix + ".gate_proj"), linear(x, w, prefix + ".up_proj"), kind)
    return linear(gated, w, prefix + ".down_proj")


def route(
    logits: Tensor,
    k: int,
    *,
    score: str = "softmax",
    bias: Tensor | None = None,
    expert_scale: Tensor | None = None,
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    kept_groups: int = 1,
    capacity: int = 0,
    block: int = 0,
) -> tuple[Tensor, Tensor]:
    """See `ops.route`."""
    rule = k, score, normalize, scale, groups, kept_groups, capacity, block
    index, weight = ops.route(logits, bias, expert_scale, *rule)
    return index, weight


def mixture(x: Tensor, index: Tensor, weight: Tensor, w: Weights, kind: str) -> Tensor:
    """The expert mixture of `w` for tokens x [T, H]."""
    return ops.experts(
        x, index, weight, *stored_form(w, "experts.gate_up"), *stored_form(w, "experts.down"), kind
    )
