"""Options of a search with verifiers, and the search that `run` makes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.tools.console import Status, prose
from edgekit.tools.help import Rare
from edgekit.tools.options import Count
from edgekit.tools.request import Request
from edgekit.tools.stuck import ending_if_stuck
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.runtime.api import Answer, Model, SearchResult

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
        "--share", cls=Rare, type=click.FloatRange(0, 1, max_open=True), metavar="PART",
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
) -> tuple[Answer, dict[str, Any]]:
    """The answer of a search, written unless `quiet`, and what the other branches were. Raises
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
    return found.answer, as_dict(found)


def _line(number: int, found: SearchResult) -> str:
    branch = found.branches[number]
    came = "" if branch.parent is None else f", from branch {branch.parent} at step {branch.forked_at}"
    score = "not scored" if branch.score is None else f"score {branch.score:.4g}"
    end = "given up" if branch.pruned else "best" if number == found.best else ""
    return f"branch {number}{came}: {score} after {counted(branch.steps, 'step')}" + (end and f", {end}")


def as_dict(found: SearchResult) -> dict[str, Any]:
    """What a search found besides its answer, for JSON."""
    return {
        "score": found.score,
        "best": found.best,
        "branches": [asdict(branch) for branch in found.branches],
        "search": asdict(found.statistics),
    }
