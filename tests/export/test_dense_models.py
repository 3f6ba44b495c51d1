"""Nemotron-Labs-Diffusion and the families made of Qwen2 and Qwen3 against transformers' Ministral 3, Qwen2,
Qwen3 and Qwen3-MoE, in float32; and known mistakes, each of which the comparison must notice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import load_oracle, write_checkpoint, write_weights
from support.dense_checkpoints import CONFIGS, FAMILIES, OWN_HEAD, YARN

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import architecture, complete, transformer
from edgekit.export.models.base import QueryScale, rope_default
from edgekit.export.models.yarn import Yarn
from edgekit.export.reference import MASKED, ReferenceModel
from edgekit.export.weights import load_float_weights, stored_tensors

TOLERANCE = 1e-4
PROMPT = 35  # no multiple of a block, and behind the positions that YARN was trained on
#: Positions of committed text that see each other.
BLOCKS = {"nemotron_labs_diffusion": 1, "sdar": 4, "sdar_moe": 4, "fast_dllm": 8, "a2d_qwen3": 8}
FULL = [family for family in FAMILIES if family not in BLOCKS]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "nemotron_labs_diffusion": [
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "hidden_size": 48},
        {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.7,
                             "original_max_position_embeddings": 5}},
        {"rope_parameters": {key: YARN[key] for key in YARN if "mscale" not in key and "beta_" not in key}},
    ],
    "sdar": [{"head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 3}, {"block_size": 5}],
    "sdar_moe": [{"norm_topk_prob": False}, {"num_experts": 5, "num_experts_per_tok": 4}],
    "fast_dllm": [{"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112, "bd_size": 6}],
    "a2d_qwen2": [{"num_attention_heads": 2, "num_key_value_heads": 2}],
    "a2d_qwen3": [{"block_size": 3, "tie_word_embeddings": False}],
    "coda": [{"head_dim": 16}],
}  # fmt: skip
CASES = [(family, own) for family in FAMILIES for own in [{}, *SHAPES[family]]]


def load(folder: Path) -> ReferenceModel:
    source = Checkpoint.open(folder)
    arch = architecture(complete(source.config, source.names, folder.name))
    source.check(arch.stored_shapes(), arch.ignored)
    return ReferenceModel(arch, load_float_weights(arch, source)).eval()


def tokens(seed: int, batch: int, count: int) -> torch.Tensor:
    return torch.randint(0, 384, (batch, count), generator=torch.Generator().manual_seed(seed))


def oracle_logits(folder: Path, ids: torch.Tensor, block: int | None, rows: int) -> torch.Tensor:
    """Of all positions, of which the last `rows` see each other and everything; those before see what is not
    in a later block of `block`, counted from the first. None: everything sees everything.
    """
    count = ids.shape[1]
    number = torch.arange(count) if block is None else torch.arange(count) // block
    number[count - rows :] = count
    if block is None:
        number[:] = 0
    hidden = torch.where(number[:, None] >= number[None], 0.0, MASKED).expand(len(ids), 1, count, count)
    return load_oracle(folder)(input_ids=ids, attention_mask=hidden, use_cache=False).logits


def gaps(model: ReferenceModel, folder: Path, seed: int) -> float:
    """The largest difference of logits; of a block behind text in two parts where there is a prefix."""
    ids, arch = tokens(seed, 2, PROMPT + 7), model.architecture
    own = architecture(
        complete(json.loads((folder / "config.json").read_text()), Checkpoint.open(folder).names)
    )
    if not own.causal_prefix:
        return float((model.denoise(ids) - oracle_logits(folder, ids, None, 0)).abs().max())
    first = 2 * own.prefix_block * (5 // own.prefix_block + 1)
    kv = model.encode(ids[:, first:PROMPT], model.encode(ids[:, :first]))
    assert arch.causal_prefix
    expected = oracle_logits(folder, ids, own.prefix_block, 7)[:, PROMPT:]
    return float((model.denoise(ids[:, PROMPT:], kv) - expected).abs().max())


@pytest.mark.parametrize("family,own", CASES, ids=lambda x: x if isinstance(x, str) else ",".join(x))
@torch.no_grad()
def test_families_equal_transformers(tmp_path: Path, family: str, own: dict[str, Any]) -> None:
    for seed in (0, 1):
        write_checkpoint(tmp_path / str(seed), family, seed, **own)
        assert gaps(load(tmp_path / str(seed)), tmp_path / str(seed), seed) <= TOLERANCE


@torch.no_grad()
def test_a_causal_pass_of_nemotron_is_ministral(tmp_path: Path) -> None:
    """The autoregressive mode: the last row of encoded text predicts the next token."""
    write_checkpoint(tmp_path, "nemotron_labs_diffusion", 3)
    model, ids = load(tmp_path), tokens(1, 2, 40)
    expected = load_oracle(tmp_path)(input_ids=ids, use_cache=False).logits
    kv = model.encode(ids[:, :-1])
    assert float((model.denoise(ids[:, -1:], kv) - expected[:, -1:]).abs().max()) <= TOLERANCE


# --- mistakes -----------------------------------------------------------------------------------------------

Mistake = Callable[[pytest.MonkeyPatch, ReferenceModel], None]


def _layers(model: ReferenceModel, **own: Any) -> None:
    for layer in model.architecture.layers:
        for name, value in own.items():
            setattr(layer.module, name, value)


def _rope(model: ReferenceModel, **own: Any) -> None:
    ropes = {name: dataclasses.replace(rope, **own) for name, rope in model.architecture.ropes.items()}
    model.architecture = dataclasses.replace(model.architecture, ropes=ropes)


def _prefix(model: ReferenceModel, block: int) -> None:
    model.architecture = dataclasses.replace(model.architecture, prefix_block=block)


def queries_are_not_scaled(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _rope(model, query_scale=None)


def queries_are_scaled_one_position_early(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _rope(model, query_scale=QueryScale(YARN["llama_4_scaling_beta"], 15))


def keys_are_scaled_too(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = transformer.rotated

    def wrong(q: Any, k: Any, inputs: Any) -> Any:
        q, k = right(q, k, inputs)
        return q, k * inputs.query_scale

    patch.setattr(transformer, "rotated", wrong)


def the_factor_of_yarn_is_left_out(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _layers(model, scale=24**-0.5)


def the_factor_of_yarn_counts_once(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    factor = Yarn(8.0, 16).attention_factor(1.0, 0.5)
    _layers(model, scale=factor * 24**-0.5)


def frequencies_are_not_stretched(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _rope(model, inverse_frequency=rope_default(1e4, 24).inverse_frequency)


def text_is_one_block(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _prefix(model, 64)


def text_is_causal(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _prefix(model, 1)


def blocks_are_twice_as_long(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _prefix(model, 2 * model.architecture.prefix_block)


def q_and_k_are_not_normed(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _layers(model, qk_norm=False)


def biases_are_dropped(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    for name, weight in model.weights().items():
        if name.endswith("q_proj.bias"):
            weight.zero_()


def routing_is_not_renormalised(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _layers(model, normalize=False)


def routing_is_renormalised(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    _layers(model, normalize=True)


MISTAKES: list[tuple[str, dict[str, Any], Mistake]] = [
    ("nemotron_labs_diffusion", {}, queries_are_not_scaled),
    ("nemotron_labs_diffusion", {}, queries_are_scaled_one_position_early),
    ("nemotron_labs_diffusion", {}, keys_are_scaled_too),
    ("nemotron_labs_diffusion", {}, the_factor_of_yarn_is_left_out),
    ("nemotron_labs_diffusion", {}, the_factor_of_yarn_counts_once),
    ("nemotron_labs_diffusion", {}, frequencies_are_not_stretched),
    ("nemotron_labs_diffusion", {}, text_is_one_block),
    ("sdar", {}, text_is_causal),
    ("sdar", {}, text_is_one_block),
    ("sdar", {}, blocks_are_twice_as_long),
    ("sdar", {}, q_and_k_are_not_normed),
    ("sdar_moe", {}, text_is_causal),
    ("sdar_moe", {}, routing_is_not_renormalised),
    ("sdar_moe", {"norm_topk_prob": False}, routing_is_renormalised),
    ("fast_dllm", {}, text_is_causal),
    ("fast_dllm", {}, biases_are_dropped),
    ("a2d_qwen2", {}, biases_are_dropped),
    ("a2d_qwen3", {}, blocks_are_twice_as_long),
    ("a2d_qwen3", {}, q_and_k_are_not_normed),
    ("coda", {}, q_and_k_are_not_normed),
]


@pytest.mark.parametrize("family,own,mistake", MISTAKES, ids=lambda x: getattr(x, "__name__", None))
@torch.no_grad()
def test_mistakes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, own: dict[str, Any], mistake: Mistake
) -> None:
    write_checkpoint(tmp_path, family, 2, **own)
    model = load(tmp_path)
    mistake(monkeypatch, model)
    assert gaps(model, tmp_path, 1) > 1e-3


def test_logits_are_shifted_in_two_of_them(tmp_path: Path) -> None:
    for family in FAMILIES:
        write_checkpoint(tmp_path / family, family)
        assert load(tmp_path / family).architecture.shift_logits is (family in ("fast_dllm", "coda"))


# --- heads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", OWN_HEAD)
@torch.no_grad()
def test_a_head_that_config_json_denies_is_used(tmp_path: Path, family: str) -> None:
    """dllm's files say that it is tied, CoDA's leave out that it is not."""
    config = write_checkpoint(tmp_path, family, 4)
    assert config.get("tie_word_embeddings", True)
    model = load(tmp_path)
    assert model.architecture.head is not None
    own = model.weights()["head.weight"].clone()
    model.weights()["head.weight"].copy_(model.weights()["embedding.weight"])
    assert gaps(model, tmp_path, 1) > 1e-2, "tied, it computes something else"
    model.weights()["head.weight"].copy_(own)
    assert gaps(model, tmp_path, 1) <= TOLERANCE


@pytest.mark.parametrize("family", ["a2d_qwen2", "a2d_qwen3", "fast_dllm"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("said", [False, True])
@torch.no_grad()
def test_the_file_decides_about_the_head(tmp_path: Path, family: str, stored: bool, said: bool) -> None:
    write_checkpoint(tmp_path, family, 5, tie_word_embeddings=said)
    tensors = load_file(tmp_path / "model.safetensors")
    if stored:
        tensors["lm_head.weight"] = 0.2 * torch.randn(384, 64)
    else:
        tensors.pop("lm_head.weight", None)
    write_weights(tmp_path, tensors)
    model = load(tmp_path)
    assert (model.architecture.head is not None) is stored
    assert gaps(model, tmp_path, 1) <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_go_back_to_the_stored_names(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path, family, 1)
    source = Checkpoint.open(tmp_path)
    arch = architecture(complete(source.config, source.names))
    back, stored = (
        stored_tensors(arch, load_float_weights(arch, source)), load_file(tmp_path / "model.safetensors")
    )  # fmt: skip
    assert set(back) == set(stored)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in back.items())


def test_buffers_and_an_adapter_beside_the_weights_of_nemotron_are_left_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "nemotron_labs_diffusion")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.rotary_emb.inv_freq"] = torch.ones(12)
    adapter = "base_model.model.encoder.layers.0.self_attn.o_proj.lora_A.weight"
    tensors[adapter] = torch.ones(4, 96)
    write_weights(tmp_path, tensors)
    source = Checkpoint.open(tmp_path)
    arch = architecture(source.config)
    assert set(source.check(arch.stored_shapes(), arch.ignored).ignored) == {
        "encoder.rotary_emb.inv_freq", adapter
    }  # fmt: skip


# --- what config.json says ----------------------------------------------------------------------------------


def defaults(family: str, own: dict[str, Any], without: str = "") -> dict[str, Any]:
    config = {key: value for key, value in (CONFIGS[family] | own).items() if key != without}
    return dict(architecture(config).defaults)


def test_samplers_and_their_defaults() -> None:
    found = {family: architecture(CONFIGS[family]) for family in FAMILIES}
    assert {family: arch.sampler for family, arch in found.items()} == {
        "nemotron_labs_diffusion": "block", "sdar": "block", "sdar_moe": "block", "fast_dllm": "block",
        "a2d_qwen2": "llada", "a2d_qwen3": "block", "coda": "dream",
    }  # fmt: skip
    for family, arch in found.items():
        assert arch.causal_prefix is (family in BLOCKS) and arch.prefix_block == BLOCKS.get(family, 1)
        assert all(layer.uses_mask is arch.causal_prefix for layer in arch.layers)
        assert arch.notes == ()
    assert defaults("nemotron_labs_diffusion", {}) == {
        "block_length": 8, "steps": 32, "threshold": 0.9, "align": "prompt", "causal_start": True,
        "mask_token_id": 4, "eos_token_id": 2, "bos_token_id": 3,
    }  # fmt: skip
    assert defaults("sdar", {}) == {
        "block_length": 4, "steps": 4, "threshold": 0.85, "align": "position",
        "mask_token_id": 4, "eos_token_id": [2, 0], "pad_token_id": 0, "bos_token_id": 3,
    }  # fmt: skip
    assert defaults("fast_dllm", {})["small_block_length"] == 8
    assert defaults("a2d_qwen3", {})["align"] == "prompt"


def test_ids_and_blocks_that_released_files_leave_out() -> None:
    assert defaults("fast_dllm", {"vocab_size": 151936})["mask_token_id"] == 151665
    assert "mask_token_id" not in defaults("fast_dllm", {"vocab_size": 151665})
    released = {"vocab_size": 151936}
    assert defaults("sdar", released, without="mask_token_id")["mask_token_id"] == 151669
    assert defaults("coda", released, without="mask_token_id")["mask_token_id"] == 151669
    nemotron = defaults("nemotron_labs_diffusion", {"vocab_size": 131072}, without="mask_token_id")
    assert nemotron["mask_token_id"] == 100
    assert defaults("sdar", {}, without="block_size")["block_length"] == 4
    assert defaults("fast_dllm", {}, without="bd_size")["block_length"] == 32
    assert defaults("nemotron_labs_diffusion", {}, without="block_size")["block_length"] == 32


@pytest.mark.parametrize("paradigm", ["bidirectional", "block_diff", "autoregressive"])
def test_nemotrons_last_training_changes_nothing(paradigm: str) -> None:
    config = CONFIGS["nemotron_labs_diffusion"] | {"dlm_paradigm": paradigm}
    assert architecture(config).causal_prefix


@pytest.mark.parametrize(
    "name,own,decoding",
    [
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", {}, None), ("dllm-hub/x-BD3LM", {}, None),
        ("x", {"_name_or_path": "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1"}, None), ("x", {}, "bd3lm"),
        ("x-mdlm", {}, "bd3lm"), ("x", {"decoding": "bd3lm"}, None), ("x-mdlm", {"decoding": "bd3lm"}, None),
        ("bd3lm-from-mdlm", {}, "bd3lm"),
    ],
)  # fmt: skip
def test_which_mask_a_checkpoint_of_dllm_wants(name: str, own: dict[str, Any], decoding: str | None) -> None:
    config = {key: value for key, value in CONFIGS["a2d_qwen3"].items() if key != "decoding"} | own
    arch = architecture(complete(config, (), name, decoding))
    assert arch.causal_prefix and arch.prefix_block == 8
    with pytest.raises(UnsupportedModel, match="give --decoding mdlm .* or --decoding bd3lm"):
        architecture(complete({key: value for key, value in config.items() if key not in own}, (), "model"))


def test_a_mask_for_a_family_that_has_one_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="--decoding mdlm: 'sdar' has one procedure"):
        complete(CONFIGS["sdar"], (), "x", "mdlm")


REFUSED = [
    ("nemotron_labs_diffusion", {"sliding_window": 4096}, "sliding_window is 4096; only null is supported"),
    ("nemotron_labs_diffusion", {"vision_config": {}}, "checkpoints that see images are not supported"),
    ("nemotron_labs_diffusion", {"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ("nemotron_labs_diffusion", {"attention_bias": True}, "attention_bias is True"),
    ("nemotron_labs_diffusion", {"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.rope_type"),
    ("nemotron_labs_diffusion", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.factor is miss"),
    ("nemotron_labs_diffusion", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "no safe default"),
    ("nemotron_labs_diffusion", {"rope_theta": 5.0}, "rope_theta is 5, rope_parameters.rope_theta is 10000"),
    ("nemotron_labs_diffusion", {"rope_parameters": YARN | {"rope_theta": 1.0}}, "a number above 1"),
    ("sdar", {"use_regular_causal": True}, "use_regular_causal is True"),
    ("sdar", {"attention_bias": True}, "attention_bias is True"),
    ("sdar", {"block_size": 0}, "block_size is 0"),
    ("sdar", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("sdar_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("sdar_moe", {"mlp_only_layers": [0]}, "experts in every layer"),
    ("sdar_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9 of num_experts 8"),
    ("fast_dllm", {"bd_size": "32"}, "bd_size is '32'"),
    ("fast_dllm", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type"),
    ("a2d_qwen2", {"decoding": "ar"}, "decoding is 'ar'; only 'mdlm' or 'bd3lm' are supported"),
    ("coda", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
]  # fmt: skip


@pytest.mark.parametrize("family,own,message", REFUSED)
def test_what_is_not_supported_is_refused(family: str, own: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message) as raised:
        architecture(CONFIGS[family] | own)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["norm_topk_prob", "num_experts", "moe_intermediate_size"])
def test_experts_of_sdar_have_no_defaults(key: str) -> None:
    config = {name: value for name, value in CONFIGS["sdar_moe"].items() if name != key}
    with pytest.raises(UnsupportedModel, match=f"{key} is missing"):
        architecture(config)
