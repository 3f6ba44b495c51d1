"""How many branches a memory budget has room for: looked at before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from edgekit.flashload.sizes import size_up
from edgekit.runtime import room
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Lengths
from edgekit.runtime.search.judge import Judge
from edgekit.runtime.search.procedure import Plan

#: Branches where no number is given, if there is room for them.
USUAL_BRANCHES: Final = 4
MOST_BRANCHES: Final = 64


def sampler_bytes(generator: Generator, lengths: Lengths) -> int:
    """What a copy of a sampler holds, at most: tokens and what goes with them, and a soft embedding where
    the model is told what its last step expected.
    """
    soft = generator.bundle.model.hidden_size if generator.family == "diffusion_gemma" else 0
    return 1024 + lengths.canvas * (64 + 4 * soft)


def held_bytes(generator: Generator, lengths: Lengths, plan: Plan) -> int:
    """What a search keeps beside its session, at most: samplers to go on with and back to, and drafts that
    branches have told.
    """
    steps, draft = lengths.steps * lengths.canvases, 512 + 9 * lengths.canvas
    ways = plan.share + (plan.branches + 1) * (1 - plan.share)
    return plan.states * sampler_bytes(generator, lengths) + int(ways * steps * draft)


@dataclass(frozen=True, eq=False)
class Room:
    """The memory of a search: branches of these `lengths`, `further` sequences that a verifier needs, what is
    held `beside` so many branches, and a judge.
    """

    generator: Generator
    lengths: Lengths
    further: int
    beside: Callable[[int], int]
    judge: Judge | None = None

    def branches(self, wanted: int | None) -> int:
        """The number of branches: `wanted` ones, None: as many as there is room for, up to the usual number.

        Raises BudgetExceeded for one more than the budget has room for.
        """
        if self.generator.memory_bytes is None:
            return wanted or USUAL_BRANCHES
        with suppress(EngineUnavailable, UnsupportedBundle):  # which the session says
            judge = 0 if self.judge is None else self.judge.least_bytes
            if wanted is None:
                most = self._most(USUAL_BRANCHES, judge)
                return most or self._refuse(1, judge)
            if self._lacks(wanted, judge) is not None:
                self._refuse(wanted, judge)
        return wanted or USUAL_BRANCHES

    def _lacks(self, branches: int, judge: int) -> int | None:
        """The budget that so many would need, None where there is room for them."""
        beside = self.beside(branches) + judge
        return room.lacking(self.generator, self.lengths, branches + self.further, beside)

    def _most(self, limit: int, judge: int) -> int:
        """The most branches there is room for, up to a limit."""
        return room.most(limit, lambda branches: self._lacks(branches, judge) is None)

    def _refuse(self, wanted: int, judge: int) -> int:
        fit, needed = self._most(wanted - 1, judge), self._lacks(wanted, judge)
        memory = self.generator.memory_bytes
        assert memory is not None and needed is not None, "it does not fit"
        held = ""
        if self.judge is not None:
            held = f" beside the {size_up(judge)} of the judge {self.judge.bundle.path}"
        raise room.refusal(memory, needed, wanted, fit, "branch", "branches", held)
