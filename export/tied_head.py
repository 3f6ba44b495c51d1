"""A head that config.json ties to the embedding, against the checkpoint's tensors."""

from __future__ import annotations

import numpy as np

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture

#: Rows that are compared at a time.
ROWS = 4096


def check_tied_head(checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Refuse a checkpoint that ties its head to the embedding and holds another head: transformers takes the
    stored one, other loaders the embedding. A copy of the embedding is fine.

    Raises:
        UnsupportedModel: it does. CheckpointError: a tensor cannot be read.
    """
    if architecture.head is not None:
        return
    embedding = architecture.embedding.parts[0].tensor
    for head in (name for name in architecture.ignored if name in checkpoint):
        if not _equal(checkpoint, head, embedding):
            raise UnsupportedModel(
                f"{checkpoint.file(head)}: config.json ties the output head to the embedding, but {head} "
                f"differs from {embedding}; set tie_word_embeddings (LLaDA: weight_tying) to false there to "
                "use the stored head"
            )


def _equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    if checkpoint.shape(one) != checkpoint.shape(other) or checkpoint.dtype(one) != checkpoint.dtype(other):
        return False
    rows = checkpoint.shape(one)[0]
    return all(
        np.array_equal(checkpoint.read_raw(one, start, stop), checkpoint.read_raw(other, start, stop))
        for start, stop in ((i, min(i + ROWS, rows)) for i in range(0, rows, ROWS))
    )
