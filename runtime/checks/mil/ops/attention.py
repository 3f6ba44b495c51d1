"""Attention."""

from __future__ import annotations

import math

import numpy as np

from edgekit.runtime.checks.mil.ops.activation import softmax_of
from edgekit.runtime.checks.mil.ops.registry import IOS18, op
from edgekit.runtime.checks.mil.types import Array


@op("scaled_dot_product_attention", since=IOS18, note="boolean and additive masks; scores stay in float32")
def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(Q K^T / sqrt(E) + mask) V. A query that the mask leaves no key gives NaN."""
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(f"batch axes differ: {query.shape}, {key.shape}, {value.shape}")
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    return np.matmul(softmax_of(scores, -1), value)
