"""Nemotron-Labs-Diffusion, LLaDA2 and the families made of Qwen2 and Qwen3, exported to every format and run
by every engine: the reference's logits, behind a prefix in two parts where the family has one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support import package_bundles, sealing
from support.bundles import int8_activations, make_bundle, passes, quantized_reference
from support.checkpoints import write_checkpoint
from support.dense_checkpoints import FAMILIES

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.packages.cut import choose_lengths
from edgekit.export.models import architecture
from edgekit.export.programs import Lengths
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import MalformedFile
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.errors import EdgekitError
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions, open_session
from edgekit.tools.cli import main

NEMOTRON = "nemotron_labs_diffusion"
#: Engine and family: exports to ONNX and TVM take long (their routing: `test_routing`). The mask of a prefix
#: shows from the second layer on.
CASES = [
    ("torch", NEMOTRON), ("torch", "sdar_moe"), ("onnx", NEMOTRON), ("onnx-gpu", "sdar"), ("tvm", NEMOTRON),
    ("mlx", NEMOTRON), ("mlx", "sdar_moe"), ("mlx", "fast_dllm"), ("coreml", NEMOTRON),
    ("coreml", "a2d_qwen3"), ("coreai", "sdar_moe"), ("coreai", "coda"),
    ("torch", "llada2_moe"), ("torch", "llada2.2"), ("mlx", "llada2_moe"),
    ("coreml", "llada2_moe"), ("coreai", "llada2_moe"),
]  # fmt: skip
#: LLaDA2.2 has the names of 2.0, and another routing.
OVERRIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "llada2_moe": ("llada2_moe", {"num_hidden_layers": 2}),
    "llada2.2": ("llada2_moe", {"num_hidden_layers": 2, "expert_capacity": 5, "block_size": 8}),
}
NEEDED = {"mlx": "mlx.core", "coreml": "coremltools", "coreai": "coreai"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("preset", ["mixed4", "int8"])
@pytest.mark.parametrize("family", [*FAMILIES, *OVERRIDES])
def test_the_native_engine_equals_the_reference(tmp_path: Path, family: str, preset: str) -> None:
    """With rounded activations: the same integers leave the order of float sums alone, and now and then a
    rounding that falls the other way.
    """
    scheme = Scheme(preset, 16)
    family, overrides = OVERRIDES.get(family, (family, {"num_hidden_layers": 2}))
    bundle = make_bundle(tmp_path, family, scheme, program_format="native", **overrides)
    with Session(bundle) as session, int8_activations():
        out, expected = passes(session, quantized_reference(tmp_path / "checkpoint", scheme, "native"))
    assert out.logits is not None
    error = np.linalg.norm(out.logits - expected.numpy(), axis=1) / np.linalg.norm(expected.numpy(), axis=1)
    assert np.median(error) < 1e-5 and error.max() < 2e-2, f"relative error by position: {np.round(error, 7)}"


@pytest.mark.parametrize("engine,family", CASES)
def test_engines_equal_the_reference(
    tmp_path: Path, engine: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine in NEEDED:
        pytest.importorskip(NEEDED[engine])
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    written, scheme = "native" if engine == "torch" else engine, Scheme("bf16")
    family, overrides = OVERRIDES.get(family, (family, {"num_hidden_layers": 2}))
    executor = MilExecutor("float32") if engine == "coreml" else None
    if engine in ("coreml", "coreai"):
        own = architecture(write_checkpoint(tmp_path / "plain", family))
        lengths = Packaging((48,) if own.causal_prefix else (29,))
        bundle = package_bundles.make_bundle(
            tmp_path, family, engine, scheme, "float32", lengths, **overrides
        )
    else:
        bundle = make_bundle(tmp_path, family, scheme, program_format=written, **overrides)
    options = SessionOptions(positions=40, canvas=16)
    named = None if executor else engine
    with open_session(bundle, options, engine=named, executor=executor) as session:
        out, expected = passes(session, quantized_reference(tmp_path / "checkpoint", scheme, written))
    assert out.logits is not None
    np.testing.assert_allclose(out.logits, expected.numpy(), rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_packages_have_functions_for_a_block_and_for_a_chunk_of_the_prompt(tmp_path: Path) -> None:
    own = architecture(write_checkpoint(tmp_path, NEMOTRON))
    chosen = choose_lengths(own, Packaging((64,)))
    assert chosen == (Lengths(32, 0), Lengths(256, 0), Lengths(32, 64), Lengths(256, 64))
    far = choose_lengths(architecture(write_checkpoint(tmp_path, "sdar")), Packaging())
    assert {lengths.p for lengths in far} == {0, 256, 512}
    with pytest.raises(ExportError, match="at most 512"):
        choose_lengths(own, Packaging((513,)))


# --- the manifest -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdar")
    return make_bundle(folder, "sdar", Scheme("bf16"), program_format="native", num_hidden_layers=2)


def test_the_manifest_says_how_long_blocks_are(bundle: Path, tmp_path: Path) -> None:
    assert Bundle.open(bundle).model.prefix_block == 4
    causal = make_bundle(tmp_path, NEMOTRON, Scheme("bf16"), program_format="native", num_hidden_layers=2)
    assert Bundle.open(causal).model.prefix_block == 1
    assert "prefix_block" not in json.loads((causal / "edgekit.json").read_text())["model"]


@pytest.mark.parametrize("block", [0, -1, 2.5, "4", 2**40])
def test_blocks_of_no_length_are_refused(bundle: Path, tmp_path: Path, block: Any) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    sealing.edit(copy, lambda manifest: manifest["model"].update(prefix_block=block))
    with pytest.raises(MalformedFile, match="prefix_block"):
        Bundle.open(copy)
    with pytest.raises(EdgekitError):
        Session(copy)


def test_blocks_of_a_model_without_a_prefix_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    sealing.edit(copy, lambda manifest: manifest["model"].update(causal_prefix=False))
    with pytest.raises(MalformedFile, match="prefix_block is 4 without causal_prefix"):
        Bundle.open(copy)


def test_a_manifest_without_blocks_means_causal_text(bundle: Path, tmp_path: Path) -> None:
    """And the mask makes a difference."""
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    sealing.edit(copy, lambda manifest: manifest["model"].pop("prefix_block"))
    assert Bundle.open(copy).model.prefix_block == 1
    found = []
    for folder in (bundle, copy):
        with Session(folder) as session:
            session.prefill(np.arange(8))
            found.append(session.denoise(np.arange(4), HeadRequest(logits=True)).logits)
    assert np.abs(found[0] - found[1]).max() > 1e-2


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,words,block",
    [("x-bd3lm", (), 8), ("x", ("--decoding", "bd3lm"), 8), ("x-bd3lm", ("--decoding", "mdlm"), None)],
)
def test_the_name_or_an_option_says_which_mask(
    tmp_path: Path, name: str, words: tuple[str, ...], block: int | None
) -> None:
    folder = tmp_path / name
    write_checkpoint(folder, "a2d_qwen3", num_hidden_layers=2)
    config = json.loads((folder / "config.json").read_text())
    del config["decoding"]
    (folder / "config.json").write_text(json.dumps(config))
    asked = ["export", str(folder), "--quant", "bf16", "-o", str(tmp_path / "out"), *words]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "out" / "edgekit.json").read_text())
    assert manifest["model"].get("prefix_block") == block
    assert manifest["sampler"]["name"] == ("block" if block else "llada")
    assert "head" in manifest["model"]["tables"], "config.json says that it is tied, the file has one"


def test_without_either_the_command_asks_for_the_option(tmp_path: Path) -> None:
    config = write_checkpoint(tmp_path / "x", "a2d_qwen2", num_hidden_layers=2)
    del config["decoding"]
    (tmp_path / "x" / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(main, ["export", str(tmp_path / "x"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2 and "--decoding mdlm" in result.output.splitlines()[-1], result.output
    assert not (tmp_path / "out").exists()
