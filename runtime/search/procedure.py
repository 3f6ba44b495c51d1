"""The search itself: steps that all branches share, a fork, and what becomes of the branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from edgekit.runtime.sampling import CoreSampler, Crop, Done, Event, Tell
from edgekit.runtime.sampling.options import MOST_SEED
from edgekit.runtime.search.branch import Branch, Snapshot, Snapshots, Text

Method = Literal["best_of", "prune", "back"]
#: States that are kept of the shared steps, for an answer that ends before the fork, and of a branch.
SHARED_STATES: Final = 8
BRANCH_STATES: Final = 4


@dataclass(frozen=True)
class Plan:
    """`branches` that share the first `share` of the steps, 0..1. What then becomes of them:

    best_of: all come to their end. prune: every so many steps (`every`) the worse half is given up for copies
    of the better half, which draw their own noise from there on. back: at the end all but the best one go
    back along that one's way, by `depth` (0..1) of the steps behind the fork, and come to their end again, so
    many `rounds`, or until an answer has `enough` as its score.
    """

    branches: int
    share: float
    method: Method = "best_of"
    every: int | None = None
    rounds: int = 2
    depth: float = 0.5
    enough: float | None = None

    @property
    def states(self) -> int:
        """Samplers that are held at a time, at most."""
        back = BRANCH_STATES * (self.branches + 1) if self.method == "back" else 0
        return SHARED_STATES + self.branches + 2 + back


class Company(Protocol):
    """Several samplers in the same passes, see `session.Together`."""

    def join(self, key: int, sampler: CoreSampler, sequence: Any) -> None: ...
    def leave(self, key: int) -> None: ...
    def step(self) -> Sequence[tuple[Any, Event | Exception]]: ...
    def __len__(self) -> int: ...


class Crew(Protocol):
    """Whatever runs the passes of a search."""

    @property
    def together(self) -> Company: ...

    @property
    def first(self) -> Text:
        """The text of the first branch."""

    def alone(self, sampler: CoreSampler) -> Iterator[Event]:
        """Run a sampler over the first text."""

    def copy(self) -> Text:
        """One more text, which shares what is kept of the first."""

    def bytes_read(self) -> int:
        """Weights read so far."""

    def check(self) -> None:
        """Raises once somebody else has the session."""


#: Scores of branches, finished or not, the higher the better.
Score = Callable[[Sequence[Branch], bool], Sequence[float]]


@dataclass(eq=False)
class Slot:
    """A place for a branch: the text that it runs over."""

    text: Text
    branch: Branch


class Search:
    """Runs a plan. Branch n draws from `seed` + n behind its fork, the first one from `seed` all the way:
    its answer is that of a generation alone. The same plan and seed give the same branches.
    """

    def __init__(self, plan: Plan, crew: Crew, sampler: CoreSampler, seed: int, score: Score) -> None:
        self._plan, self._crew, self._seed, self._score = plan, crew, seed, score
        lengths = sampler.lengths
        #: Steps that a generation takes, at most, and those of them that are shared.
        self.total = lengths.steps * lengths.canvases
        self.shared = self._part(self.total)
        self._start = Snapshot(0, 0, sampler.copy())
        first = Branch(0, seed, sampler, Snapshots(SHARED_STATES))
        #: In the order in which they began.
        self.branches = [first]
        self._slots = [Slot(crew.first, first)]
        #: Positions that passes of shared steps computed.
        self.shared_rows = self.shared_passes = 0

    def run(self) -> Branch:
        """The best branch; of equal ones the first. Raises what a pass or a verifier raises."""
        self._run_shared()
        self._fork()
        self._run_branches()
        self._score_finished()
        for _ in range(self._plan.rounds if self._plan.method == "back" else 0):
            best = self._best()
            if self._plan.enough is not None and best.rank[0] <= -self._plan.enough:
                break
            self._go_back(best)
            self._run_branches()
            self._score_finished()
        return self._best()

    def _part(self, steps: int) -> int:
        return int(round(self._plan.share * steps, 6))

    def _run_shared(self) -> None:
        slot = self._slots[0]
        branch = slot.branch
        if self.shared == 0:
            return
        running = self._crew.alone(branch.sampler)
        for event in running:
            self._tell(slot, event)
            self._keep(slot)
            if branch.stats is None and branch.steps >= self.shared and not _is_over(branch.sampler):
                break
        running.close()  # type: ignore[attr-defined]
        stats = branch.sampler.stats
        self.shared_rows, self.shared_passes = stats.rows, stats.forwards + stats.prefills

    def _fork(self) -> None:
        """The first branch goes on as it is. Where it ended before, the others leave its way at the same
        share of the steps that it took.
        """
        first, crew = self._slots[0].branch, self._crew
        at: Snapshot | None = None
        if first.stats is None:
            at = Snapshot.of(first, crew.first) if first.steps else self._start
        else:
            self.shared = self._part(first.steps)
            at = first.snapshots.at(self.shared) or self._start
        self.shared = at.steps
        if first.stats is None or self._plan.method != "back":
            first.snapshots = self._snapshots(at)
        if first.stats is None:
            crew.together.join(0, first.sampler, crew.first)
        for key in range(1, self._plan.branches):
            self._slots.append(Slot(crew.copy(), first))
            self._begin(key, first, at, same=first.stats is None)

    def _begin(self, key: int, parent: Branch, at: Snapshot, same: bool = False) -> None:
        """A new branch in a place, which leaves the way of another one."""
        slot, number = self._slots[key], len(self.branches)
        seed = (self._seed + number) & MOST_SEED
        kept = self._snapshots(at)
        sampler = at.resumed(slot.text, seed, same)
        slot.branch = Branch(number, seed, sampler, kept, parent.number, at.steps, parent.told[: at.told])
        self.branches.append(slot.branch)
        self._crew.together.join(key, sampler, slot.text)

    def _snapshots(self, at: Snapshot) -> Snapshots:
        """What is kept of a branch from its fork on."""
        kept = Snapshots(BRANCH_STATES if self._plan.method == "back" else 0)
        if self._plan.method == "back":
            kept.add(at)
        return kept

    def _run_branches(self) -> None:
        together, every = self._crew.together, self._every()
        look = self.shared + every
        while len(together):
            for key, event in together.step():
                if isinstance(event, Exception):
                    raise event
                self._tell(self._slots[key], event)
            # Now: a sampler is behind all that it has told.
            for slot in self._slots:
                self._keep(slot)
            self._crew.check()
            alive = [slot.branch for slot in self._slots if slot.branch.stats is None]
            if self._plan.method == "prune" and alive and min(b.steps for b in alive) >= look:
                look += every
                self._prune()

    def _every(self) -> int:
        if self._plan.every is not None:
            return self._plan.every
        ended = self._slots[0].branch
        steps = ended.steps if ended.stats is not None else self.total
        return max(1, (steps - self.shared) // 4)

    def _prune(self) -> None:
        alive = [key for key, slot in enumerate(self._slots) if slot.branch.stats is None]
        self._rate([self._slots[key].branch for key in alive], final=False)
        ranked = sorted(alive, key=lambda key: self._slots[key].branch.rank)
        half = len(ranked) // 2
        for good, bad in zip(ranked[:half], ranked[len(ranked) - half :], strict=True):
            parent, given_up = self._slots[good].branch, self._slots[bad].branch
            if given_up.score == parent.score:  # nothing speaks for the other one
                continue
            self._crew.together.leave(bad)
            given_up.pruned_at = given_up.steps
            given_up.forget_way()
            self._begin(bad, parent, Snapshot.of(parent, self._slots[good].text))

    def _go_back(self, best: Branch) -> None:
        behind = int((best.steps - self.shared) * (1 - self._plan.depth))
        # Where an answer ended within the shared steps, all states that are kept may lie behind that.
        at = best.snapshots.at(self.shared + behind) or self._start
        others = [key for key, slot in enumerate(self._slots) if slot.branch is not best]
        for key in others or range(len(self._slots)):  # of a single one, that
            self._begin(key, best, at)

    def _score_finished(self) -> None:
        self._rate([branch for branch in self._finished() if branch.score is None], final=True)
        best = self._best()
        for branch in self.branches:
            if branch is not best:
                branch.forget_way()

    def _rate(self, branches: Sequence[Branch], final: bool) -> None:
        for branch, score in zip(branches, self._score(branches, final), strict=True):
            branch.score = score

    def _finished(self) -> list[Branch]:
        return [branch for branch in self.branches if branch.stats is not None]

    def _best(self) -> Branch:
        return min(self._finished(), key=lambda branch: branch.rank)

    def _tell(self, slot: Slot, event: Event) -> None:
        branch = slot.branch
        if isinstance(event, Done):
            branch.stats, branch.score = event.stats, None  # one that it had was of a part
        branch.told.append((event, self._crew.bytes_read()))

    def _keep(self, slot: Slot) -> None:
        branch = slot.branch
        if branch.stats is None and branch.snapshots.wants(branch.steps):
            branch.snapshots.add(Snapshot.of(branch, slot.text))


def _is_over(sampler: CoreSampler) -> bool:
    """Whether no pass follows what a sampler has told."""
    copy = sampler.copy()
    while isinstance(ask := copy.next(), Tell | Crop):
        if isinstance(ask, Tell) and isinstance(ask.event, Done):
            return True
    return False
