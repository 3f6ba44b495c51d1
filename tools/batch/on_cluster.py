"""Answers on several machines: a worker on each node of a Ray cluster that has CPUs. Each opens the bundle
and plans its own memory; this process reads the input, deals out lines, and writes what comes back.

A worker is given as many lines beyond those at work that its sequences never wait for the next exchange, and
fewer the fewer are left, so that all end at about the same time. What it has not answered when it is lost
goes to the others, and to another worker on its node if that is still there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.api.batch import BatchCosts
from edgekit.runtime.engine_registry import running
from edgekit.runtime.hub.bundles import is_on_hub
from edgekit.tools.batch.answers import Answered, Answers, Room
from edgekit.tools.batch.lines import Line
from edgekit.tools.batch.node_worker import Exchanged, NodeWorker, Opening, Refusal
from edgekit.tools.cluster.connection import Call, Cluster, Node, Worker, WorkerLost, connected
from edgekit.tools.console import Steps
from edgekit.tools.terminal_text import counted

#: Workers that may be lost with the same line before that one is taken to be the reason.
_MOST_LOST = 3
#: Seconds that a call is waited for before the display moves and Ctrl-C is looked for.
_POLL_S = 0.5
#: Seconds for the other nodes once one has opened the bundle, and until a note says that one has not.
_OTHERS_S, _LATE_S = 10.0, 20.0
#: Seconds between two looks for nodes that have joined.
_JOINED_S = 10.0


class WorkersLost(EdgekitError):
    """Nobody is left to answer, or whoever gets a line does not live long."""


@dataclass(eq=False)
class _Member:
    """A worker with the lines that it has not answered, by number; `sequences` is 0 until it is open."""

    worker: Worker
    call: Call
    joined: bool
    sequences: int = 0
    lines: dict[int, Line] = field(default_factory=dict)
    costs: BatchCosts = BatchCosts(0, 0, 0, 0.0)
    busy: bool = True  # `call` is under way


class NodeWorkers:
    """Workers on nodes; `opened_on` makes it."""

    def __init__(
        self, cluster: Cluster, opening: Opening, steps: Steps, requests: int, *, gpus: bool
    ) -> None:
        """Each worker has the CPUs of its node, or as many as it has threads, and with `gpus` its GPUs."""
        self._cluster, self._opening, self._steps, self._gpus = cluster, opening, steps, gpus
        self._members = list[_Member]()
        self._begun = self._looked = self._open_begun = time.perf_counter()
        self._lost_costs = BatchCosts(0, 0, 0, 0.0)
        self._lost = dict[int, int]()  # how many workers, by number of the line
        self._known = set[str]()  # nodes that have been tried
        self._late = False  # it has been noted
        self._reason = ""
        self._requests = requests
        self.workers = self.sequences = 0  # the most at a time

    # --- opening --------------------------------------------------------------------------------------------

    def open(self, nodes: list[Node]) -> None:
        """Start a worker on each node, and wait until one is open and the others are, or take long.

        Raises EdgekitError with the name of a node where the bundle cannot be opened.
        """
        for node in nodes:
            self._start(node, joined=False)
        first: float | None = None
        while any(not each.sequences for each in self._members):
            for member in self._done():
                self._take(member, lambda answered: None)
            self._check_any()
            if first is None and self.workers:
                first = time.perf_counter()
            if first is not None and time.perf_counter() > first + _OTHERS_S:
                break
            self._steps.advance(0, "")
            self._note_late()
        self._begun = time.perf_counter()

    def _start(self, node: Node, *, joined: bool) -> None:
        cpus = min(self._opening.request.threads or node.cpus, node.cpus)
        worker = self._cluster.start(NodeWorker, node, cpus=cpus, gpus=node.gpus if self._gpus else 0)
        self._known.add(node.id)
        self._members.append(_Member(worker, worker.call("open", self._opening), joined))

    def _note_late(self) -> None:
        if self._late or time.perf_counter() < self._open_begun + _LATE_S:
            return
        self._late = True
        names = ", ".join(each.worker.node.name for each in self._members if not each.sequences)
        if names:
            self._steps.note(
                f"note: {names} not ready yet: the CPUs are in use by others, or the bundle is still opened"
            )

    # --- answering ------------------------------------------------------------------------------------------

    @property
    def costs(self) -> BatchCosts:
        """Sums over all workers; seconds of this process."""
        every = [self._lost_costs, *(each.costs for each in self._members)]
        return BatchCosts(
            sum(each.passes for each in every),
            sum(each.rows for each in every),
            sum(each.bytes_read for each in every),
            time.perf_counter() - self._begun,
        )

    def run(
        self, lines: Iterator[Line], put: Callable[[Answered], object], told: Callable[[], object]
    ) -> None:
        """Answer all lines. Raises WorkersLost, and EdgekitError with the name of a node for what goes wrong
        there for all.
        """
        again = deque[Line]()
        left = self._requests
        given: Line | None = next(lines, None)
        while True:
            for member in [each for each in self._members if each.sequences and not each.busy]:
                ahead = min(member.sequences, left // (2 * max(1, self._open())))
                new = list[Line]()
                while (again or given is not None) and len(member.lines) < member.sequences + ahead:
                    if again:
                        line = again.popleft()
                    else:
                        assert given is not None, "one of them is there"
                        line, given = given, next(lines, None)
                        left = max(0, left - 1)
                    member.lines[line.number] = line
                    new.append(line)
                if member.lines:
                    member.call, member.busy = member.worker.call("exchange", new), True
            if given is None and not again and not any(each.lines for each in self._members):
                return
            for member in self._done():
                again.extend(self._take(member, put))
            self._check_any()
            self._look_for_joined()
            self._note_late()
            told()

    def _open(self) -> int:
        return sum(bool(each.sequences) for each in self._members)

    def _done(self) -> list[_Member]:
        """Members whose call is."""
        under_way = {id(each.call): each for each in self._members if each.busy}
        return [
            under_way[id(call)]
            for call in self._cluster.wait([each.call for each in under_way.values()], _POLL_S)
        ]

    def _take(self, member: _Member, put: Callable[[Answered], object]) -> list[Line]:
        """What a call has come to. The lines that are to be done again, of a worker that is lost."""
        member.busy = False
        try:
            found = self._cluster.result(member.call)
        except WorkerLost as error:
            return self._lose(member, error)
        if isinstance(found, Refusal):
            return self._refused(member, found)
        if not isinstance(found, Exchanged):
            member.sequences = found
            self.workers = max(self.workers, self._open())
            self.sequences = max(self.sequences, sum(each.sequences for each in self._members))
            return []
        member.costs = found.costs
        for answered in found.answers:
            del member.lines[answered.number]
            put(answered)
        return []

    def _refused(self, member: _Member, refusal: Refusal) -> list[Line]:
        said = f"node {member.worker.node.name}: {refusal.text}"
        if member.joined and not member.sequences:
            self._members.remove(member)
            self._cluster.end(member.worker)
            self._steps.note(f"note: not used, {said}")
            return []
        if refusal.needed_bytes is not None:
            raise BudgetExceeded(said, refusal.needed_bytes)
        raise EdgekitError(said)

    def _lose(self, member: _Member, error: WorkerLost) -> list[Line]:
        """Raises WorkersLost for a line that has been there each time."""
        self._members.remove(member)
        self._cluster.end(member.worker)
        cost, lost = member.costs, self._lost_costs
        self._lost_costs = BatchCosts(
            lost.passes + cost.passes, lost.rows + cost.rows, lost.bytes_read + cost.bytes_read, 0.0
        )
        self._reason = str(error)
        if member.sequences or not member.joined:
            self._steps.note(f"note: {error}; {counted(len(member.lines), 'line')} to be done again")
        for number in member.lines:
            self._lost[number] = self._lost.get(number, 0) + 1
            if self._lost[number] == _MOST_LOST:
                raise WorkersLost(
                    f"line {number}: {_MOST_LOST} workers ended while they had it; the last: {error}; "
                    "look at the memory there, give less --memory or --sequences, or take the line out"
                )
        # Once more on the same node: one that is gone as well is found out by that.
        if member.sequences and any(each.id == member.worker.node.id for each in self._cluster.nodes()):
            self._start(member.worker.node, joined=True)
        return list(member.lines.values())

    def _check_any(self) -> None:
        if not self._members:
            raise WorkersLost(f"no worker is left ({self._reason}); the same command goes on with the others")

    def _look_for_joined(self) -> None:
        if time.perf_counter() < self._looked + _JOINED_S:
            return
        self._looked = time.perf_counter()
        for node in self._cluster.nodes():
            if node.id not in self._known:
                self._steps.note(f"note: node {node.name} has joined")
                self._start(node, joined=True)


@contextmanager
def opened_on(address: str, bundle: str, steps: Steps, answers: Answers, room: Room) -> Iterator[NodeWorkers]:
    """Workers on all nodes of the Ray cluster at an address. `bundle` is opened by that name on each.

    Raises ClusterUnusable where there is no cluster, or a node without this edgekit, EdgekitError for one
    that cannot open the bundle, or has another one of that name.
    """
    steps.stage("connecting", 0)
    with connected(address) as cluster:
        steps.stage("looking at the nodes", 0)
        nodes = cluster.examine(lambda: steps.advance(0, ""))
        steps.stage(f"opening the model on {counted(len(nodes), 'node')}", 0)
        found, given = answers.generator.bundle, answers.given
        name = bundle if is_on_hub(bundle) else os.path.abspath(bundle)
        own = Room(room.lengths, -(-room.requests // len(nodes)), room.sequences)
        opening = Opening(name, found.digest, given, answers.ids, own)
        row = running(found.manifest.format, given.engine)
        workers = NodeWorkers(
            cluster, opening, steps, room.requests, gpus=row is not None and row.name != "native"
        )
        workers.open(nodes)
        yield workers
