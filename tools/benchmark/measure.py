"""Starts the process that measures a case, and follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.tools.apart import answer_of
from edgekit.tools.benchmark.wanted import Wanted
from edgekit.tools.console import Steps


def check(wanted: Wanted, steps: Steps) -> None:
    """Raises EdgekitError where a case's prompts cannot be asked, see `asking.check`."""
    try:
        measure(replace(wanted, only_check=True), steps)
    except EdgekitError as error:
        raise EdgekitError(f"{wanted.case.title}: {error}") from error


def measure(wanted: Wanted, steps: Steps) -> dict[str, Any]:
    """The report of a case, see docs/bench.md. Raises EdgekitError with what went wrong there, and EndedEarly
    where it was interrupted during its runs.
    """
    report: dict[str, Any] = answer_of(
        "edgekit.tools.benchmark.child",
        wanted.as_dict(),
        steps,
        wanted.case.title,
        "give a smaller --memory",
        may_end_early=not wanted.only_check and not wanted.start,
    )
    return report
