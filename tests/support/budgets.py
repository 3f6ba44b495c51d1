"""Memory budgets that are hardly enough."""

from __future__ import annotations

from pathlib import Path

from edgekit.runtime.session import Session, SessionOptions


def tight(bundle: Path, extra: int = 16 << 20, **lengths: int) -> SessionOptions:
    """The least budget for these lengths, and what the process may grow by meanwhile."""
    with Session(bundle, SessionOptions(**lengths)) as session:
        return SessionOptions(session.plan.least_memory_bytes + extra, **lengths)
