"""Search with verifiers: several answers that share steps, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias

from edgekit.flashload.names import shown
from edgekit.runtime.api.answer import Answer, Event
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.options import check_int
from edgekit.runtime.search import Attempt, Found, Plan, Verifier
from edgekit.runtime.search.budget import MOST_BRANCHES

Method: TypeAlias = Literal["best_of", "prune", "back"]
#: What scores answers: a name, a function of an `Attempt`, or a `Verifier`.
Judging: TypeAlias = str | Callable[[Attempt], float] | Verifier
_METHODS = ("best_of", "prune", "back")
_MOST = 10**6


@dataclass(frozen=True)
class SearchBranch:
    """One of the answers of a search.

    >>> found = model.search("Copy this: red 7", branches=2, verifier="json", seed=1, steps=4)
    >>> [(branch.number, branch.seed, branch.parent) for branch in found.branches]
    [(0, 1, None), (1, 2, 0)]
    """

    #: In the order in which they began; the first one is `generate`'s answer.
    number: int
    #: Of its noise behind the fork.
    seed: int
    #: The branch whose way it left, and the denoising steps that it shares with that.
    parent: int | None
    forked_at: int
    #: Denoising steps until its end, shared ones among them.
    steps: int
    #: What the verifier says: of a pruned branch of the last look at it, None if there was none.
    score: float | None
    #: Whether it was given up before its end.
    pruned: bool
    #: The answer, without special tokens; of a pruned branch with holes.
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class SearchStatistics:
    """The costs of a search, all of its branches together."""

    #: Denoising steps that all branches have in common.
    shared_steps: int
    #: Passes over the weights, and the positions that they computed; those of a verifier not counted.
    passes: int
    rows: int
    #: Weights read from the disk; those of a verifier that is this model are among them.
    bytes_read: int
    seconds: float


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    >>> found = model.search("Write as JSON: name: Ada; age: 31", verifier="json", seed=1)
    >>> found.answer.text, found.score
    ('{"name": "Ada", "age": 31}', 1.0)
    """

    #: The best branch's; its statistics count what led to it, and the time and bytes of the whole search.
    answer: Answer
    score: float
    #: Its number.
    best: int
    branches: tuple[SearchBranch, ...]
    #: The best branch's, as `Model.events` tells them.
    events: tuple[Event, ...]
    statistics: SearchStatistics


def plan_of(
    branches: Any, share: Any, method: Any, every: Any, rounds: Any, depth: Any
) -> tuple[Plan, int | None]:
    """The plan of a search, and the number of its branches, None: what there is room for. Raises
    InvalidOption.
    """
    if branches is not None:
        check_int("branches", branches, 1, MOST_BRANCHES)
    if method not in _METHODS:
        raise InvalidOption(f"method is {shown(method)}; use one of {', '.join(_METHODS)}")
    for name, value, of in (("every", every, "prune"), ("rounds", rounds, "back"), ("depth", depth, "back")):
        if value is not None and method != of:
            raise InvalidOption(f"{name} is for method {of}, not {method}; leave it out")
    rounds = Plan.rounds if rounds is None else rounds
    depth = Plan.depth if depth is None else depth
    if every is not None:
        check_int("every", every, 1, _MOST)
    check_int("rounds", rounds, 1, _MOST)
    _check_part("share", share, 0, "at least 0 and below 1")
    _check_part("depth", depth, math.ulp(0.0), "above 0 and below 1")
    return Plan(branches or 1, float(share), method, every, rounds, float(depth)), branches


def _check_part(name: str, value: Any, least: float, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < 1:
        raise InvalidOption(f"{name} is {shown(value)}; use a number {wanted}")


def branches_of(found: Found) -> tuple[SearchBranch, ...]:
    """The branches of a search as its caller sees them."""
    return tuple(
        SearchBranch(
            number=branch.number,
            seed=branch.seed,
            parent=branch.parent,
            forked_at=branch.forked_at,
            steps=branch.steps,
            score=branch.score,
            pruned=branch.pruned_at is not None,
            text=attempt.text,
            ids=attempt.ids,
        )
        for branch, attempt in zip(found.branches, found.attempts, strict=True)
    )
