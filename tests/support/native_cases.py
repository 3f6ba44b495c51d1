"""Bundles of the native format of every family and preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Override, Scheme
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint

#: Family, scheme, checkpoint overrides: every family and preset; odd head counts, GQA, odd N and K, one KV
#: head, float experts among quantized ones, short windows.
CASES: dict[str, tuple[str, Scheme, dict[str, Any]]] = {
    "gemma mixed4": ("diffusion_gemma", Scheme("mixed4"),
                     {"moe_intermediate_size": 32, "num_hidden_layers": 3}),
    "gemma int8": ("diffusion_gemma", Scheme("int8"), {"num_hidden_layers": 2, "num_attention_heads": 3,
                   "num_key_value_heads": 3, "num_global_key_value_heads": 1, "num_experts": 5,
                   "moe_intermediate_size": 19, "intermediate_size": 45}),
    "gemma bf16": ("diffusion_gemma", Scheme("bf16"), {"num_hidden_layers": 2}),
    "llada int4": ("llada", Scheme("int4"), {"n_layers": 2, "mlp_hidden_size": 160}),
    "llada int8": ("llada", Scheme("int8"), {"n_layers": 2, "n_heads": 3, "d_model": 96, "n_kv_heads": 1,
                   "mlp_hidden_size": 131}),
    "llada_moe mixed4": ("llada_moe", Scheme("mixed4", 32, (Override("layers.1.experts.*", 16),)),
                         {"num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 2}),
    "llada_moe int4": ("llada_moe", Scheme("int4", 16, (Override("layers.0.experts.*.down", 8),)),
                       {"num_hidden_layers": 2}),
    "dream mixed4": ("dream", Scheme("mixed4", 16), {"num_hidden_layers": 2, "num_attention_heads": 7,
                     "num_key_value_heads": 1, "hidden_size": 112, "vocab_size": 391}),
    "dream bf16": ("dream", Scheme("bf16"), {"num_hidden_layers": 1}),
    "coda int8": ("coda", Scheme("int8"), {"num_hidden_layers": 2, "head_dim": 10}),
}  # fmt: skip


def bundle_of_case(folder: Path, case: str) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    family, scheme, overrides = CASES[case]
    write_checkpoint(folder / "checkpoint", family, **overrides)
    options = ExportOptions("native", scheme=scheme, tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"
