"""The random weights that training starts from.

Small models learn to look things up in the prompt late or never when attention starts nearly uniform
(matrices far too small) or nearly one-hot (normed queries and keys at an attention scale of 1), and when
what a position says about its own token drowns in the first layers' noise. The scales here avoid all three.
"""

from __future__ import annotations

import torch

from edgekit.export.reference import ReferenceModel

# Weights that are added to the residual stream, per family; they start smaller the deeper the model.
_INTO_RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_POST_NORMS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")


@torch.no_grad()
def initialise(model: ReferenceModel, seed: int = 0) -> None:
    """Fill the model in place: matrices normal with deviation 1/sqrt(inputs), so that unit inputs give unit
    outputs.

    Every layer adds two branches to the residual stream; each starts at 1/sqrt(2 L), through its output
    matrix, or through its post-norm where there is one. Query and key norms start at head_dim^-1/4 where
    the attention scale is 1, which gives scores of unit variance.
    """
    generator = torch.Generator().manual_seed(seed)
    architecture = model.architecture
    hidden, depth = architecture.hidden_size, (2 * len(architecture.layers)) ** -0.5
    post_norms = architecture.causal_prefix
    for name, weight in model.weights().items():
        if weight.ndim > 1:
            deviation = weight.shape[-1] ** -0.5
            if name.startswith("embedding"):
                deviation = 1 / architecture.embedding_scale if architecture.embedding_scale != 1 else 1.0
            elif name.startswith("head"):
                deviation = 0.5 * hidden**-0.5
            elif name.endswith("router.proj.weight") and post_norms:
                deviation = 1.0  # its input is scaled by 1/sqrt(H) already
            elif not post_norms and name.endswith(_INTO_RESIDUAL):
                deviation *= depth
            weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)
        elif post_norms and name.endswith(_POST_NORMS) and name.startswith("layers."):
            weight.fill_(depth)
        elif post_norms and name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(weight.shape[0] ** -0.25)
