"""Presets: how many bits the matrices of each role get; what becomes of adapters. Imports nothing: the
command line lists both.
"""

from __future__ import annotations

#: Matrix roles, which presets decide by; "float" tensors (norms, biases, scalars) are stored as float32, and
#: the matrices of low-rank adapters in 16 bits whatever is asked: they are small, and products take no other.
ROLES = (
    "attention",
    "mlp",
    "shared_mlp",
    "experts",
    "router",
    "self_conditioning",
    "embedding",
    "head",
    "adapter",
    "float",
)
DEFAULT_PRESET = "mixed4"

#: A LoRA adapter is merged into the weights, or stays beside them, for passes that ask for it.
ADAPTER_MODES = ("merged", "switched")

_ALL = tuple(r for r in ROLES if r != "float")
#: Preset -> role -> bits. `mixed4`: the matrices that make up most of a model in 4 bits, those that steer
#: it in 8. `int4`: every matrix of a layer in 4 bits but the router; the vocabulary tables stay in 8.
PRESETS: dict[str, dict[str, int]] = {
    "bf16": dict.fromkeys(_ALL, 16),
    "int8": dict.fromkeys(_ALL, 8) | {"adapter": 16},
    "mixed4": dict.fromkeys(_ALL, 8) | {"experts": 4, "mlp": 4, "adapter": 16},
    "int4": dict.fromkeys(_ALL, 4) | {"router": 8, "embedding": 8, "head": 8, "adapter": 16},
}
