"""Packages with int8 activations: rows are rounded as `ops.round_rows` says, whatever their range, and the
rest is the reference's.

Where x is halfway between two steps but for the error of its arithmetic, a package may round otherwise than
the reference. Core ML's are therefore evaluated first, and the reference takes the integers that are seen
there, all of which must be nearest ones.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.bundles import int8_activations, quantized_reference
from support.checkpoints import write_checkpoint
from support.low_rank import use_adapters, write_adapted_checkpoint
from support.package_bundles import (
    LENGTHS,
    SMALL,
    check_around,
    check_layers,
    check_stored,
    make_bundle,
    options,
    quantized_matrices,
)
from support.signal_to_noise import decibels
from torch import Tensor

from edgekit.export import ops
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages import cut as package_cut
from edgekit.export.formats.packages.functions import Feature
from edgekit.export.formats.packages.graph import EXPERTS_AT_ONCE, STEP
from edgekit.export.formats.packages.layout import Constant
from edgekit.export.pipeline import export
from edgekit.export.quantize import Override, Scheme
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.checks.mil import Evaluator, Function, Operation, Package
from edgekit.runtime.checks.mil.types import BY_NAME
from edgekit.tools.cli import main

pytest.importorskip("coremltools", reason="coremltools is not installed")

from coreml_audit import stored_matrices
from coreml_bundles import CoremlPrograms

INT8 = Scheme("int8", 32)
#: How far from the nearest integer a package's may be: what rounding before it does to 127.
NEAR = {"float32": 1e-3, "float16": 0.75}


# --- Core ML against the reference that takes its integers ------------------------------------------------


class ObservedPrograms(CoremlPrograms):
    """Keeps the integers of every call, for a reference that computes the same function next."""

    def __init__(self, bundle: Path, precision: str) -> None:
        super().__init__(bundle)
        self.near, self.count, self.other = NEAR[precision], 0, 0
        self._codes: list[np.ndarray] = []
        self._rounded: list[tuple[Tensor, Tensor]] = []

    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert not self._codes, "the package rounds more than the reference"
        self._rounded.clear()

        def observe(operation: Operation, results: Any) -> None:
            if operation.type == "quantize":
                self._codes.append(results[0])

        return dict(Evaluator(self._packages[package], function).run(inputs, observe=observe))

    def round_rows(self, x: Tensor) -> Tensor:
        """`ops.round_rows` with the package's integers. What several products share is rounded once."""
        for known, rounded in self._rounded:
            if known.shape == x.shape and torch.equal(known, x):
                return rounded
        codes = torch.from_numpy(self._codes.pop(0).astype(np.float32)).reshape(x.shape)
        top = x.abs().amax(-1, keepdim=True)
        exact = torch.where(top > 0, x * 127 / top, 0)
        assert ((codes - exact).abs() <= 0.5 + self.near).all()
        self.count, self.other = self.count + x.numel(), self.other + int((codes != exact.round()).sum())
        self._rounded.append((x, codes * top / 127))
        return self._rounded[-1][1]

    def experts(self, x: Tensor, index: Tensor, weight: Tensor, *stacks: Any) -> Tensor:
        """`ops.experts` as packages compute it: every expert on every row, `EXPERTS_AT_ONCE` at a time."""
        *stacks, kind = stacks
        gate_up, down = ops.dequantize(*stacks[:3]), ops.dequantize(*stacks[3:])
        rows, total = self.round_rows(x), torch.zeros_like(x)
        for first in range(0, len(gate_up), EXPERTS_AT_ONCE):
            own = slice(first, first + EXPERTS_AT_ONCE)
            gate, up = (rows @ gate_up[own].mT).chunk(2, -1)
            out = self.round_rows(ops.gated_act(gate, up, kind)) @ down[own].mT
            for e, y in enumerate(out, first):
                total += y * (weight * (index == e)).sum(-1, keepdim=True)
        return total

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Inside, the reference takes the integers of the last call."""
        with pytest.MonkeyPatch.context() as patch, int8_activations(self.round_rows):
            patch.setattr(ops, "experts", self.experts)
            yield


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("precision", NEAR)
def test_core_ml_rounds_rows_to_the_nearest_and_computes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, precision: str
) -> None:
    monkeypatch.setattr(package_cut, "MOST_HEAD_ROWS", 100)
    cut = Packaging(LENGTHS[family][-1:], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, "coreml", INT8, precision, cut, "int8", **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", INT8, "coreml")
    programs = ObservedPrograms(bundle, precision)
    with programs.taken():
        check_layers(programs, model, 1, None if precision == "float32" else 60)
        check_around(programs, model, precision, programs.round_rows)
    assert programs.other < {"float32": 1e-4, "float16": 0.05}[precision] * programs.count


def test_adapters_see_rows_that_are_not_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_adapters(monkeypatch, 3, bias=True)
    monkeypatch.setattr("support.package_bundles.write_checkpoint", write_adapted_checkpoint)
    cut = Packaging(LENGTHS["llada"][-1:], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, "llada", "coreml", INT8, "float32", cut, "int8", **SMALL["llada"])
    model = quantized_reference(tmp_path / "checkpoint", INT8, "coreml")
    programs = ObservedPrograms(bundle, "float32")
    with programs.taken():
        check_layers(programs, model, 1, None)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_layers_are_near_those_with_float_activations(tmp_path: Path, family: str) -> None:
    """What rounding activations costs: 44 dB are left of y, 52 of keys and values."""
    cut = Packaging(LENGTHS[family], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, "coreml", INT8, "float16", cut, "int8", **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", INT8, "coreml")
    check_layers(CoremlPrograms(bundle), model, 2, 40)


# --- what the programs are --------------------------------------------------------------------------------


def test_pairs_stand_before_products_with_eight_bits_alone(tmp_path: Path) -> None:
    """What Core ML documents: quantize and dequantize with one constant scale before a product with codes.
    The router and the product that makes soft embeddings stay float. What several products take is rounded
    once.
    """
    cut = Packaging((48,), layers_per_chunk=3)
    family = "diffusion_gemma"
    bundle = make_bundle(tmp_path, family, "coreml", INT8, "float16", cut, "int8", **SMALL[family])
    for name, entry in CoremlPrograms(bundle).entries.items():
        package = Package(bundle / entry["path"])
        for function in map(package.function, entry["functions"]):
            operations = function.operations
            made = {o.outputs[0].name: o for o in operations}

            def value(operation: Operation, key: str, function: Function = function) -> np.ndarray:
                return function.constants[operation.inputs[key][0].name].all()

            pairs = [o for o in operations if o.type == "quantize"]
            assert len({o.inputs["input"][0].name for o in pairs}) == len(pairs)
            assert bool(pairs) == (name != "final")
            for product in (o for o in operations if o.type in ("linear", "matmul")):
                weight = made.get(product.inputs["weight" if product.type == "linear" else "y"][0].name)
                if weight is None or not weight.is_constexpr:
                    continue
                assert weight.inputs["data"][0].dtype.name == "int8"
                x = made.get(product.inputs["x"][0].name)
                x = made[x.inputs["x"][0].name] if x is not None and x.type == "expand_dims" else x
                soft = product.type == "matmul" and not value(product, "transpose_y")
                if soft or "router" in weight.outputs[0].name:
                    assert x is None or x.type != "dequantize"
                    continue
                assert x is not None and x.type == "dequantize"
                pair = (made[x.inputs["input"][0].name], x)
                assert pair[0].type == "quantize"
                for operation in pair:
                    assert value(operation, "scale").shape == () and value(operation, "scale") == STEP
                    assert not operation.inputs.keys() & {"zero_point", "axis"}


def test_codes_are_those_of_a_bundle_with_float_activations(tmp_path: Path) -> None:
    """The audit finds every matrix, packages grow by their programs only, and the manifest says it."""
    family = "llada_moe"
    cut = Packaging(LENGTHS[family], layers_per_chunk=2)
    bundles = [
        make_bundle(tmp_path / how, family, "coreml", INT8, "float16", cut, how, **SMALL[family])
        for how in ("float", "int8")
    ]
    for bundle in bundles:
        found = {m.name: m for m in stored_matrices(bundle)}
        check_stored(found, quantized_matrices(bundle.parent / "checkpoint", INT8), "float16")
    manifests = [json.loads((bundle / "edgekit.json").read_text()) for bundle in bundles]
    assert [m["programs"]["activations"] for m in manifests] == ["float", "int8"]
    assert manifests[0]["provenance"]["tag"] != manifests[1]["provenance"]["tag"]
    plain, rounded = (m["programs"]["packages"] for m in manifests)
    for name, entry in rounded.items():
        weights = next(f for f in entry["files"] if f.endswith("weight.bin"))
        assert manifests[0]["files"][weights]["size"] == manifests[1]["files"][weights]["size"]
        assert entry["bytes"] - plain[name]["bytes"] < 12_000 * max(1, 2 * len(entry["parts"]))
    shown = [CliRunner().invoke(main, ["inspect", str(bundle)]).output for bundle in bundles]
    assert "float16, int8 activations, for iOS 18" in shown[1] and "int8 activations" not in shown[0]


# --- rows of any range ------------------------------------------------------------------------------------


def coreml_function(package: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(Evaluator(Package(package), "f").run(inputs))


def coreai_function(package: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from coreai_bundles import call

    return call(package, "f", inputs)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("program_format", ["coreml", "coreai"])
def test_rows_of_any_range(tmp_path: Path, program_format: str, precision: str, seed: int) -> None:
    """One product, from the largest number of float16 down: no overflow where the result has none, nothing
    divided by zero.
    """
    if program_format == "coreai":
        pytest.importorskip("coreai.authoring")
    rng = np.random.default_rng(seed)
    tops = np.float32([65504, 3e4, 7, 1, 1e-3, 2.5e-4, 0, 1e-6])
    x = rng.standard_normal((1, len(tops), 48)).astype(np.float32)
    x = (x / np.abs(x).max(-1, keepdims=True) * tops[:, None]).astype(precision)
    arrays = {
        "m.codes": rng.integers(-127, 128, (40, 48)).astype(np.int8),
        "m.scales": (rng.random((40, 1)) / 4e4).astype(precision),
        "m.bias": rng.standard_normal(40).astype(precision),
    }
    codes, y = one_product(tmp_path / "package", program_format, x, arrays)
    exact_x = torch.from_numpy(x.astype(np.float32))
    top = exact_x.abs().amax(-1, keepdim=True)
    exact = torch.where(top > 0, 127 * exact_x / top, 0)[0]
    # Rows below the smallest normal number of float16 are rounded in steps of that.
    own = slice(None, -1) if precision == "float16" else slice(None)
    assert ((codes - exact).abs()[own] <= 0.5 + {"float32": 1e-4, "float16": 0.13}[precision]).all()
    assert codes.abs().amax(-1)[own].tolist() == [127.0 if t > 0 else 0.0 for t in tops[own]]
    weight, bias = (torch.from_numpy(arrays[n].astype(np.float32)) for n in ("m.codes", "m.bias"))
    weight = weight * torch.from_numpy(arrays["m.scales"].astype(np.float32))
    assert torch.isfinite(y).all()
    expected = (codes * top[0] / 127) @ weight.T + bias
    for row, want in zip(y[own], expected[own], strict=True):
        assert decibels(row.numpy(), want.numpy()) > {"float32": 120, "float16": 60}[precision]
    own_choice = ops.round_rows(exact_x)[0] @ weight.T + bias
    assert all(decibels(*rows) > 35 for rows in zip(y.numpy(), own_choice.numpy(), strict=True))


def one_product(
    path: Path, program_format: str, x: np.ndarray, arrays: dict[str, np.ndarray]
) -> tuple[Tensor, Tensor]:
    """The integers and the result of a product of x with a matrix of 8 bits."""
    module: Any = importlib.import_module(f"edgekit.export.formats.{program_format}.graph")
    graph = getattr(module, f"{program_format.capitalize()}Graph")(True)
    kinds = {n: BY_NAME[a.dtype.name.replace("float", "fp")] for n, a in arrays.items()}
    codes, scales, bias = (Constant(n, kinds[n], a.shape) for n, a in arrays.items())

    def body(values: dict[str, Any]) -> dict[str, Any]:
        weight = graph.weight([codes, scales])
        given = {
            "x": values["x"],
            "weight": weight,
            "bias": graph.weight([bias]),
            "act_bits": 8,
            "down": None,
        }
        y = graph.NODES[torch.ops.edgekit.linear.default](given | graph._extras(None))
        return {"steps": graph._operand(values["x"], weight)[0], "y": y}

    graph.add("f", [Feature("x", x.dtype.name, x.shape)], body)
    package = graph.finish().create(
        path.with_suffix({"coreml": ".mlpackage", "coreai": ".aimodel"}[program_format])
    )
    for name, array in arrays.items():
        package.write(name, array)
    package.seal()
    run = {"coreml": coreml_function, "coreai": coreai_function}[program_format]
    out = {n: torch.from_numpy(a.astype(np.float32)[0]) for n, a in run(package.path, {"x": x}).items()}
    # What convolutions take has channels first.
    steps = out["steps"][:, 0].T if out["steps"].ndim == 3 else out["steps"]
    return steps / STEP, out["y"]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused") / "checkpoint"
    write_checkpoint(folder, "llada", n_layers=1)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "coreml"], r"int8 activations are for weights of 8 bits, layers\.0\.\S+ has 4; export "
                                 r"with --quant int8"),
        (["--format", "coreai", "--quant", "bf16"], "weights of 8 bits, embedding has 16; export with"),
        (["--format", "coreml", "--quant", "int8", "--override", "layers.0.mlp.up_proj=4"],
         r"layers\.0\.mlp\.up_proj has 4"),
        (["--format", "native", "--quant", "int8"], "native has no activations to choose, .*; leave --activ"),
        (["--target", "mac", "--quant", "int8"], "format mlx has no activations to choose"),
        (["--format", "onnx"], "format onnx has no activations to choose"),
        (["--format", "coreml", "--quant", "int8", "--activations", "int4"],
         "unknown activations 'int4' for format coreml; did you mean int8"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(checkpoint: Path, tmp_path: Path, words: list[str], message: str) -> None:
    pytest.importorskip("mlx")
    target = [] if "--target" in words else ["--target", "ios" if "onnx" not in words else "host"]
    given = ["export", str(checkpoint), "-o", str(tmp_path / "out"), *target, "--activations", "int8", *words]
    result = CliRunner().invoke(main, given)
    error = result.output.strip().splitlines()[-1]
    assert result.exit_code == 2 and error.startswith("edgekit: error: ") and re.search(message, error), error
    assert not (tmp_path / "out").exists()


def test_single_matrices_may_stay_float_and_resuming_needs_the_same_activations(
    checkpoint: Path, tmp_path: Path
) -> None:
    scheme = Scheme("int8", 32, (Override("*.mlp.*", 16),))
    how = options("coreml", scheme, "float16", Packaging((8,)), activations="int8")
    export(checkpoint, tmp_path / "bundle", how)
    (path,) = (tmp_path / "bundle").glob("packages/layers*")
    operations = Package(path).function().operations
    # Of q, k and v together, and of the output's projection.
    assert sum(o.type == "quantize" for o in operations) == 2
    assert export(checkpoint, tmp_path / "bundle", replace(how, resume=True)).path == tmp_path / "bundle"
    with pytest.raises(EdgekitError, match="of another export"):
        export(checkpoint, tmp_path / "bundle", replace(how, activations=None, resume=True))
