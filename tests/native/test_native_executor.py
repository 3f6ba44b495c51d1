"""The native executor: every program of exported bundles, random op lists and refused ones, against numpy."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint
from support.native_programs import NativeProgram, ProgramRefused, stored_run
from support.native_testing import library
from support.program_interpreter import BundleInterpreter, Interpreter, Weights
from test_native_export import CASES

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.reference import MASKED

MALFORMED, UNSUPPORTED = 9, 11
T, P = 6, 9


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def interpreter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BundleInterpreter]:
    """An exported bundle in the numpy oracle, which rounds activations where the core does."""
    family, scheme, overrides = CASES[request.param]
    folder = tmp_path_factory.mktemp("executor")
    write_checkpoint(folder / "checkpoint", family, **overrides)
    options = ExportOptions("native", scheme=scheme, tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    with BundleInterpreter(folder / "bundle", rounding=True) as opened:
        yield opened


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def layer_inputs(layer: Any, hidden: int, rng: np.random.Generator, prefix: int, masked: bool) -> Any:
    angle = np.arange(prefix, prefix + T, dtype=np.float32)[:, None] * np.float32(0.3) ** np.arange(
        layer.head_dim // 2, dtype=np.float32
    )
    mask = np.where(rng.random((T, prefix + T)) < 0.3, np.float32(MASKED), np.float32(0))
    mask[np.arange(T), prefix + np.arange(T)] = 0
    return {
        "x": 3 * random(rng, 1, T, hidden),
        "prefix_k": random(rng, 1, layer.kv_heads, prefix, layer.head_dim),
        "prefix_v": random(rng, 1, layer.kv_heads, prefix, layer.head_dim),
        "cos": np.cos(angle),
        "sin": np.sin(angle),
        "mask": mask if masked else np.zeros_like(mask),
        "phase": np.array([1 if masked else 0]),
    }


def assert_close(found: np.ndarray | None, expected: np.ndarray, what: str) -> None:
    """Positions agree to the last digits, but for those where a rounding to int8 fell the other way."""
    assert found is not None and found.shape == expected.shape, what
    rows = np.abs(found - expected).reshape(-1, expected.shape[-1]).max(-1) / np.abs(expected).max()
    assert np.median(rows) < 1e-5 and rows.max() < 2e-2, f"{what}: errors by row {rows}"


@pytest.mark.parametrize(("prefix", "masked"), [(0, False), (P, False), (P, True)])
def test_every_layer_equals_the_oracle(
    interpreter: BundleInterpreter, rng: np.random.Generator, prefix: int, masked: bool
) -> None:
    model = interpreter.bundle.model
    for i, layer in enumerate(model.layers):
        entry = interpreter.entries[layer.program]
        inputs = layer_inputs(layer, model.hidden_size, rng, prefix, masked and "mask" in entry["inputs"])
        expected = interpreter.run(layer.program, layer.run, inputs, layer.experts)
        program = NativeProgram(
            entry,
            stored_run(interpreter.file, layer.run),
            [stored_run(interpreter.file, e) for e in layer.experts],
            layer.kv_heads,
            layer.head_dim,
        )
        given = inputs if masked else {n: v for n, v in inputs.items() if n != "mask"}
        first = program.run(given)
        for name, a, b in zip("ykv", (first.y, first.k, first.v), expected, strict=True):
            assert_close(a, b, f"{name} of layer {i}")
        # Bit for bit the same however it is run.
        for options in (
            {"threads": 2}, {"threads": 3, "reverse": True, "batch": 1}, {"in_place": True, "kv": False},
            {"threads": 2, "batch": 2},
        ):  # fmt: skip
            again = program.run(given, **options)
            np.testing.assert_array_equal(again.y, first.y, err_msg=f"layer {i} with {options}")
            if again.k is not None:
                np.testing.assert_array_equal(again.k, first.k)
                np.testing.assert_array_equal(again.v, first.v)


def test_what_surrounds_the_layers_equals_the_oracle(
    interpreter: BundleInterpreter, rng: np.random.Generator
) -> None:
    hidden = interpreter.bundle.model.hidden_size
    inputs = {"final": {"x": random(rng, 1, T, hidden)}}
    if interpreter.bundle.model.self_conditioning:
        inputs["self_conditioning"] = {
            "embedded": random(rng, 1, T, hidden), "soft": random(rng, 1, T, hidden),
        }  # fmt: skip
    for name, own in inputs.items():
        [expected] = interpreter.run(name, name, own)
        program = NativeProgram(interpreter.entries[name], stored_run(interpreter.file, name))
        for in_place in (False, True):
            assert_close(program.run(own, in_place=in_place, threads=2).y, expected, name)


# --- random op lists ----------------------------------------------------------------------------------------

#: More than one panel of a matrix, and not a multiple of one.
HEADS, WIDTH = 3, 24
HIDDEN = HEADS * WIDTH
FLAT, SPLIT = (1, "t", HIDDEN), (1, "t", HEADS, WIDTH)
SWAPPED, STACKED = (1, HEADS, "t", WIDTH), (HEADS, "t", WIDTH)


#: A rule of routing without inputs and outputs.
ROUTE: dict[str, Any] = {
    "op": "route", "w": [None, None], "k": 2, "score": "softmax", "normalize": True, "scale": 1.0,
    "groups": 1, "kept_groups": 1, "capacity": 0, "block": 0,
}  # fmt: skip


class Lists:
    """Builds an op list from drawn choices; every op reads values that are there."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.shapes: list[tuple[Any, ...]] = [FLAT]
        self.indices: set[int] = set()
        self.ops: list[dict[str, Any]] = []
        self.weights: dict[str, list[int]] = {}

    def pick(self, *shapes: tuple[Any, ...]) -> int:
        floats = [i for i in range(len(self.shapes)) if i not in self.indices]
        fitting = [i for i in floats if not shapes or self.shapes[i] in shapes]
        # Mostly late ones, so that chains are long.
        return fitting[-1 - self.data.draw(st.integers(0, min(2, len(fitting) - 1)))]

    def emit(self, op: str, read: list[int | None], made: tuple[Any, ...], w: Any = (), **more: Any) -> int:
        number = len(self.shapes)
        self.shapes.append(made)
        self.ops.append({"op": op, "in": read, "w": list(w), "out": [number], **more})
        return number

    def vector(self, size: int) -> str:
        name = f"v{len(self.weights)}"
        self.weights[name] = [size]
        return name

    def matrix(self, rows: int, columns: int) -> str:
        name = f"m{len(self.weights)}"
        self.weights[name] = [rows, columns]
        return name

    def step(self) -> None:
        kind = self.data.draw(st.sampled_from(sorted(k for k in dir(self) if k.startswith("add_"))))
        getattr(self, kind)()

    def add_norm(self) -> None:
        x = self.pick()
        vector = self.vector(self.shapes[x][-1]) if self.data.draw(st.booleans()) else None
        self.emit("rms_norm", [x], self.shapes[x], [vector], eps=1e-6)

    def add_scale(self) -> None:
        x = self.pick()
        self.emit("scale", [x], self.shapes[x], by=0.75)

    def add_gate(self) -> None:
        x = self.pick()
        y = self.pick(self.shapes[x])
        kind = self.data.draw(st.sampled_from(["silu", "gelu_tanh"]))
        self.emit("gated_act", [x, y], self.shapes[x], kind=kind)

    def add_sum(self) -> None:
        a = self.pick()
        b = self.pick(self.shapes[a])
        self.emit(self.data.draw(st.sampled_from(["add", "mul"])), [a, b], self.shapes[a])

    def add_broadcast(self) -> None:
        a = self.pick(FLAT, SPLIT, SWAPPED)
        shape = self.shapes[a]
        column = self.emit(
            "linear", [a, None], (*shape[:-1], 1), [self.matrix(1, shape[-1]), None], act_bits=16
        )
        both = [a, column] if self.data.draw(st.booleans()) else [column, a]
        self.emit(self.data.draw(st.sampled_from(["mul", "add"])), both, shape)

    def add_linear(self) -> None:
        x = self.pick(FLAT, SPLIT, SWAPPED, STACKED)
        shape = self.shapes[x]
        width = shape[-1]
        residual = self.pick(shape) if self.data.draw(st.booleans()) else None
        bias = self.vector(width) if self.data.draw(st.booleans()) else None
        weights = [self.matrix(width, width), bias]
        if rank := self.data.draw(st.sampled_from([0, 0, 1, 3, 70])):
            weights += [self.matrix(rank, width), self.matrix(width, rank)]
        self.emit("linear", [x, residual], shape, weights, act_bits=8)

    def add_gated_linear(self) -> None:
        x = self.pick(FLAT)
        weights = [self.matrix(HIDDEN, HIDDEN), self.matrix(HIDDEN, HIDDEN)]
        self.emit("linear_gated", [x], FLAT, weights, kind="silu")

    def add_view(self) -> None:
        x = self.pick(FLAT, SPLIT, SWAPPED, STACKED)
        shape = {FLAT: SPLIT, SPLIT: FLAT, SWAPPED: STACKED, STACKED: SWAPPED}[self.shapes[x]]
        self.emit("view", [x], shape, shape=list(shape))

    def add_transpose(self) -> None:
        x = self.pick(SPLIT, SWAPPED) if {SPLIT, SWAPPED} & set(self.shapes) else None
        if x is None:
            return self.add_view()
        axes = self.data.draw(st.sampled_from([[1, 2], [2, 1], [-3, -2]]))
        self.emit("transpose", [x], SWAPPED if self.shapes[x] == SPLIT else SPLIT, axes=axes)
        return None

    def add_routing(self) -> None:
        """Of all experts: their sorted weights are as wide as a row."""
        x = self.emit("view", [self.pick(FLAT)], ("t", HIDDEN), shape=["t", HIDDEN])
        rule = ROUTE | {
            "k": HIDDEN, "scale": 1.5, "score": self.data.draw(st.sampled_from(["softmax", "sigmoid"])),
            "normalize": self.data.draw(st.booleans()),
        }  # fmt: skip
        index = self.emit(rule.pop("op"), [x], ("t", HIDDEN), **rule)
        self.shapes.append(("t", HIDDEN))
        self.indices.add(index)
        self.ops[-1]["out"].append(index + 1)
        self.emit("view", [index + 1], FLAT, shape=list(FLAT))

    def entry(self) -> dict[str, Any]:
        """The list, with an output to which the last values of every shape contribute."""
        last = {s: i for i, s in enumerate(self.shapes) if i not in self.indices}
        parts = [last[FLAT]]
        for shape in (SPLIT, SWAPPED, STACKED):
            if shape in last:
                value = last[shape]
                if shape == STACKED:
                    value = self.emit("view", [value], SWAPPED, shape=list(SWAPPED))
                if shape != SPLIT:
                    value = self.emit("transpose", [value], SPLIT, axes=[1, 2])
                parts.append(self.emit("view", [value], FLAT, shape=list(FLAT)))
        total = parts[0]
        for part in parts[1:]:
            total = self.emit("add", [total, part], FLAT)
        return {
            "inputs": ["x"], "outputs": [total], "weights": self.weights, "values": len(self.shapes),
            "ops": self.ops,
        }  # fmt: skip


def random_weights(shapes: dict[str, list[int]], rng: np.random.Generator) -> tuple[Any, Weights]:
    """Float vectors and bfloat16 matrices, as stored and as the oracle takes them."""
    stored, values = {}, {}
    for name, shape in shapes.items():
        value = random(rng, *shape) / np.float32(shape[-1] ** 0.5 if len(shape) == 2 else 1)
        if len(shape) == 1:
            stored[name] = ("F32", value)
        else:
            bits = (value.view(np.uint32) >> 16).astype(np.uint16)
            stored[name + ".weight"] = ("BF16", bits)
            value = (bits.astype(np.uint32) << 16).view(np.float32)
        values[name] = value
    return stored, Weights(values)


@settings(max_examples=150)
@given(data=st.data(), steps=st.integers(1, 14), positions=st.integers(1, 5), seed=st.integers(0, 999))
def test_random_op_lists_equal_the_oracle(data: st.DataObject, steps: int, positions: int, seed: int) -> None:
    """Views, transposes, results that overwrite their operands and memory that is used again must leave no
    trace in the values.
    """
    lists = Lists(data)
    for _ in range(steps):
        lists.step()
    entry = lists.entry()
    rng = np.random.default_rng(seed)
    stored, weights = random_weights(lists.weights, rng)
    x = random(rng, 1, positions, HIDDEN)
    [expected] = Interpreter(entry).run({"x": x}, weights)
    for in_place in (False, True):
        found = NativeProgram(entry, stored).run({"x": x}, threads=2, in_place=in_place).y
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * scale, err_msg=str(entry["ops"]))


def test_experts_are_added_in_ascending_order() -> None:
    """1e8 and -1e8 times the same vector cancel before the third is added, and would swallow it in the order
    in which they are wanted.
    """
    ops = [
        {"op": "view", "in": [0], "out": [1], "shape": ["t", HIDDEN]},
        {"op": "linear", "in": [1, None], "w": ["router", None], "out": [2], "act_bits": 16},
        ROUTE | {"in": [2], "w": ["order", "each"], "out": [3, 4], "k": 3, "score": "sigmoid"},
        {"op": "experts", "in": [1, 3, 4], "w": ["experts.gate_up", "experts.down"], "out": [5],
         "kind": "silu", "experts": 3},
        {"op": "view", "in": [5], "out": [6], "shape": [1, "t", HIDDEN]},
    ]  # fmt: skip
    shapes = {"router": [3, HIDDEN], "each": [3], "order": [3]}
    expert = {"gate_up": [32, HIDDEN], "down": [HIDDEN, 16]}
    entry = {
        "inputs": ["x"], "outputs": [6], "weights": shapes | {"experts." + n: s for n, s in expert.items()},
        "values": 7, "ops": ops,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    weights, experts = random_weights(shapes, rng)[0], [random_weights(expert, rng)[0]] * 3
    x = {"x": random(rng, 1, 9, HIDDEN)}
    weights["router.weight"] = ("BF16", np.zeros((3, HIDDEN), np.uint16))
    weights["order"] = ("F32", np.array([0, 2, 1], np.float32))
    found = []
    for each in ([1e8, -1e8, 1], [0, 0, 1]):
        program = NativeProgram(entry, weights | {"each": ("F32", np.array(each, np.float32))}, experts)
        found += [program.run(x, threads=2).y, program.run(x, reverse=True, batch=2).y]
    assert np.abs(found[0]).max() > 0.01
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_scratch_memory_is_shared_by_values_that_do_not_live_together() -> None:
    """A chain as long as one likes needs the memory of two links."""

    def chain(links: int) -> int:
        ops, weights = [], {}
        for i in range(links):
            weights[f"m{i}"] = [HIDDEN, HIDDEN]
            ops.append({"op": "linear", "in": [i, None], "w": [f"m{i}", None], "out": [i + 1], "act_bits": 8})
        entry = {
            "inputs": ["x"], "outputs": [links], "weights": weights, "values": links + 1, "ops": ops,
        }  # fmt: skip
        stored, _ = random_weights(weights, np.random.default_rng(0))
        return NativeProgram(entry, stored).run({"x": np.ones((1, 64, HIDDEN), np.float32)}).scratch_bytes

    assert chain(12) == chain(3)


# --- refused programs ---------------------------------------------------------------------------------------

VIEW = {"op": "view", "in": [0], "out": [1], "shape": ["t", HIDDEN]}


def routed(**wrong: Any) -> dict[str, Any]:
    """An entry that routes by a row of hidden states."""
    return {
        "ops": [VIEW, ROUTE | {"in": [1], "out": [2, 3]} | wrong], "values": 4,
        "weights": {"v": [HIDDEN], "s": [3]},
    }  # fmt: skip


NORM = {"op": "rms_norm", "in": [0], "w": [None], "out": [1], "eps": 1e-6}
LINEAR = {"op": "linear", "in": [0, None], "w": ["m", None], "out": [1], "act_bits": 8}
ENTRY = {
    "inputs": ["x"], "outputs": [1], "weights": {"m": [HIDDEN, HIDDEN], "v": [HIDDEN]}, "values": 2,
}  # fmt: skip

#: What is wrong: changes of an op, changes of the entry, status, words of the message.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "unknown op": (NORM | {"op": "conv"}, {}, UNSUPPORTED, "does not know the op conv"),
    "unknown input": (NORM, {"inputs": ["pixels"]}, UNSUPPORTED, "input pixels"),
    "input twice": (NORM, {"inputs": ["x", "x"], "values": 3}, MALFORMED, "twice"),
    "reference out of range": (NORM | {"in": [7]}, {}, MALFORMED, "value 7 of 2"),
    "negative reference": (NORM | {"in": [-1]}, {}, MALFORMED, "value -1"),
    "reads what is not made": (NORM | {"in": [1]}, {}, MALFORMED, "before it is made"),
    "makes an input": (NORM | {"out": [0]}, {}, MALFORMED, "exists already"),
    "no output": (NORM | {"out": []}, {}, MALFORMED, "0 outputs"),
    "output never made": (NORM, {"outputs": [2], "values": 3}, MALFORMED, "never makes its output"),
    "two outputs": (NORM, {"outputs": [1, 1]}, MALFORMED, "2 outputs"),
    "no eps": ({k: v for k, v in NORM.items() if k != "eps"}, {}, MALFORMED, "eps"),
    "eps not a number": (NORM | {"eps": "small"}, {}, MALFORMED, ""),
    "eps out of range": (NORM | {"eps": 1e300}, {}, MALFORMED, "finite"),
    "norm of another width": (NORM | {"w": ["v"]}, {"weights": {"v": [3]}}, MALFORMED, "3 values, not 72"),
    "unlisted weight": (NORM | {"w": ["q"]}, {}, MALFORMED, "weight q"),
    "matrix for a vector": (LINEAR | {"w": ["v", None]}, {}, MALFORMED, "not listed as a matrix"),
    "matrix of another width": (LINEAR, {"weights": {"m": [HIDDEN, 8]}}, MALFORMED, "8 columns for rows"),
    "odd rounding": (LINEAR | {"act_bits": 12}, {}, MALFORMED, "act_bits is 12"),
    "no matrix": (LINEAR | {"w": [None, None]}, {}, MALFORMED, "needs weight 0"),
    "huge weight": (LINEAR, {"weights": {"m": [2**31, 2**31]}}, MALFORMED, "length"),
    "view of another size": (
        {"op": "view", "in": [0], "out": [1], "shape": [1, "t", 7]}, {}, MALFORMED, "as [1, t, 7]",
    ),
    "view without positions": (
        {"op": "view", "in": [0], "out": [1], "shape": [1, 6, HIDDEN]}, {}, MALFORMED, "shows",
    ),
    "view with another letter": (
        {"op": "view", "in": [0], "out": [1], "shape": [1, "s", HIDDEN]}, {}, MALFORMED, "neither",
    ),
    "too many axes": (
        {"op": "view", "in": [0], "out": [1], "shape": [1, 1, 1, "t", HIDDEN]}, {}, UNSUPPORTED, "5 axes",
    ),
    "axis beyond rank": (
        {"op": "transpose", "in": [0], "out": [1], "axes": [1, 3]}, {}, MALFORMED, "lacks",
    ),
    "output of another shape": (
        {"op": "view", "in": [0], "out": [1], "shape": ["t", HIDDEN]}, {}, MALFORMED, "output 0 has shape",
    ),
    "too many values": (NORM, {"values": 10**9}, MALFORMED, "values"),
    "routing of too many": (NORM, routed(k=73), MALFORMED, "k is 73"),
    "routing of none": (NORM, routed(k=0), MALFORMED, "k is 0"),
    "unequal groups": (NORM, routed(groups=5), MALFORMED, "5 groups of 72 experts"),
    "groups of one": (NORM, routed(groups=72), MALFORMED, "72 groups of 72 experts"),
    "more than all groups": (NORM, routed(groups=4, kept_groups=5), MALFORMED, "kept_groups is 5"),
    "more than groups have": (NORM, routed(groups=4, k=19), MALFORMED, "k is 19, not 1..18"),
    "more than the capacity": (NORM, routed(capacity=3, block=8, k=4), MALFORMED, "k is 4, not 1..3"),
    "a capacity of no block": (NORM, routed(capacity=3), MALFORMED, "block is 0"),
    "groups and a capacity": (NORM, routed(groups=4, capacity=8, block=8), MALFORMED, "has groups and a"),
    "an unknown score": (NORM, routed(score="relu"), UNSUPPORTED, "does not know the score relu"),
    "a score that is none": (NORM, routed(score=3), MALFORMED, ""),
    "a bias of other experts": (NORM, routed(w=["s", None]), MALFORMED, "s has"),
    "routing by a canvas": (ROUTE | {"in": [0], "out": [1, 2]}, {"values": 3}, MALFORMED, "logits of shape"),
    "rope without tables": (
        {"op": "rope", "in": [0, 0, 0], "out": [1]}, {}, MALFORMED, "not [1, heads, t, width]",
    ),
    "select by floats": (
        {"op": "select", "in": [0], "w": ["v"], "out": [1]}, {}, MALFORMED, "indices",
    ),
    "attention without a prefix": (
        {"op": "attention", "in": [0, 0, 0, 0, 0, None], "out": [1], "scale": 1.0}, {}, MALFORMED, "not fit",
    ),
    "experts without weights": (
        {"op": "experts", "in": [0, 0, 0], "w": ["experts.gate_up", "experts.down"], "out": [1],
         "kind": "silu", "experts": 2}, {}, MALFORMED, "experts.gate_up",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c.replace(" ", "-"))
def test_wrong_programs_are_refused(case: str) -> None:
    op, changes, status, words = REFUSED[case]
    entry = copy.deepcopy(ENTRY) | {"ops": [op]} | changes
    stored, _ = random_weights({"m": [HIDDEN, HIDDEN], "v": [HIDDEN]}, np.random.default_rng(0))
    with pytest.raises(ProgramRefused) as refused:
        NativeProgram(entry, stored).run({"x": np.ones((1, 2, HIDDEN), np.float32)})
    assert refused.value.status == status and words in str(refused.value), refused.value


def test_weights_that_do_not_fit_are_refused() -> None:
    entry = ENTRY | {"ops": [LINEAR | {"w": ["m", "v"]}]}
    rng = np.random.default_rng(0)
    good, _ = random_weights({"m": [HIDDEN, HIDDEN], "v": [HIDDEN]}, rng)
    x = {"x": np.ones((1, 2, HIDDEN), np.float32)}
    assert np.isfinite(NativeProgram(entry, good).run(x).y).all()
    panel = np.zeros((2, HIDDEN // 4, 64, 4), np.uint8)
    scales = ("F32", np.zeros(128, np.float32))
    packed = ("U8", np.zeros((2, HIDDEN // 8, 64, 4), np.uint8))
    for change in (
        {"m.weight": ("BF16", np.zeros((HIDDEN, HIDDEN + 1), np.uint16))},
        {"m.weight": ("F32", np.zeros((HIDDEN, HIDDEN), np.float32))},
        {"m.codes": ("U8", panel)},  # without scales
        {"m.codes": ("U8", panel[:, 1:]), "m.scales": scales},
        {"m.codes": ("U8", panel), "m.scales": ("F32", np.zeros(HIDDEN, np.float32))},
        {"m.packed": packed, "m.scales": scales},  # without group scales
        {"m.packed": packed, "m.scales": scales, "m.group_scales": ("U8", np.ones((2, 3, 64), np.uint8))},
        {"v": ("F32", np.zeros(HIDDEN - 1, np.float32))},
        {"v": ("F64", np.zeros(HIDDEN // 2, np.float64))},
    ):
        run = (good if "m.weight" in change or "v" in change else {"v": good["v"]}) | change
        with pytest.raises(ProgramRefused, match="m|v") as refused:
            NativeProgram(entry, run).run(x)
        assert refused.value.status == MALFORMED
    with pytest.raises(ProgramRefused, match="no tensor m.weight"):
        NativeProgram(entry, {"v": good["v"]}).run(x)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no processor affinity")
def test_usable_cores_follow_the_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    found = library().ekt_usable_cores()
    assert 1 <= found <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert library().ekt_usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
