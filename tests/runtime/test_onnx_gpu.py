"""Bundles for GPUs in ONNX Runtime: on its processor, and with WebGPU on a Vulkan device in software."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import provider_cases
from support.bundles import TILE_BYTES, make_bundle
from support.low_rank import use_adapters, write_adapted_checkpoint

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.errors import QuantizationError
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Override, Scheme
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.engines.onnx.programs import Refused, check_program
from edgekit.runtime.errors import EngineUnavailable, RunsOnProcessor
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import open_session
from edgekit.runtime.telemetry import load_onnxruntime

#: Family, preset, group size, sizes: odd head counts, groups of one and two blocks, rows that no block
#: divides, several experts a row.
CASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "gemma mixed4": ("diffusion_gemma", "mixed4", 32, {"moe_intermediate_size": 32, "num_hidden_layers": 3}),
    "llada int4": ("llada", "int4", 64, {"n_layers": 2, "mlp_hidden_size": 160}),
    "llada_moe mixed4": ("llada_moe", "mixed4", 32, {"num_experts": 5, "num_experts_per_tok": 3,
                         "num_hidden_layers": 2}),
    "dream odd": ("dream", "int8", 32, {"num_hidden_layers": 1, "num_attention_heads": 5,
                  "num_key_value_heads": 5, "hidden_size": 40, "vocab_size": 391}),
}  # fmt: skip


def made(folder: Path, name: str) -> tuple[str, ...]:
    """A bundle, as the words of a case of `provider_cases`."""
    family, preset, group, sizes = CASES[name]
    make_bundle(folder, family, Scheme(preset, group), program_format="onnx-gpu", **sizes)
    return "pass", str(folder), "webgpu", preset, str(group)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the engine take the processor for a GPU."""
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})


@pytest.mark.parametrize("name", CASES)
def test_the_engine_equals_the_reference(tmp_path: Path, name: str, processor: None) -> None:
    """Its weights kept, and streamed."""
    case = made(tmp_path, name)
    kept = provider_cases.main(*case)
    assert kept["error"] < 1e-4 and kept["provider"] == "CPUExecutionProvider" and not kept["warnings"]
    streamed = provider_cases.main(*case, "streamed")
    assert streamed["error"] < 1e-4 and streamed["read"] > kept["read"]


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
def test_the_shipped_models_generate_what_the_reference_generates(
    tmp_path: Path, name: str, processor: None
) -> None:
    export(resolve(name), tmp_path / "bundle", ExportOptions("onnx-gpu", scheme=Scheme("mixed4", 32)))
    assert provider_cases.main("generation", str(tmp_path), "webgpu", name)["differences"] == 0


def test_rows_that_no_block_divides_are_stored_in_16_bits_and_said_so(tmp_path: Path) -> None:
    folder = make_bundle(
        tmp_path, "dream", Scheme("int8"), program_format="onnx-gpu", **CASES["dream odd"][3]
    )
    notes = json.loads((folder / "edgekit.json").read_text())["quantization"]["notes"]
    assert any("40 columns do not divide into blocks of 16: stored in 16 bits" in note for note in notes)


def test_experts_that_are_unlike_are_refused(tmp_path: Path) -> None:
    unlike = Scheme("mixed4", 32, (Override("layers.0.experts.1.*", 8),))
    with pytest.raises(QuantizationError, match="onnx-gpu"):
        make_bundle(tmp_path / "b", "llada_moe", unlike, program_format="onnx-gpu")


def test_programs_of_either_format_are_checked_for_its_own_operators(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, "llada", Scheme("int8"), program_format="onnx-gpu", n_layers=1)
    program = (bundle / "programs" / "dense.onnx").read_bytes()
    check_program(program, "onnx-gpu")
    with pytest.raises(Refused, match="'com.microsoft'|'Pow', which no export writes"):
        check_program(program)
    model = onnx.load_from_string(program)
    for node in model.graph.node:
        if node.domain == "com.microsoft":
            node.op_type = "DynamicQuantizeLSTM"
    with pytest.raises(Refused, match="the operator 'DynamicQuantizeLSTM'"):
        check_program(model.SerializeToString(), "onnx-gpu")


@pytest.mark.parametrize("name", ["onnx", "onnx-gpu"])
def test_without_onnxruntime_the_own_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bundle = Bundle.open(make_bundle(tmp_path, "llada", Scheme("int8"), program_format=name, n_layers=1))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = rf"the {name} engine needs onnxruntime: pip install 'edgekit\[{name}\]'$"
    with pytest.raises(EngineUnavailable, match=said):
        ENGINES.own[name].load()(bundle.folder, bundle.manifest, 1)


def test_without_a_provider_for_gpus_one_line_says_what_to_install(tmp_path: Path) -> None:
    if set(gpu_engine.PROVIDERS) & set(load_onnxruntime().get_available_providers()):
        pytest.skip("onnxruntime has a provider for GPUs here")
    bundle = make_bundle(tmp_path, "llada", Scheme("int8"), program_format="onnx-gpu", n_layers=1)
    with pytest.raises(
        EngineUnavailable, match=r"no provider for GPUs, only .*; .* install onnxruntime-webgpu"
    ):
        open_session(bundle)


def test_what_the_processor_runs_is_said(
    tmp_path: Path, processor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by a provider that runs nothing."""
    bundle = make_bundle(tmp_path, "llada", Scheme("int8"), program_format="onnx-gpu", n_layers=1)
    named = gpu_engine.working_provider
    monkeypatch.setattr(gpu_engine, "working_provider", lambda *given: named(*given) and "Nothing")
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu", "Nothing": "cpu"})
    monkeypatch.setattr(
        gpu_engine.OnnxGpuEngine,
        "_create",
        lambda self, program: self._open(program, ["CPUExecutionProvider"]),
    )
    said = pytest.warns(RunsOnProcessor, match=r"program dense: Nothing has no kernel for .*MatMulNBits \(n")
    with said, open_session(bundle) as session:
        session.denoise(np.zeros(5, np.int64), HeadRequest())
        assert "dense" in session.statistics()["on_processor"]


def test_a_device_without_room_is_done_without(
    tmp_path: Path, processor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(tmp_path, "llada int4")
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cuda"})
    assert provider_cases.main(*case)["error"] < 1e-4


# --- on WebGPU ----------------------------------------------------------------------------------------------


def on_webgpu(what: str, folder: str, provider: str, *words: str) -> dict[str, Any]:
    """A case of `provider_cases` there."""
    found = provider_cases.elsewhere(what, Path(folder), provider, *words)
    assert found["provider"] == "WebGpuExecutionProvider"
    return found


@pytest.mark.parametrize("name", ["gemma mixed4", "llada int4", "llada_moe mixed4"])
def test_webgpu_equals_the_reference(tmp_path: Path, name: str) -> None:
    assert on_webgpu(*made(tmp_path, name))["error"] < 1e-4


@pytest.mark.parametrize(("preset", "rank"), [("bf16", 1), ("int4", 8)])
def test_webgpu_adds_adapters_as_the_reference(
    tmp_path: Path, preset: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_adapters(monkeypatch, rank)
    write_adapted_checkpoint(tmp_path / "checkpoint", "llada")
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions("onnx-gpu", scheme=Scheme(preset, 32)))
    assert on_webgpu("adapted", str(tmp_path), "webgpu", preset, "32", str(rank))["error"] < 1e-4


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
def test_webgpu_generates_what_the_reference_generates(tmp_path: Path, name: str) -> None:
    how = ExportOptions("onnx-gpu", scheme=Scheme("mixed4", 32), tile_bytes=TILE_BYTES)
    export(resolve(name), tmp_path / "bundle", how)
    assert on_webgpu("generation", str(tmp_path), "webgpu", name)["differences"] == 0


def test_weights_stream_to_webgpu(tmp_path: Path) -> None:
    assert on_webgpu(*made(tmp_path, "llada int4"), "streamed")["error"] < 1e-4
