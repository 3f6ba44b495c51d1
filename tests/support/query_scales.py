"""Factors for queries by position, which no family has yet, put into those that there are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from edgekit.export.models import base
from edgekit.export.models.base import QueryScale, Rope

#: Large, and at positions that tests reach.
SCALE = QueryScale(beta=0.7, positions=4)


def use_query_scales(patch: pytest.MonkeyPatch) -> None:
    """Have all layers scale their queries."""
    made = base.Architecture.__init__

    def init(self: Any, *args: Any, ropes: dict[str, Rope], **more: Any) -> None:
        scaled = {name: dataclasses.replace(rope, query_scale=SCALE) for name, rope in ropes.items()}
        made(self, *args, ropes=scaled, **more)

    patch.setattr(base.Architecture, "__init__", init)
