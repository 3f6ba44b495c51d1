"""Architectures against independent oracles: transformers' own DiffusionGemma, Llama, Qwen3-MoE, GLM-4-MoE
and Qwen2, in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.block_routing import use_block_routing
from support.checkpoints import load_oracle, write_checkpoint

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights, stored_tensors

TOLERANCE = 1e-4

#: Every case but the first has three layers: the gap grows with depth, as rounding passes through random
#: weights.
SHALLOW: dict[str, Any] = {"num_hidden_layers": 3}
GEMMA: dict[str, dict[str, Any]] = {
    "default": {},
    "one expert": SHALLOW | {"num_experts": 1, "top_k_experts": 1},
    "every expert": SHALLOW | {"num_experts": 5, "top_k_experts": 5},
    "odd heads": SHALLOW
    | {"num_attention_heads": 3, "num_key_value_heads": 3, "num_global_key_value_heads": 1},
    "no groups": SHALLOW
    | {"num_attention_heads": 2, "num_key_value_heads": 2, "num_global_key_value_heads": 2},
    "window longer than the prefix": SHALLOW | {"sliding_window": 64},
    "window of one": SHALLOW | {"sliding_window": 2},
}


def load(path: Path, config: dict[str, Any]) -> ReferenceModel:
    arch = architecture(config)
    checkpoint = Checkpoint.open(path)
    checkpoint.check(arch.stored_shapes(), arch.ignored)
    return ReferenceModel(arch, load_float_weights(arch, checkpoint)).eval()


def ids(rng: np.random.Generator, model: ReferenceModel, batch: int, length: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, model.architecture.vocab_size, (batch, length)))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("case", GEMMA)
@pytest.mark.parametrize("seed", [0, 1])
@torch.no_grad()
def test_diffusion_gemma_equals_transformers(tmp_path: Path, case: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = write_checkpoint(tmp_path, "diffusion_gemma", seed, **GEMMA[case])
    ours, oracle = load(tmp_path, config), load_oracle(tmp_path)
    canvas_length = config["canvas_length"]
    prompt, second = ids(rng, ours, 2, 20), ids(rng, ours, 2, canvas_length)
    canvas = ids(rng, ours, 2, canvas_length)
    kv = ours.encode(prompt)

    def theirs(**kwargs: Any) -> Any:
        return oracle(**kwargs)

    first = theirs(input_ids=prompt, decoder_input_ids=canvas)
    logits = ours.denoise(canvas, kv)
    assert gap(logits, first.logits) <= TOLERANCE
    # Self-conditioning on the logits of the step before; the oracle takes logits, we take the soft embedding.
    soft = torch.softmax(first.logits, -1) @ ours.embedding
    conditioned = ours.denoise(canvas, kv, soft)
    expected = theirs(
        input_ids=prompt, decoder_input_ids=canvas, self_conditioning_logits=first.logits
    ).logits
    assert gap(conditioned, expected) <= TOLERANCE
    assert gap(conditioned, logits) > 1e-2, "self-conditioning must matter, or the comparison shows nothing"
    # A committed canvas becomes prefix: positions go on, the encoder's own layer scalars apply.
    kv = ours.encode(second, kv)
    expected = theirs(input_ids=torch.cat((prompt, second), 1), decoder_input_ids=canvas).logits
    assert gap(ours.denoise(canvas, kv), expected) <= TOLERANCE


@torch.no_grad()
def test_diffusion_gemma_prefill_in_chunks_equals_whole(tmp_path: Path, rng: np.random.Generator) -> None:
    config = write_checkpoint(tmp_path, "diffusion_gemma", 3)
    model = load(tmp_path, config)
    prompt = ids(rng, model, 1, 29)
    whole, parts = model.encode(prompt), None
    for start in range(0, 29, 7):
        parts = model.encode(prompt[:, start : start + 7], parts)
    assert parts is not None
    for (k, v), (pk, pv) in zip(whole, parts, strict=True):
        assert gap(k, pk) <= TOLERANCE and gap(v, pv) <= TOLERANCE


@torch.no_grad()
def test_diffusion_gemma_reads_a_resaved_config(tmp_path: Path, rng: np.random.Generator) -> None:
    """Recent transformers write per_layer_config instead of the global_* fields."""
    hub, resaved = tmp_path / "hub", tmp_path / "resaved"
    a = load(hub, write_checkpoint(hub, "diffusion_gemma", 5))
    b = load(resaved, write_checkpoint(resaved, "diffusion_gemma", 5, resaved_config=True))
    canvas = ids(rng, a, 1, 16)
    assert torch.equal(a.denoise(canvas, a.encode(canvas)), b.denoise(canvas, b.encode(canvas)))


BIDIRECTIONAL = [
    ("llada", {}),
    ("llada", {"n_heads": 1, "d_model": 48}),
    ("llada", {"n_heads": 3, "d_model": 96, "n_kv_heads": 1}),
    ("llada_moe", {}),
    ("llada_moe", {"num_experts": 1, "num_experts_per_tok": 1}),
    ("llada_moe", {"num_experts": 6, "num_experts_per_tok": 5, "num_attention_heads": 2}),
    ("llada2_moe", {}),
    ("llada2_moe", {"num_experts": 15, "n_group": 5, "topk_group": 3, "num_experts_per_tok": 4}),
    ("llada2_moe", {"num_experts": 9, "n_group": 3, "topk_group": 1, "num_attention_heads": 3,
                    "num_key_value_heads": 1, "head_dim": 20, "rotary_dim": 10}),
    ("llada2_moe", {"n_group": 1, "topk_group": 1, "num_shared_experts": 2, "first_k_dense_replace": 0}),
    # All experts are allowed to every block: as many groups as one.
    ("llada2_moe", {"expert_capacity": 12, "n_group": 1, "topk_group": 1}),
    ("dream", {}),
    ("dream", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112}),
    ("dream", {"num_attention_heads": 4, "num_key_value_heads": 4}),
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family,overrides", BIDIRECTIONAL)
@torch.no_grad()
def test_bidirectional_families_equal_transformers(
    tmp_path: Path, family: str, overrides: dict[str, Any], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    config = write_checkpoint(tmp_path, family, seed, **overrides)
    ours, oracle = load(tmp_path, config), load_oracle(tmp_path)
    tokens = ids(rng, ours, 2, 23)
    full = torch.zeros(2, 1, 23, 23)
    expected = oracle(input_ids=tokens, attention_mask=full, use_cache=False).logits
    assert gap(ours.denoise(tokens), expected) <= TOLERANCE
    causal = oracle(input_ids=tokens, use_cache=False).logits
    assert gap(causal, expected) > 1e-2, "the mask must matter, or the comparison shows nothing"


LLADA2 = [
    {},
    {"num_experts": 15, "n_group": 5, "topk_group": 3, "num_experts_per_tok": 4},
    {"expert_capacity": 5},
    {"expert_capacity": 3, "num_experts": 11, "num_experts_per_tok": 2, "num_attention_heads": 6,
     "num_key_value_heads": 3},
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("overrides", LLADA2)
@torch.no_grad()
def test_llada2_in_blocks_equals_transformers(tmp_path: Path, overrides: dict[str, Any], seed: int) -> None:
    """A prefix in blocks, then a shorter one that is denoised; with a capacity, by the rule of the fact sheet
    in place of transformers' router.
    """
    block, length = 8, 29
    config = write_checkpoint(tmp_path, "llada2_moe", seed, **overrides) | {"block_size": block}
    ours, oracle = load(tmp_path, config), load_oracle(tmp_path)
    if "expert_capacity" in overrides:
        use_block_routing(oracle, config)
    tokens = ids(np.random.default_rng(seed), ours, 1, length)
    of = torch.arange(length) // block
    hidden = torch.finfo(torch.float32).min
    mask = torch.where(of[:, None] >= of, 0.0, hidden)[None, None]
    expected = oracle(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    start = length - length % block
    whole, parts = ours.encode(tokens[:, :start]), None
    for first in range(0, start, 2 * block):  # two blocks, then one
        parts = ours.encode(tokens[:, first : min(start, first + 2 * block)], parts)
    for kv in (whole, parts):
        assert gap(ours.denoise(tokens[:, start:], kv), expected[:, start:]) <= TOLERANCE
    assert gap(ours.denoise(tokens), expected) > 1e-2, "blocks must matter, or the comparison shows nothing"


@torch.no_grad()
def test_a_capacity_is_of_each_text_of_a_batch(tmp_path: Path, rng: np.random.Generator) -> None:
    model = load(tmp_path, write_checkpoint(tmp_path, "llada2_moe", expert_capacity=4))
    tokens = ids(rng, model, 3, 13)  # a block and five rows
    together = model.denoise(tokens)
    for i in range(3):
        assert gap(model.denoise(tokens[i : i + 1])[0], together[i]) <= TOLERANCE


def test_families_declare_their_logit_shift(tmp_path: Path) -> None:
    for family, shifted in {
        "llada": False,
        "llada_moe": False,
        "llada2_moe": False,
        "dream": True,
        "diffusion_gemma": False,
    }.items():
        assert architecture(write_checkpoint(tmp_path / family, family)).shift_logits is shifted


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada", "llada_moe", "llada2_moe", "dream"])
def test_weights_go_back_to_the_stored_names(tmp_path: Path, family: str) -> None:
    from safetensors.torch import load_file

    config = write_checkpoint(tmp_path, family, 1)
    arch = architecture(config)
    back = stored_tensors(arch, load_float_weights(arch, Checkpoint.open(tmp_path)))
    stored = load_file(tmp_path / "model.safetensors")
    assert {n: tuple(t.shape) for n, t in back.items()} == arch.stored_shapes()
    assert all(torch.equal(t, stored[n]) for n, t in back.items())


@torch.no_grad()
def test_expert_order_does_not_depend_on_the_router_order() -> None:
    """Contributions add up in the order of expert index: permuting the top-k slots changes no bit."""
    from edgekit.export import ops

    torch.manual_seed(0)
    x, gate_up, down = torch.randn(9, 16), torch.randn(4, 24, 16), torch.randn(4, 16, 12)
    index = torch.stack([torch.randperm(4)[:3] for _ in range(9)])
    weight = torch.rand(9, 3)

    def mix(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.experts(x, i, w, gate_up, None, None, down, None, None, "silu")

    assert torch.equal(mix(index, weight), mix(index.flip(1), weight.flip(1)))


@pytest.mark.parametrize(
    "family,overrides,message",
    [
        ("llada", {"alibi": True}, "alibi is True; only False is supported"),
        ("llada_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        ("llada2_moe", {"topk_group": 5}, "topk_group is 5 of n_group 4: not possible"),
        ("llada2_moe", {"n_group": 5}, "num_experts 12 and n_group 5 do not divide"),
        ("llada2_moe", {"n_group": 12}, "n_group 12, of which topk_group 2 stay, are too few"),
        ("llada2_moe", {"topk_group": 1, "num_experts_per_tok": 4}, "are too few for num_experts_per_tok 4"),
        ("llada2_moe", {"expert_capacity": 2}, "expert_capacity is 2; a block chooses from"),
        (
            "llada2_moe",
            {"rotary_dim": 16},
            "rotary_dim is 16, but partial_rotary_factor 0.5 of head_dim 16",
        ),
        ("llada2_moe", {"rotary_dim": None, "partial_rotary_factor": 0.3125}, "an even number of channels"),
        (
            "llada2_moe",
            {"rope_scaling": {"partial_rotary_factor": 1.0}},
            "keep the one that the model",
        ),
        ("llada2_moe", {"use_bias": None, "use_qkv_bias": True}, "use_qkv_bias is True; only False"),
        ("llada2_moe", {"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ("dream", {"use_sliding_window": True}, "use_sliding_window"),
        ("dream", {"num_attention_heads": 3, "hidden_size": 96}, "do not divide"),
    ],
)
def test_settings_that_change_the_model_are_refused(
    tmp_path: Path, family: str, overrides: dict[str, Any], message: str
) -> None:
    config = write_checkpoint(
        tmp_path, family, 0, **(overrides if "num_attention_heads" not in overrides else {})
    )
    with pytest.raises(UnsupportedModel, match=message):
        architecture(config | overrides)


def test_unknown_model_type_lists_the_known() -> None:
    with pytest.raises(
        UnsupportedModel, match="'gpt2' is not supported; known: CoDA, Dream, Fast_dLLM_Qwen, a2d"
    ):
        architecture({"model_type": "gpt2"})


@pytest.mark.parametrize("field", ["num_experts", "top_k_experts", "moe_intermediate_size"])
def test_missing_fields_without_a_default_are_errors(tmp_path: Path, field: str) -> None:
    config = write_checkpoint(tmp_path, "diffusion_gemma")
    del config["text_config"][field]
    with pytest.raises(UnsupportedModel, match=f"text_config.{field} is missing"):
        architecture(config)
