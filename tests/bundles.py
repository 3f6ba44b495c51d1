"""Exported bundles for tests, and the reference that an engine with int8 activations must equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoints import write_checkpoint
from torch import Tensor

from edgekit.export import ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme, choose, quantize_weights
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights

#: Small tiles, so that the vocabulary head is joined from several.
TILE_BYTES = 8192


def make_bundle(
    folder: Path,
    family: str,
    scheme: Scheme | None = None,
    seed: int = 0,
    program_format: str = "onnx",
    **overrides: Any,
) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    write_checkpoint(folder / "checkpoint", family, seed, **overrides)
    options = ExportOptions(program_format, scheme=scheme or Scheme(), tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


def quantized_reference(checkpoint: Path, scheme: Scheme) -> ReferenceModel:
    """The reference model holding the codes that the scheme gives a checkpoint."""
    source = Checkpoint.open(checkpoint)
    arch = architecture(source.config)
    weights = quantize_weights(arch, load_float_weights(arch, source), choose(arch, scheme))
    return ReferenceModel(arch, weights).eval()


def round_rows(x: Tensor) -> Tensor:
    """Activations rounded to int8 with one scale per row, as float."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (x / scale).round() * scale


@contextmanager
def int8_activations() -> Iterator[None]:
    """Inside, the reference rounds activations where an engine may: before quantized matrices with act_bits
    8, and in the head.
    """
    linear, logits = ops.linear, ops.vocab_logits

    def rounded_linear(
        x: Tensor, weight: Tensor, groups: Any, scales: Any, bias: Any, act_bits: int
    ) -> Tensor:
        return linear(
            round_rows(x) if scales is not None and act_bits == 8 else x,
            weight,
            groups,
            scales,
            bias,
            act_bits,
        )

    def rounded_logits(x: Tensor, table: Tensor, scales: Any, softcap: float) -> Tensor:
        return logits(round_rows(x) if scales is not None else x, table, scales, softcap)

    ops.linear, ops.vocab_logits = rounded_linear, rounded_logits
    try:
        yield
    finally:
        ops.linear, ops.vocab_logits = linear, logits
