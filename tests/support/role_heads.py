"""Random role heads beside checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch

from edgekit.export.role_head import RoleHead, width_of


def random_head(hidden: int, seed: int = 0) -> RoleHead:
    """One whose scores differ from role to role by about 1 for hidden states of unit size."""
    generator = torch.Generator().manual_seed(seed)
    width = width_of(hidden)
    shapes = {
        "down.weight": (width, hidden), "down.bias": (width,), "up.weight": (5, width), "up.bias": (5,)
    }  # fmt: skip
    return RoleHead(
        {name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    )


def write_head(checkpoint: Path, hidden: int, seed: int = 0) -> RoleHead:
    """A random one beside a checkpoint."""
    head = random_head(hidden, seed)
    head.save(checkpoint)
    return head
