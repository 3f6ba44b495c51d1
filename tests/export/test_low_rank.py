"""Low-rank adapters of a linear: beside merged weights in float64, and in every format and engine."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import sealing
from support.bundles import int8_activations, passes, quantized_reference
from support.checkpoints import write_checkpoint
from support.low_rank import use_adapters, write_adapted_checkpoint
from support.native_programs import NativeProgram, stored_run
from support.program_interpreter import BundleInterpreter

from edgekit.export import ops
from edgekit.export.errors import ExportError
from edgekit.export.models import architecture, base
from edgekit.export.models.base import DOWN, UP, linear, low_rank, matrix
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Override, Scheme, choose, quantize_matrix
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.errors import EdgekitError
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions, open_session

RANKS = [1, 3, 8]


def stored(seed: int, bits: int, rank: int, bias: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix m [40, 64] with an adapter, as `linear` takes it, and in float64 what both are together."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    q = quantize_matrix(normal(40, 64), bits, 32)
    down, up = normal(rank, 64), normal(40, rank)
    w = q.tensors("m") | {f"m{DOWN}.weight": down, f"m{UP}.weight": up}
    return w | ({"m.bias": normal(40)} if bias else {}), q.dequantize().double() + up.double() @ down.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_the_reference_is_that_of_merged_weights(bits: int, rank: int, bias: bool) -> None:
    for seed in range(5):
        w, merged = stored(seed, bits, rank, bias)
        x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(seed)).double()
        vector = w["m.bias"].double() if bias else None
        own = {n: t.double() if n == "m.bias" else t for n, t in w.items()}
        torch.testing.assert_close(linear(x, own, "m"), F.linear(x, merged, vector), rtol=1e-6, atol=1e-5)
        single = linear(x.float(), w, "m")
        torch.testing.assert_close(single.double(), F.linear(x, merged, vector), rtol=0, atol=2e-4)


def test_adapters_see_activations_that_are_not_rounded() -> None:
    """Where products round them to int8."""
    w, _ = stored(0, 8, 3, False)
    x = torch.randn(1, 7, 64)
    plain = {n: t for n, t in w.items() if ".lora_" not in n}
    with int8_activations():
        found = linear(x, w, "m") - linear(x, plain, "m")
    torch.testing.assert_close(found, ops.low_rank(x, w[f"m{DOWN}.weight"], w[f"m{UP}.weight"]))


@pytest.mark.parametrize(("here", "lacks"), [(DOWN, UP), (UP, DOWN)])
def test_half_an_adapter_is_refused(here: str, lacks: str) -> None:
    w, _ = stored(0, 8, 3, False)
    del w[f"m{lacks}.weight"]
    with pytest.raises(ExportError, match=f"m{here} is there without m{lacks}: an adapter is both"):
        linear(torch.zeros(1, 2, 64), w, "m")


#: Weights of a layer beside its matrix m [40, 64], and what is wrong with them.
WRONG: dict[str, tuple[tuple[base.WeightSpec, ...], str]] = {
    "half": (low_rank("m", 40, 64, 3, "a", "b")[:1], "m.lora_down is there without m.lora_up"),
    "of no matrix": (
        low_rank("n", 40, 64, 3, "a", "b"),
        "n.lora_down is the adapter of a matrix n, which is",
    ),
    "columns": (low_rank("m", 40, 32, 3, "a", "b"), r"\[40, 64\] is \[3, 32\] and \[40, 3\], not \[R, 64\]"),
    "rows": (low_rank("m", 4, 64, 3, "a", "b"), r"is \[3, 64\] and \[4, 3\], not \[R, 64\] and \[40, R\]"),
    "ranks": (
        (low_rank("m", 40, 64, 3, "a", "b")[0], low_rank("m", 40, 64, 2, "a", "b")[1]),
        r"is \[3, 64\] and \[40, 2\]",
    ),
    "role": ((matrix("m.lora_up", 40, 3, "mlp", "a"),), "m.lora_up has role mlp; adapters are named"),
    "name": ((matrix("m.extra", 40, 3, "adapter", "a"),), "m.extra has role adapter; adapters are named"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_adapters_are_refused_with_the_architecture(tmp_path: Path, case: str) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada", n_layers=1))
    weights, message = WRONG[case]
    layer = dataclasses.replace(arch.layers[0], weights=(matrix("m", 40, 64, "mlp", "c"), *weights))
    with pytest.raises(ExportError, match=f"dense: .*{message}"):
        dataclasses.replace(arch, layers=(layer,))


def test_layers_of_a_kind_have_adapters_all_or_none(tmp_path: Path) -> None:
    arch = architecture(write_checkpoint(tmp_path, "llada"))
    first, second, third = arch.layers
    own = low_rank("self_attn.o_proj", 64, 64, 3, "a", "b")
    adapted = dataclasses.replace(second, weights=(*second.weights, *own))
    with pytest.raises(ExportError, match="layer 1 has other weights than those before it of kind dense"):
        dataclasses.replace(arch, layers=(first, adapted, third))
    adapted = dataclasses.replace(adapted, kind="adapted")
    assert len(dataclasses.replace(arch, layers=(first, adapted, third)).layers) == 3


def test_adapters_stay_in_16_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_adapters(monkeypatch, 16)
    arch = architecture(write_checkpoint(tmp_path, "llada"))
    scheme = Scheme("int4", 16, (Override("layers.0.*", 8),))
    found = {name: choice for name, choice in choose(arch, scheme).items() if ".lora_" in name}
    assert len(found) == 2 * 2 * 3 and {choice.bits for choice in found.values()} == {16}
    notes = {name: choice.note for name, choice in found.items() if choice.note}
    assert set(notes.values()) == {"adapters are stored in 16 bits"}
    assert all(name.startswith("layers.0.") for name in notes)


# --- in every format ----------------------------------------------------------------------------------------

#: Family, preset, rank, whether there is a bias too, and overrides of the checkpoint.
CASES: dict[str, tuple[str, str, int, bool, dict[str, Any]]] = {
    "llada bf16": ("llada", "bf16", 1, True, {}),
    "llada int8": ("llada", "int8", 3, True, {}),
    "llada int4": ("llada", "int4", 8, False, {}),
    "llada_moe int8": ("llada_moe", "int8", 1, False, {}),
    "gemma mixed4": ("diffusion_gemma", "mixed4", 3, False, {"num_hidden_layers": 3}),
    "dream mixed4": ("dream", "mixed4", 8, True, {}),
}
#: Engines, the median and the largest error of a position relative to the position; those that round
#: activations to int8 as the reference then does. Where a rounding falls the other way, a position moves.
ENGINES = {
    "native": (1e-5, 2e-2, True),
    "torch": (1e-5, 2e-2, True),
    "onnx": (2e-3, 5e-2, True),
    "onnx-gpu": (1e-5, 1e-4, False),
    "tvm": (1e-5, 2e-2, True),
    "mlx": (1e-5, 1e-4, False),
}


@pytest.mark.parametrize(
    ("engine", "device", "case"),
    [
        *((engine, None, case) for engine in ("native", "torch") for case in CASES),
        # How a format adds adapters does not depend on the matrix beside them, unless it joins both products.
        *((engine, None, "llada int8") for engine in ("onnx", "onnx-gpu", "tvm", "mlx")),
        ("mlx", None, "gemma mixed4"),
        ("tvm", "x86-64-compiled", "llada int4"),
    ],
)
def test_engines_add_adapters_as_the_reference(
    tmp_path: Path, engine: str, device: str | None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, preset, rank, bias, overrides = CASES[case]
    median, most, rounds = ENGINES[engine]
    written, scheme = "native" if engine == "torch" else engine, Scheme(preset)
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    use_adapters(monkeypatch, rank, bias)
    write_adapted_checkpoint(tmp_path / "checkpoint", family, **overrides)
    precision = "float32" if engine == "mlx" else None
    how = ExportOptions(written, scheme=scheme, precision=precision, device=device)
    export(tmp_path / "checkpoint", tmp_path / "bundle", how)
    model = quantized_reference(tmp_path / "checkpoint", scheme, written)
    with open_session(tmp_path / "bundle", engine=engine) as session:
        with int8_activations() if rounds else nullcontext():
            found, expected = passes(session, model)
        monkeypatch.setattr(ops, "low_rank", lambda x, down, up, adapter=None: 0 * (x @ down.T @ up.T))
        plain = passes(session, model)[1].numpy()
    assert found.logits is not None
    wanted = expected.numpy()
    error = np.linalg.norm(found.logits - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(error) < median and error.max() < most, f"relative error by position: {error}"
    assert np.abs(wanted - plain).max() > 0.1 * np.abs(plain).max(), "adapters make a difference"


# --- the native format --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "-"))
def test_layers_of_the_core_equal_the_oracle(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, so that a rounding that falls the other way moves no other layer; bit for bit the same
    however many threads there are.
    """
    family, preset, rank, bias, overrides = CASES[case]
    use_adapters(monkeypatch, rank, bias)
    for seed in range(3):
        folder = tmp_path / str(seed)
        write_adapted_checkpoint(folder / "checkpoint", family, seed, **overrides)
        export(folder / "checkpoint", folder / "bundle", ExportOptions("native", scheme=Scheme(preset)))
        with BundleInterpreter(folder / "bundle", rounding=True) as oracle:
            check_layers(oracle, np.random.default_rng(seed))


def check_layers(oracle: BundleInterpreter, rng: np.random.Generator) -> None:
    model, length, before = oracle.bundle.model, 21, 5
    for i, layer in enumerate(model.layers):

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        kept = 1, layer.kv_heads, before, layer.head_dim
        inputs = {
            "x": 3 * normal(1, length, model.hidden_size),
            "prefix_k": normal(*kept), "prefix_v": normal(*kept),
            **model.ropes[layer.rope].tables(np.arange(before, before + length)),
            "mask": np.zeros((length, before + length), np.float32), "phase": np.array([0]),
        }  # fmt: skip
        entry = oracle.entries[layer.program]
        [expected, *_] = oracle.run(layer.program, layer.run, inputs, layer.experts)
        dense, *experts = (stored_run(oracle.file, run) for run in (layer.run, *layer.experts))
        program = NativeProgram(entry, dense, experts, layer.kv_heads, layer.head_dim)
        found = program.run(inputs)
        error = np.linalg.norm(found.y - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert np.median(error) < 1e-6 and error.max() < 2e-2, f"layer {i}: errors by position {error}"
        for options in ({"threads": 3}, {"threads": 2, "in_place": True}):
            np.testing.assert_array_equal(program.run(inputs, **options).y, found.y)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_adapters(monkeypatch, 3, bias=True)
    write_adapted_checkpoint(tmp_path / "checkpoint", "llada")
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions("native", scheme=Scheme("mixed4")))
    return tmp_path / "bundle"


def test_products_with_adapters_are_not_fused_with_gates(bundle: Path) -> None:
    with BundleInterpreter(bundle) as interpreter:
        ops_of = {name: [op["op"] for op in interpreter.entries[name]["ops"]]
                  for name in ("dense", "dense_adapted")}  # fmt: skip
        adapted = [op for op in interpreter.entries["dense_adapted"]["ops"] if op["op"] == "linear"]
    assert ops_of["dense"].count("linear_gated") == 1 and "gated_act" not in ops_of["dense"]
    assert ops_of["dense_adapted"].count("gated_act") == 1 and "linear_gated" not in ops_of["dense_adapted"]
    own = [op for op in adapted if len(op["w"]) == 4]
    assert [op["w"][2] for op in own] == [f"{m}.lora_down" for m in
                                          ("self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")]  # fmt: skip
    assert [op["in"][1] is not None for op in own] == [True, False, True], "residuals are fused"


def linears(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    entry = manifest["programs"]["entries"]["dense_adapted"]
    return [op for op in entry["ops"] if op["op"] == "linear" and len(op["w"]) == 4]


def shapes(manifest: dict[str, Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = manifest["programs"]["entries"]["dense_adapted"]["weights"]
    return found


#: What a manifest says of the adapter of o_proj [64, 64], of rank 3, and does not mean.
DAMAGES = {
    "half": lambda m: linears(m)[0]["w"].pop(),
    "nothing": lambda m: linears(m)[0]["w"].__setitem__(2, None),
    "other way round": lambda m: linears(m)[0]["w"].__setitem__(slice(2, 4), linears(m)[0]["w"][:1:-1]),
    "of another matrix": lambda m: linears(m)[0]["w"].__setitem__(slice(2, 4), linears(m)[2]["w"][2:]),
    "more": lambda m: linears(m)[0]["w"].append(linears(m)[0]["w"][2]),
    "bias": lambda m: linears(m)[0]["w"].__setitem__(3, linears(m)[0]["w"][1]),
    "other columns": lambda m: shapes(m)["self_attn.o_proj.lora_down"].__setitem__(1, 63),
    "other rank": lambda m: shapes(m)["self_attn.o_proj.lora_down"].__setitem__(0, 4),
    "other ranks": lambda m: (
        shapes(m)["self_attn.o_proj.lora_down"].__setitem__(0, 4),
        shapes(m)["self_attn.o_proj.lora_up"].__setitem__(1, 4),
    ),
    "other rows": lambda m: shapes(m)["self_attn.o_proj.lora_up"].__setitem__(0, 1),
    "vast rank": lambda m: (
        shapes(m)["self_attn.o_proj.lora_down"].__setitem__(0, 1 << 39),
        shapes(m)["self_attn.o_proj.lora_up"].__setitem__(1, 1 << 39),
    ),
    "no shape": lambda m: shapes(m).pop("self_attn.o_proj.lora_up"),
    "vector": lambda m: shapes(m).__setitem__("self_attn.o_proj.lora_up", [192]),
}


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_wrong_adapters_of_a_bundle_are_refused(bundle: Path, engine: str, damage: str) -> None:
    sealing.edit(bundle, DAMAGES[damage])
    with pytest.raises(EdgekitError) as refused, open_session(bundle, engine=engine) as session:
        session.denoise(np.zeros(4, np.int64), HeadRequest())
    said = str(refused.value)
    assert "\n" not in said and ("program dense_adapted" in said or "run layers.0: tensor" in said), said


def test_memory_of_adapters_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between the two products of an adapter, and its matrices."""
    found = []
    for rank in (8, 400):  # so large that nothing else takes as much
        with monkeypatch.context() as patch:
            use_adapters(patch, rank)
            folder = tmp_path / str(rank)
            write_adapted_checkpoint(folder / "checkpoint", "llada")
            export(folder / "checkpoint", folder / "bundle", ExportOptions("native", scheme=Scheme("int8")))
            with Session(folder / "bundle", SessionOptions(canvas=512)) as session:
                found.append(session.plan)
    # Two layers, in two bytes; o_proj is [64, 64], up_proj [96, 64], down_proj [64, 96].
    assert found[1].pinned_bytes - found[0].pinned_bytes >= 2 * 2 * 392 * (128 + 160 + 160)
    assert found[1].scratch >= 512 * 4 * (400 + 64 + 96), "with what goes in and out"
    assert found[1].scratch - found[0].scratch > 512 * 4 * 200
