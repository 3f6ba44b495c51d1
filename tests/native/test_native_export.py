"""The `native` format: stored layout, lowered programs, and exported bundles read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sealing
from support.bundles import TILE_BYTES, quantized_reference
from support.checkpoints import write_checkpoint
from support.digests import digests
from support.native_cases import CASES, bundle_of_case
from support.program_interpreter import BundleInterpreter, Interpreter, Weights, stored_tensors
from torch import Tensor, nn

from edgekit.export import formats, ops, pipeline, programs
from edgekit.export.errors import ExportError
from edgekit.export.formats.native import layout as native_layout
from edgekit.export.formats.native.lowering import lower
from edgekit.export.formats.options import FormatOptions
from edgekit.export.models.base import LayerInputs, WeightSpec, route
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Choice, Override, Scheme, quantize_matrix
from edgekit.export.reference import MASKED
from edgekit.flashload.format import STORAGE_DTYPES
from edgekit.runtime.bundle import Bundle

OPTIONS = ExportOptions("native", tile_bytes=TILE_BYTES)


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, Scheme]:
    folder, scheme = tmp_path_factory.mktemp("native"), CASES[request.param][1]
    bundle = bundle_of_case(folder, request.param)
    return bundle, quantized_reference(folder / "checkpoint", scheme), scheme


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def assert_close(found: np.ndarray, expected: Tensor, what: str) -> None:
    wanted = expected.detach().numpy()
    assert found.shape == wanted.shape and found.dtype == np.float32, what
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=what)


# --- programs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "phase"), [(0, 0), (9, 0), (9, 1)])
def test_every_layer_equals_the_reference(
    case: tuple[Path, Any, Scheme], rng: np.random.Generator, prefix: int, phase: int
) -> None:
    """Op lists on weights read back from the flash file against the model's modules on the quantizer's."""
    bundle, model, _ = case
    with BundleInterpreter(bundle) as interpreter:
        for i, (layer, spec) in enumerate(
            zip(interpreter.bundle.model.layers, model.architecture.layers, strict=True)
        ):
            tables = model.architecture.ropes[spec.rope].tables(torch.arange(prefix, prefix + 6))
            inputs = {
                "x": 3 * random(rng, 1, 6, model.architecture.hidden_size),
                "prefix_k": random(rng, 1, spec.kv_heads, prefix, spec.head_dim),
                "prefix_v": random(rng, 1, spec.kv_heads, prefix, spec.head_dim),
                **{name: table.numpy() for name, table in tables.items()},
                "mask": np.where(rng.random((6, prefix + 6)) < 0.3, np.float32(MASKED), np.float32(0)),
                "phase": np.array([phase]),
            }
            tensors = {
                name: torch.from_numpy(v) for name, v in inputs.items() if name != "mask" or spec.uses_mask
            }
            with torch.no_grad():
                expected = spec.module(LayerInputs(**tensors), model._unit(f"layers.{i}."))
            found = interpreter.run(layer.program, layer.run, inputs, layer.experts)
            for name, a, b in zip("ykv", found, expected, strict=True):
                assert_close(a, b, f"{name} of layer {i}")


def test_what_surrounds_the_layers_equals_the_reference(
    case: tuple[Path, Any, Scheme], rng: np.random.Generator
) -> None:
    bundle, model, _ = case
    arch = model.architecture
    x, soft = random(rng, 1, 5, arch.hidden_size), random(rng, 1, 5, arch.hidden_size)
    with BundleInterpreter(bundle) as interpreter, torch.no_grad():
        [y] = interpreter.run("final", "final", {"x": x})
        expected = ops.rms_norm(torch.from_numpy(x), model._unit("norm.")["weight"], arch.norm_eps)
        assert_close(y, expected, "final")
        assert ("self_conditioning" in interpreter.entries) == (arch.self_conditioning is not None)
        if arch.self_conditioning is not None:
            [y] = interpreter.run("self_conditioning", "self_conditioning", {"embedded": x, "soft": soft})
            own = model._unit("self_conditioning.")
            expected = arch.self_conditioning(torch.from_numpy(x), torch.from_numpy(soft), own)
            assert_close(y, expected, "self_conditioning")
        table = interpreter.bundle.model.head or interpreter.bundle.model.embedding
        entry = interpreter.entries["head"]
        assert entry["weights"]["table"] == [arch.vocab_size, arch.hidden_size]
        scores = []
        for run, start, stop in table.spans():
            tensors = stored_tensors(interpreter.file, run)[""]
            values = ops.dequantize(*native_layout.canonical(tensors, (stop - start, arch.hidden_size)))
            scores += Interpreter(entry).run({"x": x[0][None]}, Weights({"table": values.numpy()}))
        assert_close(np.concatenate(scores, -1)[0], model.head(torch.from_numpy(x[0])), "head")


@pytest.mark.parametrize("family", ["llada_moe", "dream"])
def test_programs_do_not_depend_on_the_form_of_weights(tmp_path: Path, family: str) -> None:
    from edgekit.export.checkpoint import Checkpoint
    from edgekit.export.models import architecture

    write_checkpoint(tmp_path, family)
    arch = architecture(Checkpoint.open(tmp_path).config)
    found = []
    for preset in ("bf16", "int4"):
        scheme = Scheme(preset, 16, (Override("layers.0.*", 8),))
        form = formats.load("native")(arch, scheme, FormatOptions())
        assert set(form.layer_kinds()) == {x.kind for x in arch.layers}
        said: list[str] = []
        found.append(form.write_programs(tmp_path / "none", said.append).entries)
        assert said == [n for n in found[-1] if n != "head"]
    assert not (tmp_path / "none").exists(), "the native format has no program files"
    assert found[0] == found[1] == json.loads(json.dumps(found[0]))
    kinds = {x.kind for x in arch.layers}
    extra = {"self_conditioning"} if arch.self_conditioning else set()
    assert set(found[0]) == kinds | {"final", "head"} | extra


def exported(module: nn.Module, inputs: dict[str, Tensor], weights: dict[str, Tensor]) -> programs.Program:
    axes = {name: {value.ndim - 2: "t"} for name, value in inputs.items()}
    return programs.export_program("test", module, inputs, axes, weights, ("y",))


class Function(nn.Module):
    """A program made of a function of (inputs, weights)."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        result: Tensor = self.function(inputs["x"], w)
        return result


def linear(
    x: Tensor,
    w: dict[str, Tensor],
    name: str,
    bits: int = 8,
    bias: Tensor | None = None,
    adapted: bool = False,
) -> Tensor:
    adapter = (w["down.weight"], w["up.weight"]) if adapted else ()
    return ops.linear(x, w[name + ".codes"], None, w[name + ".scales"], bias, bits, *adapter)


def twice(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = linear(x, w, "a")
    return ops.gated_act(y + x, y, "silu")


#: Functions of x [1, T, 16] with matrices a, b [16, 16], wide [1, 16], an adapter of down [3, 16] and up
#: [16, 3], and a vector v [16]; the ops that they become.
FUSIONS: dict[str, tuple[Any, list[str]]] = {
    "residual": (lambda x, w: x + linear(x, w, "a"), ["linear"]),
    "residual first": (lambda x, w: linear(x, w, "a") + x, ["linear"]),
    "residual of two products": (lambda x, w: linear(x, w, "a") + linear(x, w, "b"), ["linear", "linear"]),
    "residual with bias": (lambda x, w: x + linear(x, w, "a", 8, w["v"]), ["linear"]),
    "residual through a cast": (lambda x, w: x + linear(x, w, "a", 16).float(), ["linear"]),
    "residuals in a row": (lambda x, w: x + (x + linear(x, w, "a")), ["linear", "add"]),
    "residual of another shape": (lambda x, w: x + linear(x, w, "wide"), ["linear", "add"]),
    "product with two users": (twice, ["linear", "add", "gated_act"]),
    "gate": (lambda x, w: ops.gated_act(linear(x, w, "a"), linear(x, w, "b"), "silu"), ["linear_gated"]),
    "gate of float products": (
        lambda x, w: ops.gated_act(linear(x, w, "a", 16), linear(x, w, "b", 16), "gelu_tanh"),
        ["linear", "linear", "gated_act"],
    ),
    "gate with bias": (
        lambda x, w: ops.gated_act(linear(x, w, "a"), linear(x, w, "b", 8, w["v"]), "silu"),
        ["linear", "linear", "gated_act"],
    ),
    "gate of two inputs": (
        lambda x, w: ops.gated_act(linear(x, w, "a"), linear(2 * x, w, "b"), "silu"),
        ["linear", "scale", "linear", "gated_act"],
    ),
    "gate of residuals": (
        lambda x, w: ops.gated_act(linear(x, w, "a"), x + linear(x, w, "b"), "silu"),
        ["linear", "linear", "gated_act"],
    ),
    "residual with adapter": (lambda x, w: x + linear(x, w, "a", 8, w["v"], adapted=True), ["linear"]),
    "gate with adapter": (
        lambda x, w: ops.gated_act(linear(x, w, "a"), linear(x, w, "b", adapted=True), "silu"),
        ["linear", "linear", "gated_act"],
    ),
    "weighted norm": (lambda x, w: ops.rms_norm(x, None, 1e-3) * w["v"], ["rms_norm"]),
    "weight times norm": (lambda x, w: w["v"] * ops.rms_norm(x, None, 1e-3), ["rms_norm"]),
    "views that change nothing": (
        lambda x, w: x.view(1, -1, 16).unflatten(-1, (4, 4)).flatten(2),
        ["view"] * 2,
    ),
    "a router": (
        lambda x, w: route(x.flatten(0, 1), 3, normalize=True, bias=w["v"], expert_scale=w["v"])[1],
        ["view", "route"],
    ),
}


@pytest.mark.parametrize("name", FUSIONS)
def test_ops_are_fused_where_the_result_is_the_same(rng: np.random.Generator, name: str) -> None:
    function, expected = FUSIONS[name]
    matrices = {n: quantize_matrix(torch.from_numpy(random(rng, r, 16)), 8, 0)
                for n, r in (("a", 16), ("b", 16), ("wide", 1))}  # fmt: skip
    matrices |= {n: quantize_matrix(torch.from_numpy(random(rng, *s)), 16, 0)
                 for n, s in (("down", (3, 16)), ("up", (16, 3)))}  # fmt: skip
    w = {"v": torch.from_numpy(random(rng, 16))}
    for n, q in matrices.items():
        w |= q.tensors(n)
    x = torch.from_numpy(random(rng, 1, 7, 16))
    entry = lower(exported(Function(function), {"x": x}, w))
    assert [op["op"] for op in entry["ops"]] == expected
    values = {n: q.dequantize().numpy() for n, q in matrices.items()} | {"v": w["v"].numpy()}
    shapes = {n: list(v.shape) for n, v in values.items()}
    assert entry["weights"] == {n: shapes[n] for n in entry["weights"]}
    assert {n for op in entry["ops"] for n in op["w"] if n} == set(entry["weights"])
    [y] = Interpreter(entry).run({"x": x.numpy()}, Weights(values))
    assert_close(y, function(x, w), name)


class Switched(nn.Module):
    """A residual with a product whose adapter is switched by row."""

    def forward(self, inputs: dict[str, Tensor], w: dict[str, Tensor]) -> Tensor:
        x, own = inputs["x"], [w[f"{name}.weight"] for name in ("a", "down", "up")]
        return x + ops.linear(x, own[0], None, None, None, 16, own[1], own[2], inputs["adapter"])


def test_factors_of_an_adapter_stay_with_its_product(rng: np.random.Generator) -> None:
    """Which is fused with what it is added to, as one without."""
    shapes = {"a": (16, 16), "down": (3, 16), "up": (16, 3)}
    w = {f"{name}.weight": torch.from_numpy(random(rng, *shape)) for name, shape in shapes.items()}
    factors = torch.tensor([1, 0, 1, 0.5, 0, 1, 1])[:, None]
    inputs = {"x": torch.from_numpy(random(rng, 1, 7, 16)), "adapter": factors}
    entry = lower(exported(Switched(), inputs, w))
    assert [(op["op"], op["in"]) for op in entry["ops"]] == [("linear", [0, 0, 1])]
    values = {name.removesuffix(".weight"): value.numpy() for name, value in w.items()}
    [y] = Interpreter(entry).run({name: value.numpy() for name, value in inputs.items()}, Weights(values))
    assert_close(y, Switched()(inputs, w), "switched")


#: What has no form, and what the message says about it.
REFUSED: dict[str, tuple[Any, str]] = {
    "unknown op": (lambda x, w: torch.sigmoid(x), r"node sigmoid \(aten.sigmoid.default\) has no form"),
    "number added": (lambda x, w: x + 1.0, r"node add .* takes a number"),
    "factor of a sum": (lambda x, w: torch.add(x, x, alpha=2), "node add .* has a factor"),
    "weight added": (lambda x, w: x + w["v"], r"node add \(add\) takes v where only computed values"),
    "weight alone": (lambda x, w: w["v"].view(1, 1, 16) * x, "node view .* where only computed"),
    "softmax": (lambda x, w: torch.softmax(x, 2), r"node softmax \(aten.softmax.int\) has no form"),
    "other type": (lambda x, w: x.double().float(), "node to .* converts torch.float32 to torch.float64"),
    "computed matrix": (
        lambda x, w: ops.linear(x, w["a.codes"] * w["a.codes"], None, w["a.scales"], None, 8),
        "node linear .* takes mul where a matrix of the weights",
    ),
    "adapter of codes": (
        lambda x, w: ops.linear(x, w["a.codes"], None, w["a.scales"], None, 8, w["v"], w["v"]),
        "node linear .* takes .* where a matrix of the weights",
    ),
    "matrix as bias": (
        lambda x, w: linear(x, w, "a", 8, w["f.weight"]), "node linear .* takes .* where a float vector"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_named(rng: np.random.Generator, name: str) -> None:
    function, message = REFUSED[name]
    w = {"v": torch.ones(16), "f.weight": torch.ones(16, 16)}
    w |= quantize_matrix(torch.eye(16), 8, 0).tensors("a")
    program = exported(Function(function), {"x": torch.from_numpy(random(rng, 1, 7, 16))}, w)
    with pytest.raises(ExportError, match=rf"program test: {message}"):
        lower(program)


# --- layout -------------------------------------------------------------------------------------------------


def at(array: np.ndarray, row: int, column: int) -> int:
    """The byte of 8-bit codes that the layout's description puts there."""
    return int(array[row // 64, column // 4, row % 64, column % 4])


def nibble(array: np.ndarray, row: int, column: int) -> int:
    quad, i = divmod(column, 4)
    byte = int(array[row // 64, quad // 2, row % 64, i])
    return byte >> 4 if quad % 2 else byte & 15


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 70))
def test_codes_of_8_bits_lie_where_the_layout_says(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    q = quantize_matrix(torch.from_numpy(random(rng, rows, columns)), 8, 0)
    stored = native_layout.arrays("m", "mlp", q)
    codes, scales = stored["m.codes"], stored["m.scales"]
    panels, quads = -(-rows // 64), -(-columns // 4)
    assert codes.shape == (panels, quads, 64, 4) and scales.shape == (panels * 64,)
    for _ in range(20):
        row, column = int(rng.integers(panels * 64)), int(rng.integers(quads * 4))
        inside = row < rows and column < columns
        assert at(codes, row, column) == (int(q.weight[row, column]) if inside else 128)
    assert q.scales is not None
    np.testing.assert_array_equal(scales[:rows], q.scales.numpy())
    assert not scales[rows:].any()
    weight, groups, back = native_layout.canonical(short(stored), (rows, columns))
    assert groups is None and back is not None
    assert torch.equal(weight, q.weight) and torch.equal(back, q.scales)


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 5), st.sampled_from([16, 32, 64]))
def test_codes_of_4_bits_lie_where_the_layout_says(seed: int, rows: int, groups: int, group: int) -> None:
    rng = np.random.default_rng(seed)
    q = quantize_matrix(torch.from_numpy(random(rng, rows, groups * group)), 4, group)
    assert q.group_scales is not None and q.scales is not None
    plain = ops.unpack_codes(q.weight, 4)
    stored = native_layout.arrays("m", "mlp", q)
    packed, group_scales = stored["m.packed"], stored["m.group_scales"]
    panels = -(-rows // 64)
    assert packed.shape == (panels, groups * group // 8, 64, 4)
    assert group_scales.shape == (panels, groups, 64)
    for _ in range(20):
        row, column = int(rng.integers(panels * 64)), int(rng.integers(groups * group))
        inside = row < rows
        assert nibble(packed, row, column) == (int(plain[row, column]) + 8 if inside else 8)
        expected = int(q.group_scales[row, column // group]) if inside else 1
        assert group_scales[row // 64, column // group, row % 64] == expected
    weight, back, scales = native_layout.canonical(short(stored), (rows, groups * group))
    assert back is not None and scales is not None
    assert torch.equal(weight, q.weight) and torch.equal(back, q.group_scales)
    assert torch.equal(scales, q.scales)


def short(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.rpartition(".")[2]: array for name, array in stored.items()}


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (64, 64), (65, 48), (130, 32)])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("role", ["mlp", "router", "embedding", "head"])
def test_specs_are_those_of_the_arrays(
    rng: np.random.Generator, role: str, bits: int, rows: int, columns: int
) -> None:
    if role in ("embedding", "head") and bits == 4:
        bits = 8
    q = quantize_matrix(torch.from_numpy(random(rng, rows, columns)), bits, 16)
    spec, choice = WeightSpec("m", (rows, columns), role, ()), Choice(bits, 16 if bits == 4 else 0)
    specs = native_layout.specs("unit.m", spec, choice)
    stored = native_layout.arrays("unit.m", role, q)
    assert [s.name for s in specs] == list(stored)
    for s in specs:
        assert stored[s.name].shape == s.shape and stored[s.name].dtype == STORAGE_DTYPES[s.dtype]
    weight, groups, scales = native_layout.canonical(short(stored), (rows, columns))
    assert torch.equal(ops.dequantize(weight, groups, scales), q.dequantize())
    assert native_layout.specs("unit.n", WeightSpec("n", (7,), "float", ()), Choice(16, 0))[0].shape == (7,)


def test_matrices_whose_sums_may_not_fit_are_refused() -> None:
    wide = WeightSpec("m", (1, native_layout.EXACT_COLUMNS + 32), "mlp", ())
    with pytest.raises(ExportError, match=r"unit\.m has 60032 columns in 8 bits.* with --override"):
        native_layout.specs("unit.m", wide, Choice(8, 0))
    assert native_layout.specs("unit.m", wide, Choice(16, 0))


@pytest.mark.parametrize("which", ["codes", "scales", "packed", "group_scales"])
def test_wrong_padding_is_found(rng: np.random.Generator, which: str) -> None:
    bits = 8 if which == "codes" else 4
    stored = short(
        native_layout.arrays("m", "mlp", quantize_matrix(torch.from_numpy(random(rng, 65, 48)), bits, 16))
    )
    stored[which].reshape(-1)[-1] += 3
    with pytest.raises(ExportError, match=f"^{which}: padding"):
        native_layout.canonical(stored, (65, 48))
    with pytest.raises(ExportError, match="fewer than"):
        native_layout.canonical(stored, (200, 48))


# --- bundles ------------------------------------------------------------------------------------------------


def test_stored_codes_are_the_quantizers(case: tuple[Path, Any, Scheme]) -> None:
    """Every tensor of the flash file is read back and compared bit for bit; none is missing."""
    bundle, model, _ = case
    weights = {n: t.detach() for n, t in model.weights().items()}
    shapes = {f"{unit}.{spec.name}": spec.shape for unit, spec in model.architecture.weights()}
    seen = set()
    with Bundle.open(bundle).open_weights() as file:
        first = {t: 0 for t in ("embedding", "head")}
        for run in file.runs:
            unit, _, tile = run.partition(".")
            layer, _, expert = run.partition(".experts.")
            for matrix, tensors in stored_tensors(file, run).items():
                if "" in tensors:
                    name = matrix if unit == "final" else f"{run}.{matrix}"
                    np.testing.assert_array_equal(tensors[""].reshape(-1), weights[name].reshape(-1))
                    seen.add(name)
                    continue
                if unit in first:
                    name, expected = unit, (0, 0)
                else:
                    name, expected = (
                        f"{layer}.experts.{matrix}" if expert else f"{run}.{matrix}",
                        shapes[f"{run}.{matrix}"],
                    )
                found = native_layout.canonical(tensors, expected)
                for suffix, value in zip(_suffixes(found), found, strict=True):
                    if value is None:
                        continue
                    whole = weights[f"{name}.{suffix}"]
                    if expert:
                        whole = whole[int(expert)]
                    if unit in first:
                        whole = whole[first[unit] : first[unit] + len(value)]
                    assert torch.equal(value, whole), f"{run}: {name}.{suffix}"
                    seen.add(f"{name}.{suffix}")
                if unit in first:
                    first[unit] += len(found[0])
    assert seen == set(weights)


def _suffixes(form: tuple[Tensor, Tensor | None, Tensor | None]) -> tuple[str, str, str]:
    return ("weight" if form[2] is None else "codes", "group_scales", "scales")


def test_a_bundle_is_whole_and_has_no_program_files(case: tuple[Path, Any, Scheme]) -> None:
    bundle, model, _ = case
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    sealing.check_all(bundle)
    assert manifest.programs["format"] == "native" and manifest.programs["layout"] == "native-1"
    assert {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()} == {
        "edgekit.json", "weights.safetensors", *manifest.files
    }  # fmt: skip
    assert not (bundle / "programs").exists()
    kinds = [layer.program for layer in opened.model.layers]
    assert kinds == [layer.kind for layer in model.architecture.layers]
    assert set(kinds) <= set(manifest.programs["entries"])
    with opened.open_weights() as file:
        assert {layer.run for layer in opened.model.layers} <= set(file.runs)


def test_an_interrupted_export_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada_moe", num_hidden_layers=2)
    real, calls = pipeline.quantize_matrix, []

    def fails(weight: Tensor, bits: int, group: int) -> Any:
        calls.append(bits)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return real(weight, bits, group)

    monkeypatch.setattr(pipeline, "quantize_matrix", fails)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)
    monkeypatch.undo()
    assert not (tmp_path / "out" / "edgekit.json").exists()
    resumed = ExportOptions("native", tile_bytes=TILE_BYTES, resume=True)
    export(tmp_path / "checkpoint", tmp_path / "out", resumed)
    export(tmp_path / "checkpoint", tmp_path / "whole", OPTIONS)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    again = export(tmp_path / "checkpoint", tmp_path / "out", resumed)
    assert again.report.tensors and digests(tmp_path / "out") == digests(tmp_path / "whole")
    with pytest.raises(ExportError, match="already holds a bundle"):
        export(tmp_path / "checkpoint", tmp_path / "out", OPTIONS)


def test_formats_are_told_apart() -> None:
    assert formats.get("native").layout == "native-1"
    with pytest.raises(ExportError, match="unknown format 'gguf'; supported: native, onnx"):
        formats.load("gguf")
