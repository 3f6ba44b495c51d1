"""Programs of the native format, run operator by operator in PyTorch. What an operator means is said in
`export/formats/native/lowering.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgekit.flashload.names import shown, unknown
from edgekit.runtime.engines.torch.matrix import Matrix
from edgekit.runtime.engines.torch.products import linear

#: Values of a program; positions of the pass are "t" in shapes.
_MOST_VALUES = 1 << 16
_MOST_RANK = 8


class WrongProgram(Exception):
    """A program that is not of the format, or does not fit its weights; says what is wrong with it."""


class Weights:
    """Float vectors and matrices of a run by name, as tensors on the engine's device."""

    def __init__(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
        self.tensors, self._shapes = tensors, shapes
        self._matrices: dict[str, Matrix] = {}

    def vector(self, name: str) -> Tensor:
        """A float vector. Raises WrongProgram."""
        found = self.tensors.get(name)
        if found is None or found.dtype != torch.float32 or found.ndim != 1:
            raise WrongProgram(f"takes {shown(name)}, which is no float vector among its weights")
        return found

    def matrix(self, name: str) -> Matrix:
        """A matrix, or a table for "table". Raises WrongProgram."""
        if name not in self._matrices:
            shape = self._shapes.get(name, ())
            if len(shape) != 2:
                raise WrongProgram(f"takes {shown(name)}, whose shape it does not say")
            try:
                own = "" if name == "table" else name
                self._matrices[name] = Matrix.of(self.tensors, own, (shape[0], shape[1]))
            except ValueError as error:
                raise WrongProgram(f"takes {shown(name)}: {error}") from None
        return self._matrices[name]


Values = dict[int, Tensor]
#: Of values, names of weights and attributes, all as the program has them; a list of what it makes.
Operator = Callable[[list[Any], list[Any], Mapping[str, Any], Weights], list[Tensor]]


class OpList:
    """A program of a manifest. It is split at its mixture of experts, if it has one: the experts are run by
    who streams their weights.
    """

    def __init__(self, entry: Any) -> None:
        """Raises WrongProgram."""
        if not isinstance(entry, Mapping):
            raise WrongProgram("is no object")
        self.inputs = [str(name) for name in _listed(entry, "inputs")]
        self.outputs: list[int] = [_value(entry, each) for each in _listed(entry, "outputs")]
        self.weights = {
            str(name): [_size(n) for n in shape] for name, shape in _object(entry, "weights").items()
        }
        self.ops = [_Op(entry, each) for each in _listed(entry, "ops")]
        mixtures = [i for i, op in enumerate(self.ops) if op.name == "experts"]
        if len(mixtures) > 1:
            raise WrongProgram("has several mixtures of experts")
        self.mixture = mixtures[0] if mixtures else None
        known = set(range(len(self.inputs)))
        for op in self.ops:
            if not known.issuperset(n for n in op.inputs if n is not None):
                raise WrongProgram(f"takes values in {op.name} that nothing has made")
            known |= set(op.outputs)
        if not known.issuperset(self.outputs):
            raise WrongProgram("gives values that nothing has made")

    @property
    def experts(self) -> _Op:
        """Its mixture."""
        assert self.mixture is not None, "the caller knows that it has one"
        return self.ops[self.mixture]

    def begin(self, inputs: Mapping[str, Tensor]) -> Values:
        """The values that it is given. Raises WrongProgram for one that is not there."""
        try:
            return {number: inputs[name] for number, name in enumerate(self.inputs)}
        except KeyError as error:
            raise WrongProgram(f"takes {error}, which is no input of a pass") from None

    def run(self, values: Values, weights: Weights, part: slice = slice(None)) -> None:
        """Adds what its operators, or a part of them, make."""
        for op in self.ops[part]:
            given = [None if n is None else values[n] for n in op.inputs]
            made = OPERATORS[op.name](given, op.weights, {**op.attributes, "t": values[0].shape[1]}, weights)
            values.update(zip(op.outputs, made, strict=True))


class _Op:
    def __init__(self, entry: Mapping[str, Any], given: Any) -> None:
        if not isinstance(given, Mapping):
            raise WrongProgram("has an operator that is no object")
        self.name = str(given.get("op"))
        if self.name not in OPERATORS and self.name != "experts":
            raise WrongProgram(f"has an {unknown('operator', self.name, OPERATORS)}")
        self.inputs = [None if n is None else _value(entry, n) for n in _listed(given, "in")]
        self.weights = [None if name is None else str(name) for name in _listed(given, "w")]
        self.outputs = [_value(entry, n) for n in _listed(given, "out")]
        self.attributes = {key: each for key, each in given.items() if key not in ("op", "in", "w", "out")}


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def activation(x: Tensor, kind: str) -> Tensor:
    """`silu`, or `gelu_tanh`."""
    if kind not in ("silu", "gelu_tanh"):
        raise WrongProgram(f"has an {unknown('activation', kind, ('silu', 'gelu_tanh'))}")
    return F.gelu(x, approximate="tanh") if kind == "gelu_tanh" else F.silu(x)


def _norm(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    return [_rms_norm(x[0], None if w[0] is None else own.vector(w[0]), float(a["eps"]))]


def _linear(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    y = linear(x[0], own.matrix(w[0]), a["act_bits"] == 8)
    if w[1] is not None:
        y = y + own.vector(w[1])
    y = y if x[1] is None else y + x[1]
    if not any(w[2:]):
        return [y]
    down, up = (own.matrix(name) for name in w[2:])
    if (down.columns, up.rows) != (x[0].shape[-1], y.shape[-1]):
        raise WrongProgram(f"takes {shown(w[2])} and {shown(w[3])}, which do not fit {shown(w[0])}")
    inner = linear(x[0], down, False)
    if len(x) > 2 and x[2] is not None:
        inner = inner * x[2]
    return [y + linear(inner, up, False)]


def _linear_gated(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    gate, up = (linear(x[0], own.matrix(name), True) for name in w)
    return [activation(gate, a["kind"]) * up]


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _attention(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    q, k, v, before_k, before_v, mask = x
    keys, values = torch.cat((before_k, k), 2), torch.cat((before_v, v), 2)
    y = F.scaled_dot_product_attention(
        q, keys, values, mask, scale=float(a["scale"]), enable_gqa=q.shape[1] != keys.shape[1]
    )
    return [y]


def _route(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    logits, (bias, expert_scale) = x[0], (None if name is None else own.vector(name) for name in w)
    if a["score"] not in ("softmax", "sigmoid"):
        raise WrongProgram(f"has an {unknown('score', a['score'], ('softmax', 'sigmoid'))}")
    probability = torch.softmax(logits, -1) if a["score"] == "softmax" else torch.sigmoid(logits)
    wanted = probability if bias is None else probability + bias
    if a["groups"] > 1:
        of_group = wanted.unflatten(-1, (a["groups"], -1))
        best = of_group.sort(-1, descending=True).values[..., :2].sum(-1)
        wanted = of_group.masked_fill(~_largest(best, a["kept_groups"])[..., None], -torch.inf).flatten(1)
    if a["capacity"]:
        blocks = wanted.split(a["block"])
        pools = [_largest(each.amax(0), a["capacity"]).expand_as(each) for each in blocks]
        wanted = wanted.masked_fill(~torch.cat(pools), -torch.inf)
    index = _order(wanted)[:, : a["k"]]
    weight = probability.gather(-1, index)
    if a["normalize"]:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    weight = weight * float(a["scale"])
    return [index, weight if expert_scale is None else weight * expert_scale[index]]


def _order(x: Tensor) -> Tensor:
    """Places from the largest on, of equal ones the first."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices


def _largest(x: Tensor, count: int) -> Tensor:
    """Where the `count` largest of the last axis are."""
    index = _order(x)[..., :count]
    return torch.zeros_like(x, dtype=torch.bool).scatter(-1, index, True)


def _view(x: list[Any], w: list[Any], a: Mapping[str, Any], own: Weights) -> list[Tensor]:
    shape = [a["t"] if n == "t" else _size(n) for n in a["shape"]]
    if len(shape) > _MOST_RANK:
        raise WrongProgram(f"has a view of {len(shape)} axes")
    return [x[0].reshape(shape)]


#: All but `experts`.
OPERATORS: dict[str, Operator] = {
    "rms_norm": _norm,
    "linear": _linear,
    "linear_gated": _linear_gated,
    "gated_act": lambda x, w, a, own: [activation(x[0], a["kind"]) * x[1]],
    "rope": lambda x, w, a, own: [_rope(x[0], x[1], x[2])],
    "attention": _attention,
    "add": lambda x, w, a, own: [x[0] + x[1]],
    "mul": lambda x, w, a, own: [x[0] * x[1]],
    "scale": lambda x, w, a, own: [x[0] * float(a["by"])],
    "route": _route,
    "select": lambda x, w, a, own: [own.vector(w[0])[x[0]]],
    "view": _view,
    "transpose": lambda x, w, a, own: [x[0].transpose(*a["axes"])],
    "vocab_head": lambda x, w, a, own: [_scores(x[0], own.matrix(w[0]), float(a["softcap"]))],
}


def _scores(x: Tensor, table: Matrix, softcap: float) -> Tensor:
    z = linear(x, table, rounds=True)
    return softcap * torch.tanh(z / softcap) if softcap > 0 else z


def _listed(given: Mapping[str, Any], name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list):
        raise WrongProgram(f"has no list {name}")
    return found


def _object(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name)
    if not isinstance(found, Mapping):
        raise WrongProgram(f"has no {name}")
    return found


def _value(entry: Mapping[str, Any], given: Any) -> int:
    most = entry.get("values")
    if type(most) is not int or not 0 < most <= _MOST_VALUES:
        raise WrongProgram(f"says that it has {shown(most)} values")
    if type(given) is not int or not 0 <= given < most:
        raise WrongProgram(f"names value {shown(given)} of {most}")
    return given


def _size(given: Any) -> int:
    if type(given) is not int or not 0 < given < 2**31:
        raise WrongProgram(f"has the size {shown(given)}")
    return given
