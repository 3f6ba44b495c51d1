"""Exported bundles for tests, and the reference that an engine with int8 activations must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgekit.export import formats, ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.formats.options import FormatOptions
from edgekit.export.models import architecture, complete
from edgekit.export.pipeline import ExportOptions, _embedding_dtype, export
from edgekit.export.quantize import Scheme, quantize_weights
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.runtime.sampling import HeadOutput, HeadRequest
from edgekit.runtime.session import Session
from edgekit.tools.tiny import tokenizer
from support.checkpoints import write_checkpoint
from support.exported_elsewhere import export_elsewhere

#: Small tiles, so that the vocabulary head is joined from several.
TILE_BYTES = 8192


def make_bundle(
    folder: Path,
    family: str,
    scheme: Scheme | None = None,
    seed: int = 0,
    program_format: str = "onnx",
    precision: str | None = None,
    device: str | None = None,
    **overrides: Any,
) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    write_checkpoint(folder / "checkpoint", family, seed, **overrides)
    options = ExportOptions(
        program_format, scheme=scheme or Scheme(), tile_bytes=TILE_BYTES, precision=precision, device=device
    )
    write = export_elsewhere if program_format == "tvm" else export
    write(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


def shipped_model(folder: Path, name: str, program_format: str) -> Path:
    """A model that comes with edgekit, exported to the returned `folder`/bundle."""
    checkpoint = Path(tokenizer.__file__).parent / name
    export(checkpoint, folder / "bundle", ExportOptions(program_format, scheme=Scheme("mixed4")))
    return folder / "bundle"


def quantized_reference(checkpoint: Path, scheme: Scheme, program_format: str = "onnx") -> ReferenceModel:
    """The reference model holding the codes that the scheme gives a checkpoint, as far as the format can
    store them.
    """
    source = Checkpoint.open(checkpoint)
    # The stored type rounds the embedding's scale.
    arch = architecture(complete(source.config, source.names), _embedding_dtype(source))
    choices = formats.load(program_format)(arch, scheme, FormatOptions()).choices
    return ReferenceModel(arch, quantize_weights(arch, load_float_weights(arch, source), choices)).eval()


def passes(session: Session, model: ReferenceModel, seed: int = 0) -> tuple[HeadOutput, Tensor]:
    """A canvas after a prefix of two chunks where the family has one: engine output, and the reference's
    logits.
    """
    rng = np.random.default_rng(seed)
    arch = model.architecture
    prompt, canvas = rng.integers(0, arch.vocab_size, 21), rng.integers(0, arch.vocab_size, 16)
    conditioned = arch.self_conditioning is not None
    request = HeadRequest(temperature=0.7, logits=True, soft=conditioned, top_k=7)
    kv = soft = first = None
    session.reset()
    with torch.no_grad():
        if arch.causal_prefix:
            whole = 13 // arch.prefix_block * arch.prefix_block  # blocks are counted from each part's start
            session.prefill(prompt[:whole])
            session.prefill(prompt[whole:])
            kv = model.encode(torch.from_numpy(prompt)[None])
        if conditioned:
            first = session.denoise(canvas, HeadRequest(soft=True)).soft
            assert first is not None
            soft = torch.from_numpy(first)[None]
        out = session.denoise(canvas, request, first)
        expected = model.denoise(torch.from_numpy(canvas)[None], kv, soft)[0] / 0.7
    return out, expected


@contextmanager
def int8_activations(round_rows: Callable[[Tensor], Tensor] = ops.round_rows) -> Iterator[None]:
    """Inside, the reference rounds activations where an engine may: before quantized matrices with act_bits
    8, and in the head.
    """
    linear, logits = ops.linear, ops.vocab_logits

    def rounded_linear(
        x: Tensor, weight: Tensor, groups: Any, scales: Any, bias: Any, act_bits: int, *adapter: Tensor
    ) -> Tensor:
        rounded = round_rows(x) if scales is not None and act_bits == 8 else x
        y = linear(rounded, weight, groups, scales, bias, act_bits)
        return y + ops.low_rank(x, *adapter) if adapter else y

    def rounded_logits(x: Tensor, table: Tensor, scales: Any, softcap: float) -> Tensor:
        return logits(round_rows(x) if scales is not None else x, table, scales, softcap)

    ops.linear, ops.vocab_logits = rounded_linear, rounded_logits
    try:
        yield
    finally:
        ops.linear, ops.vocab_logits = linear, logits
