"""Does what is left of jobs on the nodes of a Ray cluster: a job at a time on each, which is alone there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgekit.tools.cluster.connection import Call, Cluster, ClusterUnusable, Node, Worker, WorkerLost
from edgekit.tools.console import Steps
from edgekit.tools.sweep.store import DONE, FAILED, UNITS, Outcome, Store, left
from edgekit.tools.sweep.units import Job, Unit
from edgekit.tools.sweep.work import keep, perform

#: Workers that a job may lose before its unit has failed: it may be what ends them.
_MOST_LOST = 3
#: Seconds between two looks at Ctrl-C.
_LOOK_S = 0.5
#: File by which nodes know a folder that they share.
_TOKEN = "shared"

#: What became of a unit on a node, which is named by its place among those of its job.
Done = tuple[int, Outcome]


@dataclass(frozen=True)
class Where:
    """Where the machine that asks has its files; `token` is in the folder of the sweep."""

    folder: str
    working_folder: str
    token: str


class NodeWorker:
    """Does the units of one job after another, in a process on a node."""

    def __init__(self) -> None:
        self._work: Iterator[Done] = iter(())

    def begin(self, where: Where, job: Job, known: Sequence[Outcome | None]) -> bool:
        """Take a job, of whose units this is known; whether the folder is that of the machine that asks."""
        with suppress(OSError):  # a node without it has files of absolute paths alone
            os.chdir(where.working_folder)
        store = Store(Path(where.folder))
        units = store.folder / UNITS
        units.mkdir(parents=True, exist_ok=True)
        for unit, outcome in zip(job.units, known, strict=True):
            own = store.outcome(unit)
            # What is known of a bundle elsewhere says nothing about one that was begun here.
            if outcome is not None and (own is None or (unit is not job.export and not store.is_done(unit))):
                store.put(unit, outcome)
        self._work = self._done(job, store)
        with suppress(OSError):
            return (units / _TOKEN).read_text() == where.token
        return False

    def step(self) -> Done | None:
        """Do the next unit; None at the end of the job."""
        return next(self._work, None)

    def _done(self, job: Job, store: Store) -> Iterator[Done]:
        with Steps("", quiet=True) as steps:
            for unit, outcome in perform(job, store, steps):
                yield job.units.index(unit), outcome


class _Place:
    """A node with its worker and the job that it has."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.job: Job | None = None
        self.calls = list[Call]()


def work_on(
    cluster: Cluster, jobs: Sequence[Job], store: Store, steps: Steps
) -> Iterator[tuple[Unit, Outcome]]:
    """Do what is left of all jobs. A job of a node that is lost goes on at another one; what became of a unit
    is in the store by then. Raises ClusterUnusable, also where no node is left.
    """
    waiting = [job for job in jobs if left(job, store)]
    if not waiting:
        return
    steps.stage("looking at the nodes", 0)
    nodes = cluster.examine(lambda: steps.advance(0, ""))[: len(waiting)]
    token = uuid.uuid4().hex
    (store.folder / UNITS / _TOKEN).write_text(token)
    try:
        yield from _Work(cluster, waiting, store, steps, token).done(nodes)
    finally:
        (store.folder / UNITS / _TOKEN).unlink(missing_ok=True)


class _Work:
    def __init__(self, cluster: Cluster, waiting: list[Job], store: Store, steps: Steps, token: str) -> None:
        self._cluster, self._waiting, self._store, self._steps = cluster, waiting, store, steps
        self._where = Where(str(store.folder.resolve()), os.getcwd(), token)
        self._lost = dict[str, int]()
        self._apart = set[str]()

    def done(self, nodes: Sequence[Node]) -> Iterator[tuple[Unit, Outcome]]:
        places = [_Place(self._started(node)) for node in nodes]
        self._steps.stage("sweeping", sum(len(left(job, self._store)) for job in self._waiting))
        while self._waiting or any(place.job for place in places):
            for place in places:
                if place.job is None and self._waiting:
                    self._take(place)
            calls = [place.calls[0] for place in places if place.job]
            ready = self._cluster.wait(calls, _LOOK_S)
            self._steps.advance(0, "")
            for place in [place for place in places if place.calls and place.calls[0] in ready]:
                call = place.calls.pop(0)
                try:
                    found = self._cluster.result(call)
                except WorkerLost as error:
                    yield from self._give_back(place, str(error))
                    places.remove(place)
                    if (node := self._still_there(place.worker.node)) is not None:
                        places.append(_Place(self._started(node)))
                    continue
                if place.calls:
                    self._begun(place.worker.node, shares=found)
                    continue
                if found is None:
                    place.job = None
                    continue
                yield self._kept(place, *found)
                place.calls = [place.worker.call("step")]
            if not places and self._waiting:
                raise ClusterUnusable(
                    f"no node of the Ray cluster at {self._cluster.address} is left; start one, and the same "
                    "command goes on"
                )

    def _started(self, node: Node) -> Worker:
        """A worker that has all of the node: nothing else of Ray runs beside it."""
        return self._cluster.start(NodeWorker, node, cpus=node.cpus, gpus=node.gpus)

    def _take(self, place: _Place) -> None:
        """Give a node a job, one whose bundle it has before others."""
        name = place.worker.node.name

        def elsewhere(job: Job) -> bool:
            return ((self._store.outcome(job.export) or {}).get("node") or name) != name

        job = place.job = min(self._waiting, key=elsewhere)
        self._waiting.remove(job)
        self._steps.note(f"{name}: {job.export.bundle}")
        known = [self._store.outcome(unit) for unit in job.units]
        place.calls = [place.worker.call("begin", self._where, job, known), place.worker.call("step")]

    def _begun(self, node: Node, *, shares: bool) -> None:
        if not shares and node.id not in self._apart:
            self._apart.add(node.id)
            self._steps.note(
                f"{node.name} has a folder {self._where.folder} of its own: bundles stay where they are "
                "made, reports come here"
            )

    def _kept(self, place: _Place, number: int, outcome: Outcome) -> tuple[Unit, Outcome]:
        assert place.job is not None, "it has told of one"
        unit, name = place.job.units[number], place.worker.node.name
        outcome = {**outcome, "node": name}
        keep(place.job, unit, outcome, self._store)
        said = outcome["error"] if outcome["state"] != DONE else f"done in {outcome['seconds']:.1f} s"
        self._steps.note(f"{name}: {unit.title}: {said}")
        self._steps.advance(1, unit.title)
        return unit, outcome

    def _give_back(self, place: _Place, why: str) -> Iterator[tuple[Unit, Outcome]]:
        """Have the job of a worker that has ended done by another one, unless it has ended several."""
        job = place.job
        assert job is not None, "it was asked for something"
        place.job, place.calls = None, []
        count = self._lost[job.export.digest] = self._lost.get(job.export.digest, 0) + 1
        if count < _MOST_LOST:
            self._steps.note(f"{why}; {job.export.bundle} goes on at another one")
            self._waiting.insert(0, job)
            return
        unit = left(job, self._store)[0]
        outcome = {"state": FAILED, "error": f"{count} workers have ended while it was done; {why}"}
        self._store.put(unit, outcome)
        yield unit, outcome

    def _still_there(self, lost: Node) -> Node | None:
        return next((node for node in self._cluster.nodes() if node.id == lost.id), None)
