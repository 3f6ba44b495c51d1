"""A layer, as the manifest lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer of the manifest. Where weights lie in packages, `run` is the layer's package, and `slot` its
    place in it: consecutive layers of one package are one call.
    """

    program: str
    run: str
    experts: tuple[str, ...]
    kv_heads: int
    head_dim: int
    rope: str
    window: int | None
    slot: int = 0
