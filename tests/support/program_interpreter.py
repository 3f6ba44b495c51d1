"""Runs the op lists of a native bundle in numpy: the oracle of lowering and of the native core.

Written from the description of the ops in `edgekit.export.formats.native.lowering` alone; every product and
sum is taken in float64 and rounded once, so that what is left is the error of the engine under test.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.formats.native import layout as native_layout
from edgekit.export.ops import dequantize
from edgekit.flashload.reader import FlashFile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Weights:
    """Float32 weights by the names of an entry (of an expert: `gate_up`, `down`); matrices are [N, K].
    `quantized` are the names of those stored in 4 or 8 bits.
    """

    values: Mapping[str, Array]
    quantized: Collection[str] = ()


class Interpreter:
    """`rounding` rounds activations to int8 where the native core does: before quantized matrices, unless
    the op's act_bits is 16.
    """

    def __init__(self, entry: Mapping[str, Any], rounding: bool = False) -> None:
        self.entry, self.rounding = entry, rounding

    def run(
        self, inputs: Mapping[str, Array], weights: Weights, experts: Sequence[Weights] = ()
    ) -> list[Array]:
        """The outputs of the entry. Inputs by name, float32 but `phase`."""
        self.weights, self.experts = weights, experts
        self.positions = next(iter(inputs.values())).shape[1]
        values: dict[int, Array] = {i: inputs[name] for i, name in enumerate(self.entry["inputs"])}
        for op in self.entry["ops"]:
            arguments = [None if v is None else values[v] for v in op["in"]]
            made = getattr(self, "_" + op["op"])(op, *arguments)
            made = made if isinstance(made, tuple) else (made,)
            for number, value in zip(op["out"], made, strict=True):
                assert number not in values, f"value {number} is made twice"
                values[number] = value
        assert len(values) == self.entry["values"]
        return [values[v] for v in self.entry["outputs"]]

    # --- products ----------------------------------------------------------------------------------------

    def _product(self, x: Array, weights: Weights, name: str, act_bits: int) -> Array:
        if self.rounding and act_bits == 8 and name in weights.quantized:
            x = round_rows(x)
        return (x.astype(np.float64) @ weights.values[name].T.astype(np.float64)).astype(np.float32)

    def _linear(
        self, op: Mapping[str, Any], x: Array, residual: Array | None, factors: Array | None = None
    ) -> Array:
        matrix, bias, *adapter = op["w"]
        y = self._product(x, self.weights, matrix, op["act_bits"])
        if bias is not None:
            y = y + self.weights.values[bias]
        if residual is not None:
            y = y + residual
        if adapter:
            down, up = (self.weights.values[name].T.astype(np.float64) for name in adapter)
            inner = x @ down
            y = y + ((inner if factors is None else inner * factors) @ up).astype(np.float32)
        return y

    def _linear_gated(self, op: Mapping[str, Any], x: Array) -> Array:
        gate, up = (self._product(x, self.weights, name, 8) for name in op["w"])
        return gated(gate, up, op["kind"])

    def _experts(self, op: Mapping[str, Any], x: Array, index: Array, weight: Array) -> Array:
        assert op["w"] == ["experts.gate_up", "experts.down"] and op["experts"] == len(self.experts)
        y = np.zeros_like(x)
        for e, own in enumerate(self.experts):
            token, slot = np.nonzero(index == e)
            gate, up = np.split(self._product(x[token], own, "gate_up", 8), 2, axis=-1)
            out = self._product(gated(gate, up, op["kind"]), own, "down", 8)
            y[token] += out * weight[token, slot, None]
        return y

    def _vocab_head(self, op: Mapping[str, Any], x: Array) -> Array:
        z = self._product(x, self.weights, op["w"][0], 8)
        cap = np.float32(op["softcap"])
        return cap * np.tanh(z / cap) if cap > 0 else z

    # --- the rest ----------------------------------------------------------------------------------------

    def _rms_norm(self, op: Mapping[str, Any], x: Array) -> Array:
        wide = x.astype(np.float64)
        y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + op["eps"])
        name = op["w"][0]
        return (y if name is None else y * self.weights.values[name]).astype(np.float32)

    def _gated_act(self, op: Mapping[str, Any], gate: Array, up: Array) -> Array:
        return gated(gate, up, op["kind"])

    def _rope(self, op: Mapping[str, Any], x: Array, cos: Array, sin: Array) -> Array:
        half = cos.shape[-1]
        y = x.copy()
        y[..., :half] = x[..., :half] * cos - x[..., half : 2 * half] * sin
        y[..., half : 2 * half] = x[..., half : 2 * half] * cos + x[..., :half] * sin
        return y

    def _attention(
        self,
        op: Mapping[str, Any],
        q: Array,
        k: Array,
        v: Array,
        prefix_k: Array,
        prefix_v: Array,
        mask: Array | None,
    ) -> Array:
        shared = q.shape[1] // k.shape[1]
        keys, values = (
            np.repeat(np.concatenate(pair, 2), shared, 1).astype(np.float64)
            for pair in ((prefix_k, k), (prefix_v, v))
        )
        scores = q.astype(np.float64) @ keys.swapaxes(2, 3) * op["scale"]
        return (softmax(scores if mask is None else scores + mask) @ values).astype(np.float32)

    def _add(self, op: Mapping[str, Any], a: Array, b: Array) -> Array:
        return a + b

    def _mul(self, op: Mapping[str, Any], a: Array, b: Array) -> Array:
        return a * b

    def _scale(self, op: Mapping[str, Any], x: Array) -> Array:
        return x * np.float32(op["by"])

    def _route(self, op: Mapping[str, Any], logits: Array) -> tuple[Array, Array]:
        bias, own = (None if name is None else self.weights.values[name] for name in op["w"])
        return routed(logits, bias, own, op)

    def _select(self, op: Mapping[str, Any], index: Array) -> Array:
        return self.weights.values[op["w"][0]][index]

    def _view(self, op: Mapping[str, Any], x: Array) -> Array:
        return x.reshape([self.positions if n == "t" else n for n in op["shape"]])

    def _transpose(self, op: Mapping[str, Any], x: Array) -> Array:
        return x.swapaxes(*op["axes"])


def round_rows(x: Array) -> Array:
    """x as int8 codes with one scale per row give it back: code = rint(x * (127 / max|x|)) in float32."""
    top = np.abs(x).max(-1, keepdims=True)
    step = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    return np.rint(x * step) * (top / np.float32(127))


def gated(gate: Array, up: Array, kind: str) -> Array:
    """silu(gate) * up, or with the tanh approximation of GELU."""
    wide = gate.astype(np.float64)
    if kind == "gelu_tanh":
        act = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    else:
        assert kind == "silu"
        act = wide / (1 + np.exp(-wide))
    return act.astype(np.float32) * up


def routed(
    logits: Array, bias: Array | None, expert_scale: Array | None, rule: Mapping[str, Any]
) -> tuple[Array, Array]:
    """`edgekit.export.ops.route` by rows, in plain loops; of equally wanted experts the first."""
    wide = logits.astype(np.float64)
    p = softmax(wide) if rule["score"] == "softmax" else 1 / (1 + np.exp(-wide))
    p = p.astype(np.float32)
    wanted = p if bias is None else p + bias
    rows, experts = wanted.shape
    index = np.zeros((rows, rule["k"]), np.int64)
    for row in range(rows):
        allowed = set(range(experts))
        if rule["groups"] > 1:
            parts = np.split(np.arange(experts), rule["groups"])
            sums = [-sum(sorted(wanted[row, part])[-2:]) for part in parts]
            kept = np.argsort(sums, kind="stable")[: rule["kept_groups"]]
            allowed = {int(e) for group in kept for e in parts[group]}
        if rule["capacity"]:
            first = row // rule["block"] * rule["block"]
            most = wanted[first : first + rule["block"]].max(0)
            allowed &= {int(e) for e in np.argsort(-most, kind="stable")[: rule["capacity"]]}
        order = [int(e) for e in np.argsort(-wanted[row], kind="stable") if int(e) in allowed]
        index[row] = order[: rule["k"]]
    weight = np.take_along_axis(p, index, -1).astype(np.float64)
    if rule["normalize"]:
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20)
    weight = weight * rule["scale"] * (1.0 if expert_scale is None else expert_scale[index])
    return index, weight.astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- weights of a bundle ------------------------------------------------------------------------------------


def stored_tensors(file: FlashFile, run: str) -> dict[str, dict[str, Array]]:
    """Copies of a run's tensors: matrix name -> suffix -> array; a float vector has the suffix ""."""
    buffer, views = file.load(run)
    found: dict[str, dict[str, Array]] = {}
    for name, view in views.items():
        short = name.removeprefix(run + ".")
        # In a table's run the table has no name of its own: its tensors are those of "".
        stem, _, suffix = short.rpartition(".")
        # Of the tensors called weight, norms are float32 vectors and matrices bfloat16, here uint16.
        if suffix in ("codes", "packed", "group_scales", "scales") or view.dtype == np.uint16:
            found.setdefault(stem, {})[suffix] = view.copy()
        else:
            found[short] = {"": view.copy()}
    del views, view
    buffer.close()
    return found


def run_weights(file: FlashFile, run: str, shapes: Mapping[str, Sequence[int]]) -> Weights:
    """The weights of a run, read back from their stored form. `shapes` as in an entry's `weights`."""
    values: dict[str, Array] = {}
    quantized = []
    for name, tensors in stored_tensors(file, run).items():
        if "" in tensors:
            values[name] = tensors[""]
            continue
        weight, groups, scales = native_layout.canonical(tensors, tuple(shapes[name]))
        values[name] = dequantize(weight, groups, scales).numpy()
        if scales is not None:
            quantized.append(name)
    return Weights(values, quantized)


class BundleInterpreter:
    """All layers of a native bundle; weights are read when they are used."""

    def __init__(self, bundle: Path, rounding: bool = False) -> None:
        from edgekit.runtime.bundle import Bundle

        self.bundle, self.rounding = Bundle.open(bundle), rounding
        self.file = self.bundle.open_weights()
        self.entries = self.bundle.manifest.programs["entries"]

    def __enter__(self) -> BundleInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def run(
        self, program: str, run: str, inputs: Mapping[str, Array], experts: Sequence[str] = ()
    ) -> list[Array]:
        """The outputs of a program on the weights of a run."""
        entry = self.entries[program]
        shapes = entry["weights"]
        own = {n.removeprefix("experts."): s for n, s in shapes.items()}
        mixture = [run_weights(self.file, e, own) for e in experts]
        return Interpreter(entry, self.rounding).run(inputs, run_weights(self.file, run, shapes), mixture)

    def layers(
        self, x: Array, prefix: Sequence[tuple[Array, Array]] | None = None, phase: int = 0
    ) -> Iterator[tuple[Array, Array, Array]]:
        """(y, k, v) of every layer for x [1, T, H] after a prefix, of which every layer sees all."""
        model = self.bundle.model
        for i, layer in enumerate(model.layers):
            empty = np.zeros((1, layer.kv_heads, 0, layer.head_dim), np.float32)
            keys, values = (empty, empty) if prefix is None else prefix[i]
            seen, length = keys.shape[2], x.shape[1]
            tables = model.ropes[layer.rope].tables(np.arange(seen, seen + length))
            inputs = {
                "x": x, "prefix_k": keys, "prefix_v": values, **tables,
                "mask": np.zeros((length, seen + length), np.float32), "phase": np.array([phase]),
            }  # fmt: skip
            y, k, v = self.run(layer.program, layer.run, inputs, layer.experts)
            yield y, k, v
            x = y
