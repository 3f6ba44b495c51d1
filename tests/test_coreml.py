"""The Core ML bundle: every function of its packages against the reference holding the same codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import quantized_reference
from coreml_bundles import (
    HIDDEN,
    Programs,
    check_layers,
    decibels,
    layer_results,
    layer_values,
    make_bundle,
    random,
    torched,
)

from edgekit.export.formats import packaging
from edgekit.export.formats.packaging import Packaging
from edgekit.export.ops import dequantize
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel

pytest.importorskip("coremltools", reason="coremltools is not installed")

#: Small models with one layer of each kind; windows shorter than the prefix.
SMALL: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {
        "intermediate_size": 64, "moe_intermediate_size": 32, "sliding_window": 33, "num_hidden_layers": 3
    },
    "llada": {"n_layers": 3, "n_heads": 4, "n_kv_heads": 2},
    "llada_moe": {"num_hidden_layers": 3, "num_experts": 21, "num_experts_per_tok": 3},
    "dream": {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
}  # fmt: skip
LENGTHS = {"diffusion_gemma": (0, 48), "llada": (8, 13), "llada_moe": (11,), "dream": (7, 20)}
CASES = [
    ("diffusion_gemma", "mixed4", 3), ("diffusion_gemma", "bf16", 1), ("llada", "int4", 2),
    ("llada", "int8", 3), ("llada_moe", "mixed4", 2), ("llada_moe", "int8", 1), ("dream", "int4", 3),
    ("dream", "bf16", 2),
]  # fmt: skip


def table_of(model: ReferenceModel, start: int, rows: int) -> torch.Tensor:
    table, scales = model._table("head" if model.architecture.head is not None else "embedding")
    return dequantize(table, None, scales)[start : start + rows]


@pytest.mark.parametrize(("family", "preset", "chunk"), CASES)
def test_layers_equal_the_reference(tmp_path: Path, family: str, preset: str, chunk: int) -> None:
    scheme = Scheme(preset, 32)
    packaging = Packaging(LENGTHS[family], layers_per_chunk=chunk)
    bundle = make_bundle(tmp_path, family, scheme, "float32", packaging, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    count = check_layers(bundle, model, 1, "declared", None)
    chunks = -(-len(model.architecture.layers) // chunk)
    assert count == chunks * len(LENGTHS[family])


@pytest.mark.parametrize("family", SMALL)
def test_float16_layers_are_close_to_the_reference(tmp_path: Path, family: str) -> None:
    """Layer by layer. What is not rounded, but for the stored scales, is closer still."""
    scheme = Scheme("mixed4", 32)
    packaging = Packaging(LENGTHS[family], layers_per_chunk=1)
    bundle = make_bundle(tmp_path, family, scheme, "float16", packaging, **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    check_layers(bundle, model, 1, "declared", 60)
    check_layers(bundle, model, 1, "float32", 65)


@pytest.mark.parametrize(
    ("family", "preset"), [("diffusion_gemma", "mixed4"), ("llada", "int8"), ("dream", "bf16")]
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_around_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, precision: str
) -> None:
    """Norm, self-conditioning and all forms of the head, which is cut into four packages."""
    monkeypatch.setattr(packaging, "MOST_HEAD_ROWS", 100)
    scheme, lengths = Scheme(preset, 32), LENGTHS[family][-1:]
    bundle = make_bundle(tmp_path, family, scheme, precision, Packaging(lengths), **SMALL[family])
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    programs, rng = Programs(bundle), np.random.default_rng(7)
    arch = model.architecture
    near: dict[str, Any] = (
        {"rtol": 1e-4, "atol": 1e-5} if precision == "float32" else {"rtol": 0.01, "atol": 0.02}
    )
    heads = [name for name, entry in programs.entries.items() if "start" in entry]
    assert len(heads) == 4 and sum(programs.entries[n]["rows"] for n in heads) == arch.vocab_size
    for package, entry in programs.entries.items():
        for name, function in entry["functions"].items():
            values = {f["role"]: random(rng, *f["shape"]) for f in function["inputs"]}
            if "temperature" in values:
                values["temperature"] = np.array([0.7])
            if function["kind"] == "layers":
                continue
            got = programs.run(package, name, values, "declared")
            with torch.no_grad():
                expected = around(model, entry, function, values)
            assert got.keys() == expected.keys()
            for role, array in got.items():
                if role in ("argmax", "sample") and precision == "float16":
                    continue  # ties; that the value there is the largest is in `max` and `score`
                if role == "sample_z" and precision == "float16":
                    continue
                scale = max(1.0, float(np.abs(expected[role]).max()))
                np.testing.assert_allclose(
                    array / scale, expected[role] / scale, err_msg=f"{package} {name} {role}", **near
                )


def around(
    model: ReferenceModel, entry: dict[str, Any], function: dict[str, Any], values: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The results of a function that is none of layers, from the whole table and torch's own functions."""
    t, arch = {name: torched(np.float32(value)) for name, value in values.items()}, model.architecture
    if function["kind"] == "final":
        x = t["x"]
        norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + arch.norm_eps)
        return {"y": (norm * model._unit("norm.")["weight"]).numpy()}
    if function["kind"] == "self_conditioning":
        assert arch.self_conditioning is not None
        unit = model._unit("self_conditioning.")
        return {"y": arch.self_conditioning(t["embedded"], t["soft"], unit).numpy()}
    table = table_of(model, entry["start"], entry["rows"])
    z = t["x"] @ table.T
    z = (arch.softcap * torch.tanh(z / arch.softcap) if arch.softcap else z) / t["temperature"]
    roles = {f["role"] for f in function["outputs"]}
    if "z" in roles:
        return {"z": z.numpy()}
    e = torch.exp(z - z.max(-1, keepdim=True).values)
    out = {
        "max": z.max(-1).values,
        "argmax": z.argmax(-1),
        "sum_exp": e.sum(-1),
        "sum_z_exp": (z * e).sum(-1),
    }
    if "noise" in t:
        score = z + t["noise"]
        at = score.argmax(-1)
        out |= {"score": score.max(-1).values, "sample": at, "sample_z": z[torch.arange(len(z)), at]}
    if "soft" in roles:
        out["soft"] = e @ table
    return {name: value.numpy() for name, value in out.items()}


def test_half_precision_survives_large_rows_and_empty_ones(tmp_path: Path) -> None:
    """Squares of 300 do not fit float16; the mean square of zeros is not divided by."""
    scheme, family = Scheme("int8", 32), "llada"
    bundle = make_bundle(tmp_path, family, scheme, "float16", Packaging((9,), layers_per_chunk=3))
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    programs, rng = Programs(bundle), np.random.default_rng(0)
    function = programs.entries["layers.0-2"]["functions"]["t9_p0"]
    values = layer_values(rng, model, function)
    values["mask.full"][:] = 0.0
    for scale, least in ((3e4, 60), (1e-3, 55)):
        values["x"] = random(rng, 1, 9, model.architecture.hidden_size, scale=scale / 4)
        got = programs.run("layers.0-2", "t9_p0", values, "declared")
        expected = layer_results(model, [0, 1, 2], values, values["x"])
        assert decibels(got["k.0"], expected["k.0"]) > least
    values["x"][0, 4:] = 0.0
    out = programs.run("layers.0-2", "t9_p0", values, "declared")
    assert all(np.isfinite(array).all() for array in out.values())


def test_padding_that_is_masked_changes_nothing(tmp_path: Path) -> None:
    """A pass of 5 positions after a prefix of 20 in a function of 16 and 48, rubbish in what is beyond."""
    scheme, family = Scheme("mixed4", 32), "diffusion_gemma"
    bundle = make_bundle(tmp_path, family, scheme, "float32", Packaging((48,)), **SMALL[family])
    programs, rng = Programs(bundle), np.random.default_rng(1)
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    package = next(n for n in programs.entries if n.startswith("layers"))
    function = programs.entries[package]["functions"]["t16_p48"]
    values = layer_values(rng, model, function)
    for role, array in values.items():
        if role.startswith("mask"):
            p = array.shape[1] - 16
            array[:], array[:, 20:p], array[:, p + 5 :] = 0.0, HIDDEN, HIDDEN
    first = programs.run(package, "t16_p48", values, "declared")
    for role, array in values.items():
        if role.startswith("prefix"):
            array[:, :, 20:] = random(rng, *array[:, :, 20:].shape, scale=50)
    values["x"][:, 5:] = random(rng, *values["x"][:, 5:].shape, scale=50)
    second = programs.run(package, "t16_p48", values, "declared")
    np.testing.assert_allclose(first["y"][:, :5], second["y"][:, :5], rtol=1e-5, atol=1e-5)
    assert np.abs(first["y"][:, 5:] - second["y"][:, 5:]).max() > 1
