"""Options of a search with verifiers, and the search that `run` makes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.flashload.sizes import size
from edgekit.tools.console import Status, prose
from edgekit.tools.help import Rare
from edgekit.tools.options import Count, Number
from edgekit.tools.request import Request
from edgekit.tools.stuck import ending_if_stuck
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.runtime.api import Model, SearchResult

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--verify", metavar="VERIFIER",
        help="Take the best of several answers by json, regex:PATTERN, likelihood, confidence, "
        "python:MODULE.FUNCTION or bundle:FOLDER.",
    ),
    click.option(
        "--branches", cls=Rare, type=Count(1, 64), metavar="N",
        help="Answers of a search. Default: 4, or as many as --memory has room for.",
    ),
    click.option(
        "--share", cls=Rare, metavar="PART",
        type=Number(lambda part: 0 <= part < 1, "at least 0 and below 1"),
        help="Part of the steps that all branches have in common. Default: 0.8.",
    ),
    click.option(
        "--method", cls=Rare, type=click.Choice(("best_of", "prune", "back")),
        help="What becomes of the branches of a search, see docs/search.md. Default: best_of.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class SearchRequest:
    """A search as its options say; `others` are arguments of `Model.search`."""

    verifier: str
    others: Mapping[str, Any]


def search_options(command: F) -> F:
    """Adds the options, which reach the command as its argument `wanted`; None without --verify."""

    @wraps(command)
    def with_search(*arguments: Any, verify: str | None, **others: Any) -> Any:
        given = {name: others.pop(name) for name in ("branches", "share", "method")}
        given = {name: value for name, value in given.items() if value is not None}
        if verify is None and given:
            raise click.UsageError(f"--{min(given)} is for a search; say by --verify what is a good answer")
        wanted = None if verify is None else SearchRequest(verify, given)
        return command(*arguments, wanted=wanted, **others)

    for option in reversed(_OPTIONS):
        with_search = option(with_search)
    return with_search  # type: ignore[return-value]


def searched(
    model: Model, prompt: str, request: Request, wanted: SearchRequest, *, quiet: bool
) -> SearchResult:
    """What a search finds; the answer and a line for each branch are written unless `quiet`. Raises
    EdgekitError.
    """
    from edgekit.tools.answer_display import write_text

    if wanted.verifier.startswith("python:"):
        sys.path.insert(0, os.getcwd())  # as `python -m` has it
    status = Status()
    if not quiet:
        status.show("searching", now=True)
    try:
        with ending_if_stuck():
            found = model.search(
                prompt,
                verifier=wanted.verifier,
                system=request.system,
                raw=request.raw,
                **wanted.others,
                **request.settings,
            )
    finally:
        status.clear()
    if not quiet:
        if found.answer.text:
            write_text(found.answer.text)
        for branch in found.branches:
            prose(_line(branch.number, found), err=True)
    return found


def _line(number: int, found: SearchResult) -> str:
    branch = found.branches[number]
    came = "" if branch.parent is None else f", from branch {branch.parent} at step {branch.forked_at}"
    score = "not scored" if branch.score is None else f"score {branch.score:.4g}"
    end = "given up" if branch.pruned else "best" if number == found.best else ""
    return f"branch {number}{came}: {score} after {counted(branch.steps, 'step')}" + (end and f", {end}")


def search_summary(found: SearchResult) -> str:
    """The costs of a search in one line; those of its branches are in lines of their own."""
    from edgekit.tools.answer_display import waited

    costs, own = found.statistics, found.answer.statistics
    read = f"{size(costs.bytes_read)} read" if own.bytes_per_step else "all weights in memory"
    return (
        f"{counted(len(found.branches), 'branch')} in {counted(costs.passes, 'pass')} of "
        f"{counted(costs.rows, 'row')}, {counted(costs.shared_steps, 'step')} shared, "
        f"{costs.seconds:.2f} s; {read}, {waited(own)}"
    )


def as_dict(found: SearchResult) -> dict[str, Any]:
    """What a search found besides its answer, for JSON."""
    return {
        "score": found.score,
        "best": found.best,
        "branches": [asdict(branch) for branch in found.branches],
        "search": asdict(found.statistics),
    }
