"""Searches over a model that shows what every row has seen, beside a plain version of each method: whole
generations, one alone, whose seeds change where the branches fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.hash_model import HashModel, HashSequence

from edgekit.runtime.sampling import Committed, CoreSampler, Draft, Event, Prefix, SamplerModel, drive
from edgekit.runtime.sampling.core import text_number
from edgekit.runtime.search import Branch, Plan, Search
from edgekit.runtime.search.attempt import tokens_so_far
from edgekit.runtime.search.branch import Snapshot, Snapshots

MASK, EOS, PROMPT = 12, 11, [3, 1, 4, 1, 5]
EMPTY = 2
#: A branch's seeds: each from so many steps on.
Way = list[tuple[int, int]]


@dataclass
class Text(HashSequence):
    """A sequence that can be copied and compared."""

    @property
    def prefix(self) -> Prefix:
        return Prefix(len(self.kept), text_number(EMPTY, np.array(self.text, np.int64)))

    def copy(self) -> Text:
        return Text(self.model, self.block, self.kept.copy(), self.text.copy(), [], self.uncached)


class Company:
    """What `Together` is to a session: everybody's next pass, and what is told before and behind it."""

    def __init__(self) -> None:
        self.members: dict[int, Iterator[Event]] = {}

    def join(self, key: int, sampler: CoreSampler, text: Text) -> None:
        assert key not in self.members
        self.members[key] = drive(sampler, text)

    def leave(self, key: int) -> None:
        self.members.pop(key).close()  # type: ignore[attr-defined]

    def step(self) -> list[tuple[int, Event]]:
        told: list[tuple[int, Event]] = []
        for key, running in list(self.members.items()):
            for event in running:
                told.append((key, event))
                if isinstance(event, Draft):
                    break
            else:
                del self.members[key]
        return told

    def __len__(self) -> int:
        return len(self.members)


@dataclass
class Crew:
    first: Text
    together: Company = field(default_factory=Company)

    def alone(self, sampler: CoreSampler) -> Iterator[Event]:
        return drive(sampler, self.first)

    def copy(self) -> Text:
        return self.first.copy()

    def bytes_read(self) -> int:
        return 0

    def check(self) -> None: ...


@dataclass(eq=False)
class Case:
    model: HashModel
    block: int
    steps: int
    tokens: int
    temperature: float = 1.5
    ends: bool = True

    def sampler(self, seed: int) -> CoreSampler:
        config = {"mask_token_id": MASK, "eos_token_id": [EOS], "block_length": 4, "steps": self.steps}
        config["stop_at_eos"] = self.ends
        section = {"name": "block", "config": {**config, "temperature": self.temperature}}
        facts = SamplerModel(section, self.model.vocabulary, 0, bundle="b", prefix_block=self.block)
        return CoreSampler(facts, PROMPT, seed=seed, max_new_tokens=self.tokens)

    def alone(self, way: Way, steps: int | None = None) -> list[Event]:
        """The events of a generation, until so many steps are done."""
        return self._alone(tuple(way), steps)

    @cache  # noqa: B019 - a handful
    def _alone(self, way: tuple[tuple[int, int], ...], steps: int | None) -> list[Event]:
        seeds = dict(way)
        sampler, text = self.sampler(seeds.pop(0)), Text(self.model, self.block)
        events: list[Event] = []
        done = 0
        while True:
            for event in drive(sampler, text):
                events.append(event)
                done += isinstance(event, Draft)
                if isinstance(event, Draft) and done == steps:
                    return events
                if isinstance(event, Draft) and done in seeds:
                    sampler.reseed(seeds.pop(done))
                    break
            else:
                return events

    def search(self, plan: Plan, seed: int) -> tuple[Search, Branch]:
        search = Search(plan, Crew(Text(self.model, self.block)), self.sampler(seed), seed, rated)
        return search, search.run()


CASES = [
    Case(HashModel(seed=1), 1, 4, 16),
    Case(HashModel(seed=2), 4, 4, 16),
    Case(HashModel(seed=3), 4, 2, 24),
    Case(HashModel(seed=4), 1, 4, 16, ends=False),
]


def tokens(events: Sequence[Event]) -> list[int]:
    """What is committed, and the block behind it as it stands."""
    committed = [t for event in events if isinstance(event, Committed) for t in event.ids.tolist()]
    last = next((e for e in reversed(events) if isinstance(e, Draft | Committed)), None)
    return committed + (last.ids.tolist() if isinstance(last, Draft) else [])


def rate(ids: Sequence[int]) -> float:
    """A score that says nothing of anything."""
    return float(sum((i + 3) * token * token for i, token in enumerate(ids)) % 101)


def rated(branches: Sequence[Branch], final: bool) -> list[float]:
    assert all((branch.stats is not None) == final for branch in branches)
    return [rate(tokens_so_far(branch.events)) for branch in branches]


def steps_of(events: Sequence[Event]) -> int:
    return sum(isinstance(event, Draft) for event in events)


def nearest(first: int, last: int, target: int, most: int) -> int:
    """Of the steps first..last the one up to a target whose state is kept, `most` being so."""
    stride = 1
    while len(kept := [s for s in range(first, last + 1) if s == first or s % stride == 0]) > most:
        stride *= 2
    return max((s for s in kept if s <= target), default=0)


@dataclass
class Reference:
    """The methods once more, as whole generations."""

    case: Case
    plan: Plan
    seed: int
    ways: list[Way] = field(default_factory=list)
    pruned: dict[int, int] = field(default_factory=dict)

    def run(self) -> int:
        whole = self.case.sampler(self.seed).lengths
        total = whole.steps * whole.canvases
        trunk: Way = [(0, self.seed)]
        fork = int(self.plan.share * total)
        taken = steps_of(self.case.alone(trunk))
        ended = taken <= fork
        if ended:
            fork, total = nearest(1, taken, int(self.plan.share * taken), 8), taken
        self.ways = [trunk, *([*trunk, (fork, self.seed + n)] for n in range(1, self.plan.branches))]
        slots = list(range(self.plan.branches))
        if self.plan.method == "prune":
            self.prune(
                slots, fork, self.plan.every or max(1, (total - fork) // 4), slots[1:] if ended else slots
            )
        best = self.best()
        for _ in range(self.plan.rounds if self.plan.method == "back" else 0):
            way = self.ways[best]
            end = steps_of(self.case.alone(way))
            at = fork + int((end - fork) * (1 - self.plan.depth))
            # Of the first one all of its way is kept if it ended before the fork.
            whole_way = ended and best == 0
            at = nearest(1 if whole_way else way[-1][0] or fork, end, at, 8 if whole_way else 4)
            for slot in range(self.plan.branches):
                if slots[slot] != best:
                    slots[slot] = len(self.ways)
                    self.ways.append([*(w for w in way if w[0] <= at), (at, self.seed + len(self.ways))])
            best = self.best()
        return best

    def prune(self, slots: list[int], fork: int, every: int, alive: list[int]) -> None:
        look = fork + every
        while alive := [n for n in alive if steps_of(self.case.alone(self.ways[n])) >= look]:
            scores = {n: rate(tokens(self.case.alone(self.ways[n], look))) for n in alive}
            order = sorted(alive, key=lambda n: (-scores[n], n))
            half = len(order) // 2
            for good, bad in zip(order[:half], order[len(order) - half :], strict=True):
                if scores[good] != scores[bad]:
                    self.pruned[bad] = look
                    alive.remove(bad)
                    alive.append(len(self.ways))
                    self.ways.append([*self.ways[good], (look, self.seed + len(self.ways))])
            look += every

    def best(self) -> int:
        ends = [n for n in range(len(self.ways)) if n not in self.pruned]
        return min(ends, key=lambda n: (-rate(tokens(self.case.alone(self.ways[n]))), n))


PLANS = {
    "best of 3": Plan(3, 0.5),
    "best of 4, late": Plan(4, 0.9),
    "all steps apart": Plan(2, 0.0),
    "prune": Plan(4, 0.25, "prune"),
    "prune often": Plan(5, 0.3, "prune", every=1),
    "back": Plan(3, 0.82, "back", rounds=3),
    "back far": Plan(2, 0.82, "back", rounds=2, depth=0.9),
}


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("name", PLANS)
def test_branches_are_generations_that_fork(number: int, name: str) -> None:
    case, plan = CASES[number], PLANS[name]
    for seed in (7, 2**64 - 2):
        seeds = [(seed + n) % 2**64 for n in range(99)]
        reference = Reference(case, plan, seed)
        reference.seed = Seed(seed)
        best = reference.run()
        search, found = case.search(plan, seed)
        assert [b.seed for b in search.branches] == seeds[: len(reference.ways)]
        assert found.number == best
        for branch, way in zip(search.branches, reference.ways, strict=True):
            stop = reference.pruned.get(branch.number)
            assert branch.pruned_at == stop
            expected = case.alone(way, stop)
            assert tokens(branch.events) == tokens(expected)
            if branch is found:
                assert steps_of(branch.events) == branch.steps
                assert [type(event) for event in branch.events] == [type(event) for event in expected]
            if stop is None:
                assert branch.steps == steps_of(expected)
                assert branch.score == rate(tokens(expected))


class Seed(int):
    """A seed whose sums stay one."""

    def __new__(cls, value: int) -> Seed:
        return super().__new__(cls, value % 2**64)

    def __add__(self, other: int) -> Seed:
        return Seed(int(self) + other)


def test_pruning_and_going_back_happen() -> None:
    counts: dict[str, int] = {}
    different = 0
    for name, plan in PLANS.items():
        for case in CASES:
            search, _ = case.search(plan, 7)
            counts[name] = counts.get(name, 0) + len(search.branches) - plan.branches
            different += len({tuple(tokens(b.events)) for b in search.branches}) > 1
    assert different > 0.8 * len(PLANS) * len(CASES)
    assert counts["prune"] > 2 and counts["prune often"] > counts["prune"] and counts["back"] >= 12
    assert counts["best of 3"] == 0


def test_shared_steps_are_computed_once() -> None:
    for name in ("best of 3", "best of 4, late"):
        case, plan = CASES[3], PLANS[name]
        crew = Crew(Text(case.model, case.block))
        texts: list[Text] = [crew.first]
        crew.copy = lambda texts=texts, crew=crew: texts.append(crew.first.copy()) or texts[-1]  # type: ignore
        search = Search(plan, crew, case.sampler(7), 7, rated)
        search.run()
        own = [branch.steps - search.shared for branch in search.branches]
        assert search.shared == int(plan.share * search.total) > 0
        assert sum(len(text.passes) for text in texts) == search.shared + sum(own)
        assert search.shared_passes == search.shared + 1, "a prompt is encoded"


def test_going_back_ends_with_an_answer_that_is_good_enough() -> None:
    case, plan = CASES[0], Plan(3, 0.82, "back", rounds=9)
    search, best = case.search(plan, 7)
    assert best.score is not None
    assert len(search.branches) == 3 + 9 * 2
    again, found = case.search(Plan(3, 0.82, "back", rounds=9, enough=best.score), 7)
    assert found.number == best.number and len(again.branches) <= len(search.branches)
    never, _ = case.search(Plan(3, 0.82, "back", rounds=9, enough=-1.0), 7)
    assert len(never.branches) == 3


def test_a_single_branch_goes_back_too() -> None:
    search, best = CASES[1].search(Plan(1, 0.5, "back", rounds=4, depth=0.5), 7)
    assert len(search.branches) == 5
    assert best.score == max(branch.score for branch in search.branches if branch.score is not None)


def test_states_are_thinned_out() -> None:
    sampler = CASES[0].sampler(1)
    kept = Snapshots(4)
    assert kept.at(3) is None
    for steps in range(3, 40):
        if kept.wants(steps):
            kept.add(Snapshot(steps, 0, sampler))
        assert len(kept.steps) <= 4 and kept.steps[0] == 3
        gaps = np.diff(kept.steps[1:])
        assert len(set(gaps.tolist())) <= 1, "evenly"
    assert kept.steps == [3, 16, 32]
    found = kept.at(31)
    assert found is not None and found.steps == 16
    none: Any = Snapshots(0)
    assert not none.wants(0)
