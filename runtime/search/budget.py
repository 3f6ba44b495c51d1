"""How many branches a memory budget has room for: looked at before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.sizes import size, size_up
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle
from edgekit.runtime.generation import Generator, of_several
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
        count = branches + self.further
        options = self.generator.session_options(of_several(self.lengths, count), count, beside)
        try:
            self.generator.plan(options)
        except BudgetExceeded as error:
            return error.needed_bytes + beside
        return None

    def _most(self, limit: int, judge: int) -> int:
        """The most branches there is room for, up to a limit."""
        fit, too_many = 0, limit + 1
        while too_many - fit > 1:
            middle = (fit + too_many) // 2
            if self._lacks(middle, judge) is None:
                fit = middle
            else:
                too_many = middle
        return fit

    def _refuse(self, wanted: int, judge: int) -> int:
        room, needed = self._most(wanted - 1, judge), self._lacks(wanted, judge)
        memory = self.generator.memory_bytes
        assert memory is not None and needed is not None, "it does not fit"
        has = "no room for a branch of these lengths"
        if room:
            has = f"room for {room} branch{'es' if room > 1 else ''} of these lengths, not {wanted}"
        if self.judge is not None:
            has += f" beside the {size_up(judge)} of the judge {self.judge.bundle.path}"
        instead = f"take {room}, or " if room else ""
        raise BudgetExceeded(
            f"the memory budget of {size(memory)} has {has}; {instead}give {size_up(needed)}", needed
        )
