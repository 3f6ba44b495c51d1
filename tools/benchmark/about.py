"""What a report says of the bundle and the case beside the core's own facts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bundle.costs import of_bundle
from edgekit.tools.machine import libraries
from edgekit.tools.versions import installed_version

if TYPE_CHECKING:
    from edgekit.runtime.session import Session
    from edgekit.tools.benchmark.cases import Case


def written_by() -> dict[str, Any]:
    """When a report was made, and by which versions."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "edgekit": installed_version(),
        "libraries": libraries(),
    }


def about(case: Case, new_tokens: int, session: Session, limits: dict[str, Any] | None) -> dict[str, Any]:
    """The member "about" of a report on answers of at most `new_tokens`, `limits` being those of the machine;
    no name of a user, host or folder.
    """
    statistics = session.statistics()
    try:
        costs = of_bundle(session.bundle).as_dict()
    except EdgekitError:
        costs = None  # bundles of other writers need no report of their matrices
    return {
        **written_by(),
        "limits": limits,
        "costs": costs,
        "engine": {
            name: statistics[name]
            for name in ("engine", "provider", "device", "on_processor")
            if name in statistics
        },
        "case": {
            "sequences": case.sequences,
            "prompt": "text" if case.tokens is None else "random",
            "new_tokens": new_tokens,
            "forwards": case.forwards,
            "settings": dict(case.settings),
        },
    }
