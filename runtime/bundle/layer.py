"""A layer, as the manifest lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer of the manifest. Where weights lie in packages, `run` is the layer's package, and `slot` its
    place in it: consecutive layers of one package are one call. `mixture` is the run of what the core
    computes of such a layer, with the experts, by the program `mixture_program`; empty where it is all in
    the package.
    """

    program: str
    run: str
    experts: tuple[str, ...]
    kv_heads: int
    head_dim: int
    rope: str
    window: int | None
    slot: int = 0
    mixture: str = ""
    mixture_program: str = ""
