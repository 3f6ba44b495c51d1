"""Reading config.json: defaults, notes, and one line for what is refused before anything is written."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.checkpoints import FAMILIES, write_checkpoint

from edgekit.export.checkpoint.errors import InvalidConfig
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.flashload.errors import EdgekitError


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {f: write_checkpoint(tmp_path_factory.mktemp(f), f) for f in FAMILIES}


def test_a_config_without_softcapping_has_the_default_of_its_class(configs: dict[str, Any]) -> None:
    """`save_pretrained` leaves the key out where it was not given, and the class then has 30."""
    from transformers import DiffusionGemmaTextConfig

    text = {
        k: v for k, v in configs["diffusion_gemma"]["text_config"].items() if k != "final_logit_softcapping"
    }
    assert "final_logit_softcapping" not in json.loads(DiffusionGemmaTextConfig(**text).to_json_string())
    assert architecture(configs["diffusion_gemma"] | {"text_config": text}).softcap == 30.0


def test_defaults_are_those_that_transformers_has(configs: dict[str, Any]) -> None:
    from transformers import DiffusionGemmaTextConfig, Qwen2Config

    from edgekit.export.models import diffusion_gemma, dream

    for schema, theirs in ((diffusion_gemma.TEXT, DiffusionGemmaTextConfig), (dream.SCHEMA, Qwen2Config)):
        fields = theirs.default_config_fields()
        shared = {k: key.default for k, key in schema.keys.items() if k in fields and key.default is not None}
        ours = {k: v for k, v in shared.items() if isinstance(v, int | float | str)}
        assert ours == {k: fields[k] for k in ours} and len(ours) >= 9


def test_a_layer_is_found_by_its_padded_name(configs: dict[str, Any]) -> None:
    """Of ten layers and more, transformers writes "05"."""
    config = copy.deepcopy(configs["diffusion_gemma"])
    text = config["text_config"]
    text |= {"num_hidden_layers": 12, "layer_types": None}
    text["per_layer_config"] = {"05": {"head_dim": 24}, "11": {"head_dim": 24}}
    layers = architecture(config).layers
    assert [layer.head_dim for layer in layers] == [16, 16, 16, 16, 16, 24] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_keys_are_told_by_name(configs: dict[str, Any], family: str) -> None:
    known = {"diffusion_gemma": "canvas_length", "llada": "weight_tying"}.get(family, "rms_norm_eps")
    config = configs[family] | {known[:-1] + "x": 3, "x" * 5000: 1}
    notes = " ".join(architecture(config).notes)
    assert f"{known[:-1]}x (did you mean {known}?)" in notes and len(notes) < 600
    assert not any("not known" in note for note in architecture(configs[family]).notes)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648; expected an integer from 1 to 1024"),
        ({"num_hidden_layers": 1024, "num_experts": 4096}, "up to 32768 experts in all"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; expected a number"),
        ({"rms_norm_eps": float("nan")}, "is nan, which JSON has no number for"),
        ({"hidden_size": 10**40}, "more than 64 bits"),
        ({"hidden_size": "x" * 10000}, "hidden_size is 'xxx"),
        ({"vocab_size": [[[0] * 99] * 99] * 99}, "vocab_size is"),
        ({"use_cache": "\ud800"}, "no Unicode text"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.rope_type is 'yarn'; only 'default'"),
        (
            {"rope_parameters": {"rope_theta": 99.0}},
            "rope_theta is 50000, rope_parameters.rope_theta is 99; keep",
        ),
        (
            {"rope_scaling": {"sliding": {"rope_type": "default"}}},
            "rope_scaling.sliding is an object; only one",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already .'gptq'.*give the original"),
        ({"model_type": []}, "model_type .. is not supported"),
        ({"model_type": "dream"}, "did you mean Dream?"),
        ({"architectures": 3}, "architectures is 3; expected a list of strings"),
        ({"num_experts": None}, "num_experts is null"),
    ],
)
def test_refused_before_anything_is_written(
    configs: dict[str, Any], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write_checkpoint(tmp_path / "model", "llada_moe")
    (tmp_path / "model/config.json").write_text(json.dumps(configs["llada_moe"] | change))
    with pytest.raises(EdgekitError, match=message) as caught:
        export(tmp_path / "model", tmp_path / "out", ExportOptions(format="native"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text,message",
    [
        ('{"max_denoising_steps": "many"}', "generation_config.json: max_denoising_steps is 'many'"),
        ('{"t_min": 0.9, "t_max": 0.1}', "generation_config.json: t_max"),
        ('{"sampler_config": [' + "1," * 5000 + "1]}", "generation_config.json: sampler_config is"),
        ('{"eos_token_id": NaN}', "generation_config.json: 'eos_token_id' is nan"),
        ('{"x": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100000, "not valid JSON"),
        ('{"x": "' + " " * (5 << 20) + '"}', "more than any"),
    ],
)
def test_generation_config_is_checked_before_anything_is_written(
    tmp_path: Path, text: str, message: str
) -> None:
    write_checkpoint(tmp_path / "model", "diffusion_gemma")
    (tmp_path / "model/generation_config.json").write_text(text)
    with pytest.raises((UnsupportedModel, InvalidConfig), match=message) as caught:
        export(tmp_path / "model", tmp_path / "out", ExportOptions(format="native"))
    assert len(str(caught.value)) < 600
    assert not (tmp_path / "out").exists()


def test_two_masks_of_a_checkpoint_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "llada")
    mask = json.loads((tmp_path / "model/config.json").read_text())["mask_token_id"]
    for name, value, refused in (("mask_token_id", mask, False), ("mask_id", mask + 1, True)):
        (tmp_path / "model/generation_config.json").write_text(json.dumps({name: value}))
        said = f"generation_config.json: mask_id is {mask + 1}, that of config.json is {mask}; take the wrong"
        with pytest.raises(UnsupportedModel, match=said) if refused else nullcontext():
            export(tmp_path / "model", tmp_path / "out", ExportOptions(format="native"))


def test_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "dream", tie_word_embeddings=True)
    weights = tmp_path / "model/model.safetensors"
    tensors = load_file(weights)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, weights)
    export(tmp_path / "model", tmp_path / "copy", ExportOptions(format="native"))
    tensors["lm_head.weight"] = torch.randn_like(tensors["lm_head.weight"])
    save_file(tensors, weights)
    with pytest.raises(UnsupportedModel, match="lm_head.weight differs from model.embed_tokens.weight"):
        export(tmp_path / "model", tmp_path / "out", ExportOptions(format="native"))
    assert not (tmp_path / "out").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_is_taken_or_refused_in_one_line(configs: dict[str, Any], data: st.DataObject) -> None:
    config = copy.deepcopy(configs[data.draw(st.sampled_from(FAMILIES))])
    text = config.get("text_config", config)
    part = data.draw(st.sampled_from([config, text, *(v for v in text.values() if isinstance(v, dict))]))
    key = data.draw(st.sampled_from(sorted(part)))
    part[key] = data.draw(JSON)
    try:
        architecture(config)
    except UnsupportedModel as error:
        assert "\n" not in str(error) and len(str(error)) < 600
