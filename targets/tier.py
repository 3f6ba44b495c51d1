"""Devices of a family by their memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """Devices of one memory size. `budget_bytes` is what a model may use there, less than what the system
    lets an application have; `source` says where that is from.
    """

    name: str
    budget_bytes: int
    source: str
