"""The MLX bundle end to end: engine against reference, stored codes against the quantizer's, and what MLX
itself reads in the folder.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from support import bundles, sealing
from support.bundles import TILE_BYTES, make_bundle, quantized_reference
from support.checkpoints import write_checkpoint
from support.head_oracle import check_saturated, others
from support.loop_parity import check_loops, check_tokens, prompt_loop, run
from support.reference_denoiser import ReferenceDenoiser
from support.signal_to_noise import decibels
from support.watched import run_watched
from torch import nn

from edgekit.export import formats
from edgekit.export.checkpoint.hub import resolve
from edgekit.export.errors import ExportError, QuantizationError
from edgekit.export.models.base import LayerInputs
from edgekit.export.ops import unpack_codes
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.programs import Program
from edgekit.export.quantize import Override, Scheme
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import (
    BudgetExceeded,
    ChecksumMismatch,
    EdgekitError,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
)
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.mlx import version as mlx_version
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, UnsupportedBundle
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import HeadRequest, PhiloxNoise
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.tokenizer import Tokenizer
from edgekit.tools.cli import main

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")

Case = tuple[Path, Any]
#: Small models that MLX's groups divide. Fewer layers than the defaults, but one of each kind.
SMALL: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2},
    "llada": {"n_layers": 2, "n_kv_heads": 2},
    "llada_moe": {"num_hidden_layers": 2},
    "dream": {"num_hidden_layers": 2, "num_attention_heads": 8},
}
#: Every family and every preset, each twice.
CASES = [
    ("diffusion_gemma", "mixed4"), ("diffusion_gemma", "bf16"), ("llada", "int4"), ("llada", "int8"),
    ("llada_moe", "mixed4"), ("llada_moe", "int8"), ("dream", "int4"), ("dream", "bf16"),
]  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=lambda c: "-".join(c))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A bundle with float32 scales, and the reference model holding the same codes."""
    family, preset = request.param
    scheme = Scheme(preset, 32)
    folder = tmp_path_factory.mktemp("mlx")
    bundle = make_bundle(folder, family, scheme, program_format="mlx", precision="float32", **SMALL[family])
    return bundle, quantized_reference(folder / "checkpoint", scheme, "mlx")


class Layers:
    """Runs the reference's layers on the inputs of the engine's, and keeps both outputs."""

    def __init__(self, session: Session, model: Any) -> None:
        engine: Any = session.engine
        self._model = model
        self.pairs: list[tuple[str, np.ndarray, np.ndarray]] = []
        self._next: Iterator[int] = iter(())
        layers, join = engine.layers, engine.join
        engine.layers = lambda program, inputs, weights: self._compare(
            inputs[0], layers(program, inputs, weights)
        )

        def joined(program: str, inputs: Any, routing: Any, *rest: Any) -> Any:
            y = join(program, inputs, routing, *rest)
            self._compare(inputs, (y, [(routing.k, routing.v)]))
            return y

        engine.join = joined

    @torch.no_grad()
    def _compare(self, inputs: Any, got: Any) -> Any:
        layers = self._model.architecture.layers
        index = next(self._next, None)
        if index is None:
            self._next = iter(range(1, len(layers)))
            index = 0
        t = {name: torch.tensor(value) for name, value in inputs.items()}
        expected = layers[index].module(LayerInputs(**t), self._model._unit(f"layers.{index}."))
        y, ((k, v),) = got
        for name, a, b in zip("ykv", (y, k, v), expected, strict=True):
            self.pairs.append((f"layer {index} {name}", a, b.numpy()))
        return got


def test_layers_and_scores_equal_the_reference(case: Case) -> None:
    bundle, model = case
    with Session(bundle) as session:
        layers = Layers(session, model)
        out, expected = bundles.passes(session, model)
    assert out.logits is not None
    passes = 4 if model.architecture.causal_prefix else 1
    assert len(layers.pairs) == 3 * passes * len(model.architecture.layers)
    for name, got, want in layers.pairs:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max(), err_msg=name)
    np.testing.assert_allclose(out.logits, expected.numpy(), rtol=1e-3, atol=1e-4)
    assert np.array_equal(out.argmax, expected.argmax(-1).numpy())
    p = torch.softmax(expected, -1)
    np.testing.assert_allclose(out.others, others(expected), rtol=1e-3)
    np.testing.assert_allclose(out.log_z, torch.logsumexp(expected, -1).numpy(), rtol=1e-3)
    entropy = torch.distributions.Categorical(p).entropy().numpy()
    np.testing.assert_allclose(out.entropy, entropy, rtol=1e-3, atol=1e-4)
    if out.soft is not None:
        np.testing.assert_allclose(out.soft, (p @ model.embedding).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_statistics_hold_where_probabilities_round_to_one(case: Case) -> None:
    bundle, model = case
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 16)
    with Session(bundle) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_gumbel_samples_are_the_argmax_with_noise(case: Case) -> None:
    bundle, model = case
    rng = np.random.default_rng(5)
    arch = model.architecture
    canvas, rows = rng.integers(0, arch.vocab_size, 11), np.array([9, 2, 2, 0])
    draw = PhiloxNoise(5).gumbel(4, arch.vocab_size)
    noise = draw(0, draw.vocab_size)
    request = HeadRequest(rows=rows, gumbel=draw, gumbel_scale=0.5, logits=True, soft=arch.causal_prefix)
    with Session(bundle) as session:
        out = session.denoise(canvas, request)
    assert out.logits is not None and out.sample is not None and out.sample_prob is not None
    np.testing.assert_array_equal(out.sample, (out.logits + np.float32(0.5) * noise).argmax(-1))
    p = torch.softmax(torch.from_numpy(out.logits), -1).numpy()
    np.testing.assert_allclose(out.sample_prob, p[np.arange(4), out.sample], rtol=1e-4)


def test_loops_equal_the_reference(case: Case) -> None:
    path, model = case
    with Session(path) as session:
        check_loops(session, model)


def test_streamed_equals_resident_bit_for_bit(case: Case) -> None:
    bundle, model = case
    with Session(bundle) as session, Session(bundle, SessionOptions(resident_bytes=0)) as streamed:
        assert not session.plan.streamed and not streamed.plan.pinned
        a, _ = bundles.passes(session, model)
        b, _ = bundles.passes(streamed, model)
        np.testing.assert_array_equal(a.logits, b.logits)
        found = streamed.statistics()  # experts without rows are skipped where that has not begun
        assert found["bytes_read"] + found["bytes_skipped"] >= streamed.plan.streamed_bytes
    assert mx.get_cache_memory() == 0, "memory that MLX keeps comes on top of the budget"


# --- what is stored -----------------------------------------------------------------------------------------


def own_codes(model: Any, name: str) -> tuple[int, torch.Tensor, torch.Tensor | None]:
    """What the quantizer made of a matrix by the report's name: bits, codes or weight, scale per column."""
    weights = model.weights()
    unit, _, expert = name.partition(".experts.")
    index, _, own = expert.partition(".")
    stem = f"{unit}.experts.{own}" if expert else name

    def part(suffix: str) -> torch.Tensor:
        tensor: torch.Tensor = weights[f"{stem}.{suffix}"].detach()
        return tensor[int(index)] if expert else tensor

    if f"{stem}.weight" in weights:
        return 16, part("weight"), None
    if f"{stem}.group_scales" not in weights:
        return 8, part("codes"), part("scales")[:, None]
    columns = 2 * part("codes").shape[1] // part("group_scales").shape[1]
    scales = part("scales")[:, None] * part("group_scales").float()
    return 4, part("codes"), scales.repeat_interleave(columns, 1)


def test_stored_codes_are_the_quantizers(case: Case) -> None:
    """Read back from the files alone: every matrix of the model, each in the bits that were asked for."""
    from mlx_audit import stored_matrices

    bundle, model = case
    found = {m.name: m for m in stored_matrices(bundle)}
    units = model.architecture.weights()
    matrices = [
        s.name if u in ("embedding", "head") else f"{u}.{s.name}" for u, s in units if s.role != "float"
    ]
    assert sorted(found) == sorted(matrices)
    for name, matrix in found.items():
        bits, codes, scales = own_codes(model, name)
        assert matrix.bits == bits, name
        assert torch.equal(matrix.weight, codes), name
        if scales is None:
            assert matrix.scales is None
            continue
        assert matrix.scales is not None
        group = matrix.weight.shape[1] * 8 // bits // matrix.scales.shape[1]
        assert torch.equal(matrix.scales, scales.expand(-1, matrix.scales.shape[1] * group)[:, ::group]), name


def test_mlx_dequantizes_what_the_reference_dequantizes(case: Case) -> None:
    """By MLX's own reader and arithmetic, with the forms that config.json gives: nothing of edgekit's."""
    bundle, model = case
    tensors = mx.load(str(bundle / "model.safetensors"))
    section = json.loads((bundle / "config.json").read_text())["quantization"]
    seen = set()
    own = {
        s.parts[0].tensor.removesuffix(".weight"): f"{u}.{s.name}"
        for u, s in model.architecture.weights()
        if s.role not in ("float", "experts", "embedding", "head")
    }
    for name in [n for n in tensors if n.endswith(".scales")]:
        path = name.removesuffix(".scales")
        form = section.get(module(path, section), section)
        assert form and form["mode"] == "affine"
        weight, scales, biases = (tensors[f"{path}.{s}"] for s in ("weight", "scales", "biases"))
        got = np.array(mx.dequantize(weight, scales, biases, form["group_size"], form["bits"]))
        seen.add(path)
        if path not in own:
            continue  # tables and halves: their codes and scales are compared in the test before
        bits, codes, per_column = own_codes(model, own[path])
        assert bits == form["bits"] and per_column is not None
        expected = (unpack_codes(codes, bits).float() * per_column).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    quantized = {n for n, t in tensors.items() if t.dtype == mx.uint32}
    assert quantized == {f"{p}.weight" for p in seen}
    floats = {n.removesuffix(".weight") for n, t in tensors.items() if t.dtype == mx.bfloat16}
    assert {module(p, section) for p in floats} == {p for p, form in section.items() if form is False}


def module(path: str, section: dict[str, Any]) -> str:
    """What `quantization` names a stored matrix by: what stacks the experts, where the checkpoint does."""
    stacked = re.sub(r"\.experts\.\d+\.(gate|up)_proj$", ".experts.gate_up_proj", path)
    stacked = re.sub(r"\.experts\.\d+\.down_proj$", ".experts.down_proj", stacked)
    return stacked if stacked in section else path


def test_the_folder_is_one_that_mlx_users_know(case: Case) -> None:
    bundle, _ = case
    config = json.loads((bundle / "config.json").read_text())
    source = json.loads((bundle.parent / "checkpoint" / "config.json").read_text())
    source.pop("vision_config", None)
    assert source.items() <= config.items() and not config.get("vision_config")
    assert {"group_size", "bits", "mode"} <= set(config["quantization"])
    with safe_open(bundle / "model.safetensors", "np") as file:  # refuses what is no plain safetensors file
        stored = set(file.keys())
        assert file.metadata()["format"] == "mlx" and not any("pad" in name for name in stored)
    assert "edgekit run" in (bundle / "README.md").read_text()
    index = json.loads((bundle / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == stored
    assert set(index["weight_map"].values()) == {"model.safetensors"}
    sizes = load_header(bundle / "model.safetensors")
    assert index["metadata"]["total_size"] == sum(
        b - a for a, b in (sizes[n]["data_offsets"] for n in stored)
    )
    assert Tokenizer(bundle).vocab_size == Tokenizer(bundle.parent / "checkpoint").vocab_size
    assert not (bundle / "tokenizer").exists()
    listed = set(manifests.load(bundle).files) | {"edgekit.json", "model.safetensors"}
    assert listed == {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}


def load_header(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        table: dict[str, Any] = json.loads(file.read(length))
    return table


# --- other shapes and precisions ----------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "group"), [("diffusion_gemma", 32), ("llada", 64)])
def test_half_precision_scales_leave_60_decibels_a_layer(tmp_path: Path, family: str, group: int) -> None:
    """The default precision against the same codes with float32 scales; wide layers, where sums are long."""
    wide = {"d_model": 256, "mlp_hidden_size": 512, "n_layers": 2} if family == "llada" else SMALL[family]
    scheme = Scheme("mixed4", group)
    bundle = make_bundle(tmp_path, family, scheme, program_format="mlx", **wide)
    assert manifests.load(bundle).programs["precision"] == "float16"
    model = quantized_reference(tmp_path / "checkpoint", scheme, "mlx")
    with Session(bundle) as session:
        layers = Layers(session, model)
        out, expected = bundles.passes(session, model)
    assert min(decibels(got, want) for _, got, want in layers.pairs) > 60
    assert out.logits is not None and decibels(out.logits, expected.numpy()) > 55
    with Session(bundle) as session:
        check_loops(session, model, 50)
    tensors = mx.load(str(bundle / "model.safetensors"))
    assert {t.dtype for n, t in tensors.items() if n.endswith((".scales", ".biases"))} == {mx.float16}


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
@pytest.mark.parametrize(("precision", "least"), [("float32", 60), (None, 50)])
def test_the_shipped_models_generate_what_the_reference_generates(
    tmp_path: Path, name: str, precision: str | None, least: float
) -> None:
    """What `--precision` leaves to the format is scales in float16."""
    checkpoint = resolve(name)
    scheme = Scheme("mixed4", 32)
    export(checkpoint, tmp_path / "bundle", ExportOptions("mlx", scheme=scheme, precision=precision))
    model = quantized_reference(checkpoint, scheme, "mlx")
    with Generator(tmp_path / "bundle") as generator:
        loop = prompt_loop(generator, "12 + 34 =", Settings(max_new_tokens=16, steps=3, seed=3))
    with Session(tmp_path / "bundle") as session:
        layers = Layers(session, model) if precision == "float32" else None
        check_tokens(run(ReferenceDenoiser(model), loop), run(session, loop), loop, least)
    if layers is not None:
        assert max(float(np.abs(got - want).max()) for _, got, want in layers.pairs) < 1e-3


def test_unusual_shapes_are_stored_in_16_bits_and_said_so(tmp_path: Path) -> None:
    """112 columns divide into no group of MLX's; float experts in one layer make a second program."""
    write_checkpoint(
        tmp_path / "dream", "dream", num_hidden_layers=1, num_attention_heads=7, num_key_value_heads=1,
        hidden_size=112, vocab_size=391,
    )  # fmt: skip
    result = export(tmp_path / "dream", tmp_path / "a", ExportOptions("mlx", tile_bytes=TILE_BYTES))
    assert any("layers.0.self_attn.q_proj: 112 columns do not divide" in n for n in result.notes)
    assert {t.bits for t in result.report.tensors if t.shape[1] == 112} == {16}
    with Session(tmp_path / "a") as session:
        model = quantized_reference(tmp_path / "dream", Scheme(), "mlx")
        out, expected = bundles.passes(session, model)
    assert np.array_equal(out.argmax, expected.argmax(-1).numpy())

    scheme = Scheme("mixed4", 32, (Override("layers.1.experts.*", 16), Override("layers.0.*.q_proj", 4)))
    (tmp_path / "moe").mkdir()
    bundle = make_bundle(
        tmp_path / "moe", "llada_moe", scheme, program_format="mlx", precision="float32",
        num_experts=5, num_experts_per_tok=3, num_hidden_layers=3,
    )  # fmt: skip
    assert [layer.program for layer in Bundle.open(bundle).model.layers] == ["moe", "moe_2", "moe_3"]
    section = json.loads((bundle / "config.json").read_text())["quantization"]
    assert section["model.layers.1.mlp.experts.4.gate_proj"] is False
    assert section.get("model.layers.0.self_attn.q_proj", section)["bits"] == 4
    with Session(bundle) as session:
        model = quantized_reference(bundle.parent / "checkpoint", scheme, "mlx")
        out, expected = bundles.passes(session, model)
    np.testing.assert_allclose(out.logits, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_one_file_serves_all_lengths(case: Case) -> None:
    """The programs were traced with 12 positions and a prefix of 7."""
    bundle, model = case
    arch = model.architecture
    rng = np.random.default_rng(2)
    with Session(bundle) as session, torch.no_grad():
        for length in (1, 2, 40):
            ids = rng.integers(0, arch.vocab_size, length)
            out = session.denoise(ids, HeadRequest(logits=True))
            expected = model.denoise(torch.from_numpy(ids)[None])[0].numpy()
            np.testing.assert_allclose(out.logits, expected, rtol=1e-3, atol=1e-4)


# --- function files -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bundle to look at, which no test changes."""
    folder = tmp_path_factory.mktemp("small")
    return make_bundle(folder, "llada_moe", program_format="mlx", num_hidden_layers=1, num_experts=2)


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy"))


def test_files_for_gpu_and_processor_differ_in_the_device_alone(small: Path) -> None:
    """A GPU's file cannot run here; the processor's is made from it by changing nothing but device words."""
    from edgekit.runtime.engines.mlx import functions as mlx_functions

    for path in (small / "programs" / "cpu").iterdir():
        cpu, gpu = path.read_bytes(), (small / "programs" / "gpu" / path.name).read_bytes()
        parsed = mlx_functions.parse(gpu, path.name)
        assert parsed.shapeless and len(cpu) == len(gpu)
        assert mlx_functions.encode(parsed, "cpu") == cpu and mlx_functions.encode(parsed, "gpu") == gpu
        words = [i for i, (a, b) in enumerate(zip(cpu, gpu, strict=True)) if a != b]
        assert len(words) == sum(bool(e.name) for e in parsed.tape)
        assert {(cpu[i], gpu[i]) for i in words} == {(0, 1)}


def test_an_export_repeats_byte_for_byte(small: Path, tmp_path: Path) -> None:
    """MLX names arrays by their addresses, which differ from one export to the next."""
    options = ExportOptions("mlx", tile_bytes=TILE_BYTES)
    export(small.parent / "checkpoint", tmp_path / "again", options)
    for path in small.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(small)).read_bytes(), path


def test_an_unknown_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgekit.export.formats.mlx.graph import Graph

    class Erf(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erf(x) + 1

    exported = torch.export.export(Erf(), (torch.zeros(1, 3),))
    program = Program("strange", exported, ("x",), ("y",), {})
    with pytest.raises(
        ExportError, match=r"program strange: node erf \(aten.erf.default\) has no form in MLX"
    ):
        Graph(program, {}, "float32").whole().call(mx.zeros((1, 3)))


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"scheme": Scheme("mixed4", 16)},
            "format mlx stores 4-bit weights in groups of 32, 64 or 128, not 16",
        ),
        ({"scheme": Scheme("mixed4", 256)}, "in groups of 32, 64 or 128, not 256; set --group-size"),
        ({"precision": "bfloat16"}, "unknown precision 'bfloat16' for format mlx; did you mean float16?"),
        ({"format": "onnx", "precision": "float16"}, "format onnx has no precision to choose; leave it out"),
        (
            {"scheme": Scheme("mixed4", 32, (Override("layers.0.experts.1.*", 8),))},
            "layers.0.experts.1.gate_up: has 8 bits and the layer's first expert 4",
        ),
    ],
)
def test_what_the_format_cannot_do_is_one_line(
    small: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    if options.get("scheme", Scheme()).group_size == 256:  # of the usual fallbacks none may hide it
        write_checkpoint(tmp_path / "wide", "llada", d_model=256, mlp_hidden_size=512, n_layers=1)
    checkpoint = tmp_path / "wide" if (tmp_path / "wide").exists() else small.parent / "checkpoint"
    with pytest.raises((ExportError, QuantizationError)) as refused:
        export(checkpoint, tmp_path / "out", ExportOptions(**{"format": "mlx", **options}))
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_scales_beyond_half_precision_are_refused() -> None:
    from edgekit.export.formats.mlx import layout as mlx_layout
    from edgekit.export.quantize import quantize_matrix

    quantized = quantize_matrix(torch.full((2, 32), 1e6), 8, 0)
    with pytest.raises(ExportError, match=r"big: holds .*, beyond float16; export with --precision float32"):
        mlx_layout.arrays("big", "attention", quantized, "float16")
    stored = mlx_layout.arrays("big", "attention", quantized, "float32")
    assert np.isfinite(stored["big.scales"]).all()


def test_a_missing_package_names_the_extra(small: Path, hide_package: Callable[..., None]) -> None:
    hide_package("mlx", "edgekit.export.formats.mlx", "edgekit.runtime.engines.mlx")
    with pytest.raises(EngineUnavailable, match=r"the mlx engine needs mlx: pip install 'edgekit\[mlx\]'"):
        Session(small)
    with pytest.raises(ExportError, match=r"needs the package mlx: pip install 'edgekit\[mac\]'"):
        formats.load("mlx")


def test_a_folder_with_weights_of_its_own_is_left_alone(small: Path, tmp_path: Path) -> None:
    """A checkpoint's weights have the name of a bundle's: --overwrite must not take them for one."""
    folder = Path(shutil.copytree(small.parent / "checkpoint", tmp_path / "mine"))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    for options in (ExportOptions("mlx", overwrite=True), ExportOptions("mlx", resume=True)):
        with pytest.raises(
            ExportError, match="holds files that are not a bundle; give an empty or new folder"
        ):
            export(small.parent / "checkpoint", folder, options)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_bundle_of_another_format_is_replaced(copy: Path, small: Path) -> None:
    export(small.parent / "checkpoint", copy, ExportOptions("native", tile_bytes=TILE_BYTES, overwrite=True))
    assert not (copy / "model.safetensors").exists() and (copy / "weights.safetensors").exists()
    assert Bundle.open(copy).tokenizer().where == str(copy / "tokenizer")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.32.1", True), ("0.32.4", True), ("0.32.10.dev20260901", True), ("0.32.0", False),
        ("0.30.6", False), ("0.33.0", False), ("1.32.1", False), ("", False), ("None", False),
        ("0.32", False),
    ],
)  # fmt: skip
def test_versions_that_read_each_others_functions(version: str, known: bool) -> None:
    assert mlx_version.reads(version) == known


def test_another_version_of_mlx_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_version, "installed", lambda: "0.31.2")
    with pytest.raises(
        EngineUnavailable, match=r"mlx 0.31.2 is not one that edgekit knows \(mlx>=0.32.1,<0.33\)"
    ):
        Session(small)
    with pytest.raises(
        ExportError, match=r"mlx 0.31.2 writes functions that edgekit does not know; pip install"
    ):
        formats.load("mlx")


def changed(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit the section `programs` of a bundle's manifest."""
    sealing.edit(bundle, lambda manifest: change(manifest["programs"]))


def test_programs_of_another_version_are_refused_before_mlx_sees_them(copy: Path) -> None:
    changed(copy, lambda programs: programs.update(mlx="0.31.2"))
    with pytest.raises(
        UnsupportedBundle, match=r"written by mlx 0.31.2, whose files .* export the bundle again"
    ):
        Session(copy)
    changed(copy, lambda programs: programs.update(mlx="0.32.4"))
    path = copy / "programs" / "cpu" / "moe.before.mlxfn"
    path.write_bytes(struct.pack("<Q", 6) + b"0.31.2" + path.read_bytes()[14:])
    with Session(copy) as session, pytest.raises(ChecksumMismatch, match=r"moe.before.mlxfn: has xxh3"):
        session.denoise(np.arange(4), HeadRequest())
    sealing.relist(copy, path.relative_to(copy).as_posix())
    with (
        Session(copy) as session,
        pytest.raises(UnsupportedBundle, match=r"moe.before.mlxfn: .* by mlx 0.31.2"),
    ):
        session.denoise(np.arange(4), HeadRequest())
    replace_function(copy, path, b"")
    with Session(copy) as session, pytest.raises(MalformedFile, match=r"moe.before.mlxfn: .* ends early"):
        session.denoise(np.arange(4), HeadRequest())


def replace_function(bundle: Path, path: Path, data: bytes) -> None:
    """Another file for a function, which the manifest describes as it describes every file."""
    path.write_bytes(data)
    sealing.relist(bundle, path.relative_to(bundle).as_posix())


def test_mlx_sees_no_function_that_is_not_the_exported_one(copy: Path) -> None:
    """It computes what a damaged file says, or dies of it."""
    path = copy / "programs" / "cpu" / "moe.before.mlxfn"
    data = path.read_bytes()
    for at in (8, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with (
            Session(copy) as session,
            pytest.raises(ChecksumMismatch, match=r"moe.before.mlxfn: has xxh3") as refused,
        ):
            session.denoise(np.arange(4), HeadRequest())
        assert "\n" not in str(refused.value)
    path.write_bytes(data[:-1])
    with Session(copy) as session, pytest.raises(TruncatedFile, match=r"moe.before.mlxfn: has \d+ of"):
        session.denoise(np.arange(4), HeadRequest())
    path.unlink()
    with Session(copy) as session, pytest.raises(OpenFailed, match=r"moe.before.mlxfn: is missing"):
        session.denoise(np.arange(4), HeadRequest())


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda p: p.update(layout="mlx-0"), UnsupportedBundle, "are mlx/mlx-0; the mlx engine runs mlx/mlx"),
        (lambda p: p.update(format="mlxx"), UnsupportedBundle, "of format 'mlxx'; did you mean mlx"),
        (
            lambda p: p["entries"]["final"]["inputs"][1].update(shape=[65]), EngineFailed,
            "program final takes norm.weight as F32 [65], not as float32 [64]; export the bundle again",
        ),
        (
            lambda p: p["entries"]["head"]["inputs"][2].update(shape=["t", 16]), EngineFailed,
            "program head takes table.weight as U32 ['t', 16]",
        ),
        (
            lambda p: p["entries"]["final"]["inputs"][1].update(name="w.other"), EngineFailed,
            "program final takes other, which its run does not hold",
        ),
        (
            lambda p: p["entries"]["final"]["outputs"].append({"name": "z", "dtype": "F32", "shape": [1]}),
            EngineFailed, "final.mlxfn: gives F32 [1, 4, 64], the manifest declares F32 [1, 't', 64], ",
        ),
        (lambda p: p.pop("entries"), MalformedFile, "edgekit.json: programs: entries is missing, "),
        (lambda p: p["entries"].pop("final"), MalformedFile, "programs: final is missing, expected an "),
        (lambda p: p["entries"].pop("head_sample"), MalformedFile, "programs: head_sample is missing"),
        (lambda p: p["entries"].update(moe=[]), MalformedFile, "programs: moe is '[]', expected an object"),
        (lambda p: p["entries"]["moe"].pop("expert"), MalformedFile, "program moe: expert is missing"),
        (
            lambda p: p["entries"]["moe"]["after"].pop("inputs"), MalformedFile,
            "program moe.after: inputs is missing, expected a list; export the bundle again",
        ),
        (lambda p: p["entries"]["head"].pop("cpu"), MalformedFile, "program head: cpu is missing"),
        (
            lambda p: p["entries"]["head"]["cpu"].update(file="programs/cpu/other.mlxfn"), MalformedFile,
            "program head: programs/cpu/other.mlxfn is not among the files of the bundle",
        ),
        (lambda p: p["entries"]["head"]["cpu"].update(file=3), MalformedFile, "file is '3', expected a text"),
        (
            lambda p: p["entries"]["final"]["outputs"].clear(), MalformedFile,
            "program final: outputs have no y; export the bundle again",
        ),
        (
            lambda p: p["entries"]["moe"]["after"]["outputs"].clear(), MalformedFile,
            "program moe.before and moe.after: outputs have no y",
        ),
        (
            lambda p: p["entries"]["final"]["inputs"][0].update(dtype="F64"), MalformedFile,
            "program final, inputs: x is F64, expected one of F32, F16, BF16, U32, I64",
        ),
        (
            lambda p: p["entries"]["final"]["inputs"][0].update(shape=[0, 64]), MalformedFile,
            "program final, inputs: x has shape [0, 64]",
        ),
        (
            lambda p: p["entries"]["final"]["inputs"].extend(p["entries"]["final"]["inputs"]), MalformedFile,
            "program final, inputs: x is there twice",
        ),
    ],
)  # fmt: skip
def test_bundles_that_do_not_fit_are_refused(
    copy: Path, change: Callable[[dict[str, Any]], Any], error: type[EdgekitError], said: str
) -> None:
    """Sizes above all: a function that MLX has exported does not check them."""
    changed(copy, change)
    with pytest.raises(error) as refused, Session(copy) as session:
        session.denoise(np.arange(4), HeadRequest())
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_every_engine_is_known_by_its_format(small: Path) -> None:
    engine = engines.create(Bundle.open(small), 1)
    assert engine.name == "mlx" and engine.name in engines.ENGINES


def test_the_command_line_exports_for_a_mac_and_runs(small: Path, tmp_path: Path) -> None:
    """What a Mac gets by default, checked by verify, planned by inspect and run on the processor."""
    checkpoint, out = small.parent / "checkpoint", tmp_path / "out"

    def edgekit(*words: Any) -> Any:
        result = CliRunner().invoke(main, [str(w) for w in words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    written = edgekit("export", checkpoint, "--target", "mac", "-o", out, "--json")
    assert written["bundle"] == str(out)
    found = edgekit("inspect", out, "--memory", "8GB", "--json")
    assert found["programs"]["format"] == "mlx" and found["quantization"]["group_size"] == 64
    assert found["plan"]["unpacked_bytes"] > 0
    report = edgekit("verify", out, "--json")
    assert report["ok"] and report["surplus"] == []
    answer = edgekit("run", out, "-p", "a", "--max-new-tokens", 4, "--steps", 1, "--engine", "mlx", "--json")
    assert answer["token_ids"]
    result = CliRunner().invoke(main, ["export", str(checkpoint), "--target", "mac", "--format", "onnx"])
    assert result.exit_code == 2
    assert "does not run format 'onnx'; did you mean --target host? supported: mlx" in result.stderr


# --- memory and threads -------------------------------------------------------------------------------------

DENOISE = """
import json, sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions
memory = int(sys.argv[2]) or None
with Session(sys.argv[1], SessionOptions(memory_bytes=memory, positions=0, canvas=4)) as session:
    for _ in range(2):
        out = session.denoise(np.arange(4), HeadRequest())
    stats = session.statistics()
print(json.dumps({"ids": out.argmax.tolist(), "entropy": out.entropy.tolist(), "engine": stats}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_budget_holds_and_the_answer_is_the_same(tmp_path: Path) -> None:
    """Passes over 77 MB of 8-bit weights, most of which stream, watched from outside."""
    bundle = make_bundle(
        tmp_path, "llada", Scheme("int8"), program_format="mlx", dtype="bfloat16",
        d_model=1024, n_heads=8, mlp_hidden_size=2816, n_layers=6, vocab_size=1024,
    )  # fmt: skip
    resident, resident_peak = run_watched(DENOISE, bundle, 0)
    assert resident["engine"]["streamed_bytes_per_step"] == 0
    with pytest.raises(BudgetExceeded) as refused:
        Session(bundle, SessionOptions(memory_bytes=1, positions=0, canvas=4))
    # This test's own process is larger than a fresh one; what the budget must hold besides is the same.
    with Session(bundle, SessionOptions(positions=0, canvas=4)) as session:
        needs = session.plan
    budget = refused.value.needed_bytes - needs.process + resident["engine"]["process_bytes"] + (8 << 20)
    assert budget < resident_peak, "the budget must be one that the resident run does not keep"
    streamed, peak = run_watched(DENOISE, bundle, budget)
    assert streamed["engine"]["streamed_bytes_per_step"] > 40_000_000
    assert (streamed["ids"], streamed["entropy"]) == (resident["ids"], resident["entropy"])
    assert peak <= budget, f"{peak / 1e6:.0f} MB used of {budget / 1e6:.0f} MB"


THREADS = """
import json, sys, threading
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

out, ids = [], np.arange(5)
def work(session):
    out.append(session.denoise(ids, HeadRequest()).entropy.tolist())
with Session(sys.argv[1]) as a:
    work(a)
    with Session(sys.argv[1]) as b:
        threads = [threading.Thread(target=work, args=(s,)) for s in (a, b)]
        [t.start() for t in threads]
        [t.join() for t in threads]
print(json.dumps({"out": out}))
"""


def test_sessions_run_in_any_thread(small: Path) -> None:
    """MLX's streams belong to the thread that makes them."""
    found, _ = run_watched(THREADS, small, 0)
    assert len(found["out"]) == 3 and found["out"][0] == found["out"][1] == found["out"][2]


def test_a_stream_of_another_thread_is_explained(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens when MLX was first used in a thread other than the session's."""
    mx.eval(mx.zeros(1) + 1)
    with Session(small) as session:

        def refuse(*arrays: Any) -> Any:
            raise RuntimeError("There is no Stream(cpu, 0) in current thread.")

        engine: Any = session.engine
        plain = engine._function
        monkeypatch.setattr(engine, "_function", lambda program: replace(plain(program), call=refuse))
        with pytest.raises(EngineFailed, match="mlx was in use before the session was opened"):
            session.denoise(np.arange(4), HeadRequest())
