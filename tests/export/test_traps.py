"""Known mistakes in these architectures, made on purpose: the comparison with transformers must notice
each.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.block_routing import use_block_routing
from support.checkpoints import load_oracle, write_checkpoint

from edgekit.export import ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.errors import CheckpointError
from edgekit.export.models import architecture, diffusion_gemma, llada2_moe, transformer
from edgekit.export.models.base import Rope, rope_default
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights

Mistake = Callable[[pytest.MonkeyPatch, ReferenceModel], None]


def router_reads_the_normed_input(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = diffusion_gemma.GemmaLayer.route

    def wrong(self: Any, residual: torch.Tensor, w: Any) -> Any:
        return right(self, ops.rms_norm(residual, w["pre_feedforward_layernorm_2.weight"], self.eps), w)

    patch.setattr(diffusion_gemma.GemmaLayer, "route", wrong)


def attention_is_scaled_by_the_head_size(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = ops.attention
    patch.setattr(
        ops, "attention", lambda q, k, v, pk, pv, m, s: right(q, k, v, pk, pv, m, q.shape[-1] ** -0.5)
    )


def global_values_come_from_rotated_keys(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = ops.attention

    def wrong(q: Any, k: Any, v: Any, pk: Any, pv: Any, mask: Any, scale: float) -> Any:
        return right(q, k, k if q.shape[-1] == 32 else v, pk, pk if q.shape[-1] == 32 else pv, mask, scale)

    patch.setattr(ops, "attention", wrong)


def encoder_uses_the_decoders_scalars(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    for name, weight in model.weights().items():
        if name.endswith("layer_scalars"):
            weight.data[1] = weight.data[0]


def first_step_skips_self_conditioning(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    model.architecture = dataclasses.replace(model.architecture, self_conditioning=None)


def partial_rope_counts_over_the_rotated_part(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    full = rope_default(1e6, 8).inverse_frequency + (0.0,) * 12
    ropes = dict(model.architecture.ropes) | {"full": dataclasses.replace(model.architecture.ropes["full"])}
    ropes["full"] = dataclasses.replace(ropes["full"], inverse_frequency=full)
    model.architecture = dataclasses.replace(model.architecture, ropes=ropes)


def canvas_window_is_applied_to_the_whole_prefix(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    layers = tuple(dataclasses.replace(x, window=None) for x in model.architecture.layers)
    model.architecture = dataclasses.replace(model.architecture, layers=layers)


def logits_are_not_softcapped(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    model.architecture = dataclasses.replace(model.architecture, softcap=0.0)


GEMMA: list[Mistake] = [
    router_reads_the_normed_input,
    attention_is_scaled_by_the_head_size,
    global_values_come_from_rotated_keys,
    encoder_uses_the_decoders_scalars,
    first_step_skips_self_conditioning,
    partial_rope_counts_over_the_rotated_part,
    canvas_window_is_applied_to_the_whole_prefix,
    logits_are_not_softcapped,
]


def load(path: Path, family: str, **overrides: Any) -> ReferenceModel:
    write_checkpoint(path, family, 2, **overrides)
    source = Checkpoint.open(path)
    arch = architecture(source.config)
    return ReferenceModel(arch, load_float_weights(arch, source)).eval()


@pytest.mark.parametrize("mistake", [None, *GEMMA], ids=lambda m: m.__name__ if m else "none")
@torch.no_grad()
def test_diffusion_gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake | None) -> None:
    model = load(tmp_path, "diffusion_gemma")
    rng = np.random.default_rng(1)
    prompt, canvas = (torch.from_numpy(rng.integers(0, 384, (1, n))) for n in (20, 16))
    expected = load_oracle(tmp_path)(input_ids=prompt, decoder_input_ids=canvas).logits
    if mistake:
        mistake(monkeypatch, model)
    gap = float((model.denoise(canvas, model.encode(prompt)) - expected).abs().max())
    assert gap <= 1e-4 if mistake is None else gap > 1e-3


def router_weights_are_renormalised(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = transformer.mixture
    patch.setattr(
        transformer,
        "mixture",
        lambda x, index, w, ws, kind: right(x, index, w / w.sum(-1, keepdim=True), ws, kind),
    )


def qk_norm_covers_the_whole_projection(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = ops.rms_norm

    def wrong(x: torch.Tensor, weight: Any, eps: float) -> torch.Tensor:
        if x.ndim != 4:
            return right(x, weight, eps)
        flat = x.transpose(1, 2).flatten(2)
        return right(flat, weight.repeat(x.shape[1]), eps).unflatten(2, (x.shape[1], -1)).transpose(1, 2)

    patch.setattr(ops, "rms_norm", wrong)


@pytest.mark.parametrize(
    "mistake", [None, router_weights_are_renormalised, qk_norm_covers_the_whole_projection],
    ids=lambda m: m.__name__ if m else "none",
)  # fmt: skip
@torch.no_grad()
def test_llada_moe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake | None) -> None:
    model = load(tmp_path, "llada_moe")
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 384, (1, 17)))
    oracle = load_oracle(tmp_path)
    expected = oracle(input_ids=tokens, attention_mask=torch.zeros(1, 1, 17, 17), use_cache=False).logits
    if mistake:
        mistake(monkeypatch, model)
    gap = float((model.denoise(tokens) - expected).abs().max())
    assert gap <= 1e-4 if mistake is None else gap > 1e-3


def changed_rule(**change: Any) -> Mistake:
    def mistake(patch: pytest.MonkeyPatch, model: ReferenceModel) -> None:
        for module in {layer.module for layer in model.architecture.layers}:
            if isinstance(module, llada2_moe.LLaDA2Layer):
                patch.setattr(module, "rule", module.rule | change)

    mistake.__name__ = "_".join(f"{k}_{v}" for k, v in change.items())
    return mistake


def bias_counts_in_the_weights(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = llada2_moe.route

    def wrong(logits: torch.Tensor, k: int, *, bias: torch.Tensor, **rule: Any) -> Any:
        index, _ = right(logits, k, bias=bias, **rule)
        weight = (torch.sigmoid(logits) + bias).gather(-1, index)
        return index, weight / weight.sum(-1, keepdim=True) * rule["scale"]

    patch.setattr(llada2_moe, "route", wrong)


def bias_is_left_out(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = llada2_moe.route
    patch.setattr(llada2_moe, "route", lambda logits, k, bias, **rule: right(logits, k, **rule))


def all_channels_are_rotated(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    ropes = {"partial": rope_default(600000, 16)}
    model.architecture = dataclasses.replace(model.architecture, ropes=ropes)


def rotation_counts_over_the_whole_head(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    ropes = {"partial": Rope(rope_default(600000, 16).inverse_frequency[:4])}
    model.architecture = dataclasses.replace(model.architecture, ropes=ropes)


def rows_are_by_group(_: pytest.MonkeyPatch, model: ReferenceModel) -> None:
    """Each KV head behind its queries, as in GPT-NeoX, instead of all queries, all keys, all values."""
    for name, q in model.weights().items():
        if not name.endswith("q_proj.weight"):
            continue
        k, v = (model.weights()[name.replace("q_proj", part)] for part in ("k_proj", "v_proj"))
        heads = torch.cat((q, k, v)).unflatten(0, (2, 4, 16)).clone()  # [KV, 2 q + k + v, D]
        for tensor, part in ((q, heads[:, :2]), (k, heads[:, 2]), (v, heads[:, 3])):
            tensor.data.copy_(part.reshape(tensor.shape))


def the_shared_expert_is_left_out(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    patch.setattr(llada2_moe, "mlp", lambda h, w, name, kind: torch.zeros_like(h))


def the_shared_expert_is_weighted(patch: pytest.MonkeyPatch, _: ReferenceModel) -> None:
    right = llada2_moe.mlp
    patch.setattr(llada2_moe, "mlp", lambda *given: 2.5 * right(*given))


LLADA2: list[Mistake] = [
    changed_rule(score="softmax"), changed_rule(normalize=False), changed_rule(scale=1.0),
    changed_rule(groups=1), changed_rule(kept_groups=3), bias_counts_in_the_weights, bias_is_left_out,
    all_channels_are_rotated, rotation_counts_over_the_whole_head, rows_are_by_group,
    the_shared_expert_is_left_out, the_shared_expert_is_weighted,
]  # fmt: skip
LLADA22: list[Mistake] = [
    changed_rule(capacity=0), changed_rule(capacity=5), changed_rule(block=4), changed_rule(block=100),
    changed_rule(capacity=0, groups=4, kept_groups=2),
]  # fmt: skip


@pytest.mark.parametrize(
    "capacity,mistake",
    [(None, None), (6, None), *((None, m) for m in LLADA2), *((6, m) for m in LLADA22)],
    ids=lambda m: m.__name__ if callable(m) else str(m),
)  # fmt: skip
@torch.no_grad()
def test_llada2_moe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: int | None, mistake: Mistake | None
) -> None:
    own = {} if capacity is None else {"expert_capacity": capacity}
    model = load(tmp_path, "llada2_moe", **own)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 384, (1, 19)))
    oracle = load_oracle(tmp_path)
    if capacity is not None:
        use_block_routing(oracle, json.loads((tmp_path / "config.json").read_text()))
    expected = oracle(input_ids=tokens, attention_mask=torch.zeros(1, 1, 19, 19), use_cache=False).logits
    if mistake:
        mistake(monkeypatch, model)
    gap = float((model.denoise(tokens) - expected).abs().max())
    assert gap <= 1e-4 if mistake is None else gap > 1e-3


def test_the_two_ff_out_of_llada_are_told_apart(tmp_path: Path) -> None:
    """`blocks.{i}.ff_out` is a down projection, `transformer.ff_out` the vocabulary head: swapped, shapes
    do not fit.
    """
    config = write_checkpoint(tmp_path, "llada", vocab_size=384)
    shapes = architecture(config).stored_shapes()
    assert shapes["model.transformer.ff_out.weight"] == (384, 64)
    assert shapes["model.transformer.blocks.0.ff_out.weight"] == (64, 96)
    shapes["model.transformer.ff_out.weight"], shapes["model.transformer.blocks.0.ff_out.weight"] = (
        (64, 96),
        (384, 64),
    )
    with pytest.raises(CheckpointError, match="ff_out"):
        Checkpoint.open(tmp_path).check(shapes)
