"""The random weights that training starts from.

Small models learn late or never to look things up in the prompt when attention starts nearly uniform
(matrices far too small) or nearly one-hot (normed queries and keys at an attention scale of 1), or when what
attention finds cannot reach the output. The scales here avoid that: with them a tiny LLaDA copies after some
20 thousand examples; with matrices of deviation 0.02 it did not after 100 thousand.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.tools.tiny import tokenizer

_POST_NORMS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
# Deviation of attention scores, and share of a value that attention passes on, where no norm decides them.
_SCORE_DEVIATION = 2.25
_PASSED_ON = 0.5


@torch.no_grad()
def initialise(model: ReferenceModel, seed: int = 0) -> None:
    """Fill the model in place: matrices normal with deviation 1/sqrt(inputs): unit inputs give unit outputs.

    With post-norms (DiffusionGemma) every branch enters the residual stream through a norm that starts at
    1/sqrt(2 L), and query and key norms at head_dim^-1/4, which gives scores of unit variance at an attention
    scale of 1. Without them (LLaDA, Nemotron-Labs-Diffusion) MLP output matrices start smaller by
    1/sqrt(2 L), the output matrix of attention is the inverse of an orthogonal value matrix, times a half,
    and the head starts along the embedding: what attention finds is then what the head names (after
    arXiv 2305.09828).
    """
    generator = torch.Generator().manual_seed(seed)
    weights, depth = model.weights(), (2 * len(model.architecture.layers)) ** -0.5
    for weight in weights.values():
        if weight.ndim > 1:
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
    embedding = weights["embedding.weight"]
    # The residual stream starts at unit scale.
    embedding.mul_(embedding.shape[1] ** 0.5 / model.architecture.embedding_scale)
    if "layers.0.post_feedforward_layernorm.weight" in weights:
        _with_post_norms(weights, depth)
    else:
        _without_post_norms(weights, depth, generator)


def _with_post_norms(weights: dict[str, Tensor], depth: float) -> None:
    for name, weight in weights.items():
        if name.endswith("router.proj.weight"):
            weight.mul_(weight.shape[1] ** 0.5)  # the router divides its input by sqrt(H)
        elif name.startswith("layers.") and name.endswith(_POST_NORMS):
            weight.fill_(depth)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(weight.shape[0] ** -0.25)


def _without_post_norms(weights: dict[str, Tensor], depth: float, generator: torch.Generator) -> None:
    for name, weight in weights.items():
        if name.endswith("mlp.down_proj.weight"):
            weight.mul_(depth)
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            weight.mul_(_SCORE_DEVIATION**0.5)
        elif name.endswith("v_proj.weight"):
            orthogonal, _ = torch.linalg.qr(
                torch.randn(weight.shape[1], weight.shape[1], generator=generator)
            )
            weight.copy_(orthogonal[: weight.shape[0]])
            weights[name.replace("v_proj", "o_proj")].copy_(_PASSED_ON * orthogonal.t())
    if "head.weight" in weights:
        head = weights["head.weight"]
        head.copy_(0.5 * head.shape[1] ** -0.5 * weights["embedding.weight"])


@torch.no_grad()
def continue_from(model: ReferenceModel, path: Path) -> None:
    """Copy weights of the same names and shapes from a trained tiny model's folder into `model`, in place.

    Rows of the embedding and the head are found by the text of their tokens, because another task language
    numbers them otherwise; what only one side has keeps what it has.
    """
    checkpoint = Checkpoint.open(path)
    trained = load_float_weights(architecture(checkpoint.config, "bfloat16"), checkpoint)
    ours, theirs = (
        json.loads(text)["model"]["vocab"]
        for text in (tokenizer.build(), (path / tokenizer.FILE).read_text(encoding="utf-8"))
    )
    shared = [token for token in ours if token in theirs]
    here = torch.tensor([ours[token] for token in shared])
    there = torch.tensor([theirs[token] for token in shared])
    for name, weight in model.weights().items():
        found = trained.get(name)
        if found is None or found.shape != weight.shape:
            continue
        if name in ("embedding.weight", "head.weight"):
            weight[here] = found[there]
        else:
            weight.copy_(found)
