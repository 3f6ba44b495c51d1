"""Versions of MLX that read each other's exported functions.

The file of an exported function begins with the version that wrote it. Its format changed in 0.30.6 and in
0.32.1, and files of one format do not load in the other: MLX then fails in ways that do not say so.
"""

from __future__ import annotations

import importlib.metadata

#: The versions whose format of function files edgekit writes and reads: from the first, below the second.
FIRST, BELOW = (0, 32, 1), (0, 33, 0)
#: The same as a requirement for pip.
REQUIREMENT = "mlx>=0.32.1,<0.33"


def reads(version: str) -> bool:
    """Whether a version (`0.32.4`, `0.32.2.dev20260901`) writes and reads the format that edgekit uses."""
    parts = version.split(".")[:3]
    if len(parts) < 3 or not all(p.isdigit() for p in parts):
        return False
    return FIRST <= tuple(int(p) for p in parts) < BELOW


def installed() -> str:
    """The version of MLX in this environment. Raises PackageNotFoundError (an ImportError)."""
    return importlib.metadata.version("mlx")
