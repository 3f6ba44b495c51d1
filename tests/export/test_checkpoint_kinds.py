"""Folders and repositories that are no checkpoints for `export`: told by name, with what to do, before
anything large is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.checkpoints import write_checkpoint
from support.fake_hub import FakeHub

from edgekit.export.checkpoint import kinds, locate
from edgekit.export.checkpoint.errors import (
    CheckpointError,
    InvalidConfig,
    NotACheckpoint,
    NotForExport,
    PickleWeights,
    WeightsUnreadable,
)
from edgekit.tools.cli import main

BYTES = b"x" * 5000

#: name -> files, what is said of them.
OTHERS: dict[str, tuple[dict[str, bytes], str]] = {
    "gguf": ({"model-Q4_K_M.gguf": BYTES, "README.md": b""}, "is a GGUF model.*original weights"),
    "gguf with config": ({"model.gguf": BYTES, "config.json": b'{"model_type": "llama"}'}, "is a GGUF model"),
    "adapter": (
        {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": BYTES},
        "is a PEFT adapter.*edgekit export MODEL --adapter",
    ),
    "bundle": (
        {"edgekit.json": b"{}", "weights.safetensors": BYTES},
        "is an edgekit bundle already.*edgekit chat",
    ),
    "set": ({"bundles.json": b"{}", "coreml/edgekit.json": b"{}"}, "is an edgekit bundle already"),
    "mlx bundle": (
        {"edgekit.json": b"{}", "config.json": b"{}", "model.safetensors": BYTES},
        "edgekit bundle",
    ),
    "diffusers": ({"model_index.json": b"{}", "unet/model.safetensors": BYTES}, "is a diffusers pipeline"),
    "coreml": ({"Model.mlpackage/Manifest.json": b"{}"}, "packages of Core ML"),
    "onnx": ({"onnx/model.onnx": BYTES, "config.json": b'{"model_type": "dream"}'}, "is an ONNX model"),
    "flax": ({"flax_model.msgpack": BYTES, "config.json": b"{}"}, "Flax or TensorFlow"),
}

#: What configs of models that others publish say.
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "an autoregressive language"),
    "qwen2": ({"model_type": "qwen2"}, "an autoregressive language model"),
    "gemma3": ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, "an autoregressive"),
    "gpt2": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "an autoregressive"),
    "new one": ({"model_type": "nobody_knows", "architectures": ["NobodyForCausalLM"]}, "an autoregressive"),
    "bert": ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "an encoder"),
    "roberta": ({"model_type": "xlm-roberta"}, "an encoder"),
    "vit": ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, "a vision model"),
    "clip": ({"model_type": "clip", "architectures": ["CLIPModel"]}, "a vision model"),
    "whisper": (
        {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, "a speech or audio",
    ),
    "wav2vec": ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, "a speech or audio"),
    "gemma3 vision": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}},
        "a vision-language or encoder-decoder",
    ),
    "llada2": (
        {"model_type": "llada2_next", "architectures": ["LLaDA2MoeModelLM"]}, "a diffusion .*not know",
    ),
    "sdar": ({"model_type": "sdar_v2", "architectures": ["SDARForCausalLM"]}, "a diffusion .*not know"),
    "mlx": ({"model_type": "llada", "quantization": {"bits": 4, "group_size": 64}}, "is quantized for MLX"),
}  # fmt: skip


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("name", OTHERS)
def test_folders_and_repositories_of_other_kinds(hub: FakeHub, tmp_path: Path, name: str) -> None:
    files, says = OTHERS[name]
    write(tmp_path / "folder", files)
    with pytest.raises(NotForExport, match=says) as error:
        locate(str(tmp_path / "folder"))
    assert str(error.value).startswith(str(tmp_path / "folder")) and "\n" not in str(error.value)
    hub.add("owner/name", files)
    with pytest.raises(NotForExport, match=says):
        locate("owner/name")
    # The list of its files was enough.
    assert not [r for r in hub.log if "/resolve/" in r.path]


@pytest.mark.parametrize("name", CONFIGS)
def test_models_of_other_kinds(hub: FakeHub, tmp_path: Path, name: str) -> None:
    config, says = CONFIGS[name]
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": BYTES, "tokenizer.json": b"{}"}
    write(tmp_path / "folder", files)
    with pytest.raises(NotForExport, match=says):
        locate(str(tmp_path / "folder"))
    hub.add("owner/name", files)
    with pytest.raises(NotForExport, match=says):
        locate("owner/name")
    assert {r.path.rpartition("/")[2] for r in hub.log if "/resolve/" in r.path} == {"config.json"}


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada", "llada_moe", "llada2_moe", "dream"])
def test_what_export_takes_is_not_refused(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path / "model", family)
    assert locate(str(tmp_path / "model")).checkpoint().names
    # What else may lie beside the weights.
    extras = ("model.gguf", "onnx/model.onnx", "adapter_config.json", "model.mlpackage/Manifest.json")
    write(tmp_path / "model", dict.fromkeys(extras, b"{}"))
    assert locate(str(tmp_path / "model")).checkpoint().names


def test_a_config_that_is_no_file_of_bounded_size_is_not_opened(tmp_path: Path) -> None:
    """Before the kind of model is told, too: reading a FIFO would wait, and a device never ends."""
    write_checkpoint(tmp_path, "llada")
    config = tmp_path / "config.json"
    llama = b'{"model_type": "llama", "x": ['
    for content in (llama + b"[]," * 600_000 + b"0]}", llama[:-1] + b'"' + bytes(5 << 20) + b'"}'):
        config.write_bytes(content)
        with pytest.raises(
            InvalidConfig, match=r"config\.json: has .* more than any|has more values than any"
        ):
            locate(str(tmp_path)).checkpoint()
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        config.unlink()
        make(config)
        with pytest.raises(WeightsUnreadable, match=r"config\.json: is not a regular file"):
            locate(str(tmp_path)).checkpoint()


def test_a_gguf_file(tmp_path: Path) -> None:
    write(tmp_path, {"llada.gguf": BYTES, "model.safetensors": BYTES})
    result = CliRunner().invoke(main, ["export", str(tmp_path / "llada.gguf")])
    assert result.exit_code == 2 and "is a GGUF model" in result.stderr, result.output
    with pytest.raises(NotACheckpoint, match="is a file"):
        locate(str(tmp_path / "model.safetensors"))


def test_a_bundle_is_named_as_it_was_given(hub: FakeHub) -> None:
    hub.add("owner/it", {"edgekit.json": b"{}"})
    with pytest.raises(NotForExport, match="edgekit chat hf:owner/it"):
        locate("owner/it")


def test_configs_that_say_nothing_are_left_to_the_families(tmp_path: Path) -> None:
    """They name the key; see `export.models`."""
    for text in (
        "{}",
        '{"model_type": 5}',
        '{"architectures": "x"}',
        '{"architectures": [5, null]}',
        "[]",
        "{",
    ):
        write(tmp_path, {"config.json": text.encode(), "pytorch_model.bin": BYTES})
        source = locate(str(tmp_path))
        with pytest.raises(CheckpointError) as error:
            source.checkpoint()
        assert not isinstance(error.value, NotForExport)
    with pytest.raises(PickleWeights):
        write(tmp_path, {"config.json": b"{}"})
        locate(str(tmp_path)).checkpoint()


def test_near_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llada-8b").mkdir()
    known = ("tiny-gemma", "tiny-llada")
    assert kinds.did_you_mean("tiny_gemma", known) == "; did you mean tiny-gemma?"
    assert kinds.did_you_mean("tinygemma", known) == "; did you mean tiny-gemma?"
    assert kinds.did_you_mean("lada-8b", known) == "; did you mean llada-8b?"
    assert kinds.did_you_mean(f"{tmp_path}/llada8b", known) == f"; did you mean {tmp_path}/llada-8b?"
    assert kinds.did_you_mean("stable-diffusion", known) == ""
    assert kinds.did_you_mean("", known) == ""


def test_every_causal_model_of_transformers_is_called_by_its_name() -> None:
    """transformers' own names of what it saves, so that ours are not invented."""
    code = (
        "from transformers.utils import ADAPTER_CONFIG_NAME as a, SAFE_WEIGHTS_NAME as w;"
        "from transformers.utils import SAFE_WEIGHTS_INDEX_NAME as i;"
        "from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as m;"
        "import json; print(json.dumps([a, w, i, dict(m)]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    adapter, single, index, causal = json.loads(ran.stdout.splitlines()[-1])
    assert (adapter, single, index) == ("adapter_config.json", kinds.SINGLE_FILE, kinds.INDEX)
    # Whisper's decoder by itself is in the list too; it is told from the model by nothing but its head.
    ours = {"whisper", "diffusion_gemma", "llada", "lladamoe", "llada_moe", "Dream"}
    missed = []
    for kind, names in causal.items():
        classes = [names] if isinstance(names, str) else names
        if kind in ours or not any(c.endswith(("ForCausalLM", "LMHeadModel")) for c in classes):
            continue
        said = kinds._by_config({"model_type": kind, "architectures": classes})
        if "an autoregressive language model" not in said:
            missed.append((kind, said))
    assert not missed
