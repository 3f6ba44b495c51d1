"""The procedures that a benchmark compares: sampler options by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError


def chosen(
    path: Path | None, built_in: Mapping[str, Mapping[str, Any]], only: Sequence[str]
) -> dict[str, str]:
    """Options of the procedures by name, as JSON: of a file, or those that are built in; with `only` these
    and the first, which the others are compared with.

    Raises EdgekitError.
    """
    found: Any = built_in
    if path is not None:
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise EdgekitError(f"{path}: {error}; it must be a JSON object of options by name") from None
        if not isinstance(found, dict) or not found or not all(isinstance(o, dict) for o in found.values()):
            raise EdgekitError(f"{path}: give a JSON object of procedures: a name, and an object of options")
    unknown = [name for name in only if name not in found]
    if unknown:
        raise EdgekitError(f"no procedure {unknown[0]!r}; there are: {', '.join(found)}")
    first = next(iter(found))
    return {
        name: json.dumps(options, sort_keys=True)
        for name, options in found.items()
        if not only or name == first or name in only
    }
