"""A search over an open bundle: its session, its verifier and its budget put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgekit.runtime.generation import Generator, Settings, Turn
from edgekit.runtime.sampling import CoreSampler, Event, InvalidOption, drive
from edgekit.runtime.search.attempt import Attempt, before_end, text_with_holes, tokens_so_far
from edgekit.runtime.search.branch import Branch
from edgekit.runtime.search.budget import Room, held_bytes
from edgekit.runtime.search.judge import Judge
from edgekit.runtime.search.procedure import Plan, Search
from edgekit.runtime.search.scorer import LOGIT_BYTES, Scorer, kind_of
from edgekit.runtime.search.verifier import OwnModel, Verifier, checked_scores
from edgekit.runtime.session import Session, Together
from edgekit.runtime.session import sequence as session_sequence
from edgekit.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Costs:
    """`passes` of the search, each a read of the weights, and the `rows`, positions, that they computed;
    `bytes_read` with those of its verifier, of which a judge's are not.
    """

    passes: int
    rows: int
    bytes_read: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: all branches in the order in which they began, the best of them, and the steps
    that all share, and `attempts`, the branches as a verifier sees them. `engine` are numbers of the session.
    """

    best: Branch
    branches: Sequence[Branch]
    attempts: Sequence[Attempt]
    shared: int
    costs: Costs
    engine: Mapping[str, Any]


class _Crew:
    """Runs the passes of a search in a session."""

    def __init__(self, session: Session, together: Together, turn: Turn) -> None:
        self._session, self.together, self._turn = session, together, turn
        self.first = session.sequence
        self.texts = [self.first]
        self._before = 0
        self._before = self.bytes_read()

    def alone(self, sampler: CoreSampler) -> Iterator[Event]:
        for event in drive(sampler, self.first):
            yield event
            self.check()

    def copy(self) -> session_sequence.Sequence:
        text = self._turn.add(self.first.copy())
        self.texts.append(text)
        return text

    def bytes_read(self) -> int:
        return int(self._session.counters()["bytes_read"]) - self._before

    def check(self) -> None:
        self._turn.check()


def search(
    generator: Generator,
    prompt: Sequence[int],
    settings: Settings,
    plan: Plan,
    branches: int | None,
    verifier: Verifier,
    prompt_of: Callable[[Tokenizer], Sequence[int]],
) -> Found:
    """Run a search; `branches` of the plan follow from the memory budget if None. `prompt_of` gives a judge
    the prompt in its own tokens. The verifier is closed at the end.

    Raises InvalidOption where nothing is drawn, so that branches would be the same; BudgetExceeded before
    anything runs; VerifierFailed, and what `Generator.generate` raises.
    """
    with ExitStack() as held:
        held.callback(verifier.close)
        if branches != 1:
            check_draws(generator, settings)
        sampler = generator.sampler(prompt, settings)
        own = isinstance(verifier, OwnModel)
        further = verifier.sequences
        if own:
            further += kind_of(generator.bundle, verifier.name) != "masked"
        judge = verifier if isinstance(verifier, Judge) else None
        if generator.memory_bytes is not None:
            generator.release()  # what is planned for takes its place

        def beside(branches: int) -> int:
            kept = held_bytes(generator, sampler.lengths, replace(plan, branches=branches))
            return kept + (LOGIT_BYTES if own or judge else 0)

        if judge is not None:
            judge.prepare(prompt_of, sampler.lengths.new_tokens, generator.threads)
        room = Room(generator, sampler.lengths, further, beside, judge)
        count = room.branches(branches)
        plan = replace(plan, branches=count, enough=verifier.enough)
        if judge is not None:
            judge.open(bounded=generator.memory_bytes is not None)
        opened = generator.branching(sampler.lengths, count + further, beside(count))
        session, together, turn = held.enter_context(opened)
        started, before = time.perf_counter(), session.counters()
        crew = _Crew(session, together, turn)
        alone = turn.add(session.open_sequence()) if own and further else None
        verifier.begin(Scorer(session, np.array(prompt, np.int64), crew.texts, alone))
        score = _Score(generator, prompt, settings, verifier)
        procedure = Search(plan, crew, sampler, settings.seed, score)
        best = procedure.run()
        engine = generator.since(before, session)
        costs = Costs(
            procedure.shared_passes + together.passes,
            procedure.shared_rows + together.rows,
            engine["bytes_read"],
            time.perf_counter() - started,
        )
        attempts = [score.attempt(each, each.stats is not None) for each in procedure.branches]
        assert best.stats is not None, "it has come to its end"
        engine |= {"seconds": costs.seconds, "prompt_tokens": len(prompt), "reused_tokens": 0}
        engine["memory_bytes"] = generator.memory_bytes  # with what was held beside the session
        best.stats.engine.update(engine)
        generator.stats = best.stats
        return Found(best, procedure.branches, attempts, procedure.shared, costs, engine)


def check_draws(generator: Generator, settings: Settings) -> None:
    """Raises InvalidOption for settings with which a procedure draws nothing: its branches would all be the
    same.
    """
    if not generator.options(settings).draws:
        raise InvalidOption(
            "temperature is 0: the model draws nothing, and all branches would be the same; set temperature "
            "above 0, such as 0.7"
        )


class _Score:
    """Shows branches to a verifier."""

    def __init__(
        self, generator: Generator, prompt: Sequence[int], settings: Settings, verifier: Verifier
    ) -> None:
        values = generator.options(settings).values()
        self._prompt, self._verifier = tuple(prompt), verifier
        self._mask: int | None = values.get("mask_token_id")
        self._ends = {*(values.get("eos_token_ids") or ()), *(values.get("eot_token_ids") or ())}
        self._decode = lambda ids: generator.tokenizer.decode(ids, skip_special=True)

    def __call__(self, branches: Sequence[Branch], final: bool) -> list[float]:
        return checked_scores(self._verifier, [self.attempt(branch, final) for branch in branches])

    def attempt(self, branch: Branch, final: bool) -> Attempt:
        ids = before_end(tokens_so_far(branch.events), self._ends)
        text = text_with_holes(ids, self._mask, self._decode)
        return Attempt(text, tuple(ids), self._prompt, final, branch.number, branch.steps, self._mask)
