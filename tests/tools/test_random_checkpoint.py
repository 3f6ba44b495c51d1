"""Checkpoints of random weights: the layout of real models, which import takes without a remark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from support.checkpoints import write_checkpoint

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.runtime.bundle import Bundle
from edgekit.tools.bench import random_checkpoint
from edgekit.tools.planning import released


@pytest.mark.parametrize(
    "family", ["llada", "diffusion_gemma", "dream", "sdar_moe", "nemotron_labs_diffusion"]
)
def test_it_has_the_tensors_of_a_checkpoint_and_exports(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path / "written", family, dtype="bfloat16")
    config = json.loads((tmp_path / "written" / "config.json").read_text())
    count = random_checkpoint.write(tmp_path / "random", config)
    with safe_open(tmp_path / "random" / "model.safetensors", "np") as file:
        assert count == sum(int(np.prod(file.get_slice(n).get_shape())) for n in file.keys())  # noqa: SIM118
    arch = architecture(config, "bfloat16")
    coverage = Checkpoint.open(tmp_path / "random").check(arch.stored_shapes(), arch.ignored)
    assert not coverage.ignored
    export(tmp_path / "random", tmp_path / "bundle", ExportOptions("native"))
    assert len(Bundle.open(tmp_path / "bundle").model.layers) == len(arch.layers)


@pytest.mark.parametrize(
    "name,parameters",
    [
        ("sdar-4b", 8_822_848_512 // 2),  # total_size of its index
        ("fast-dllm-1.5b", 1_543_714_304),  # Qwen2.5-1.5B
        ("nemotron-3b", 3_831_659_520),  # 3.83 B
    ],
)
def test_sizes_are_those_of_the_released_models(name: str, parameters: int) -> None:
    arch = architecture(released.config(name), "bfloat16")
    found = sum(int(np.prod(shape)) for shape in arch.stored_shapes().values())
    assert found == parameters
    assert not arch.notes


def test_the_command_shortens_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = released.llada_8b
    narrow = {"d_model": 64, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 96}
    monkeypatch.setitem(released.MODELS, "llada-8b", lambda layers: full(layers) | narrow)
    arguments = ["llada-8b", str(tmp_path / "out"), "--layers", "2", "--vocab", "300"]
    result = CliRunner().invoke(random_checkpoint.main, arguments)
    assert result.exit_code == 0, result.output
    config = Checkpoint.open(tmp_path / "out").config
    assert (config["n_layers"], config["vocab_size"], config["embedding_size"]) == (2, 300, 300)
    assert (config["eos_token_id"], config["mask_token_id"]) == (299, 298)


def test_a_shorter_vocabulary_reaches_nested_configurations() -> None:
    config = released.config("diffusion-gemma-26b", 2, 1000)
    arch = architecture(config, "bfloat16")
    assert arch.vocab_size == 1000 and arch.stored_shapes() != {}
    assert config["eos_token_id"] == [1, 106, 50]
