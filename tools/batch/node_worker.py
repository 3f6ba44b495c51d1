"""What answers lines on a node of a cluster: a batch of its own, which lines come to while it runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.api.batch import BatchCosts, opened_batch
from edgekit.tools.batch.answers import Answered, Answers, Room
from edgekit.tools.batch.lines import Line
from edgekit.tools.request import Request, opened

#: Seconds that an exchange waits for an answer.
_WAIT_S = 0.5


@dataclass(frozen=True)
class Opening:
    """What a worker opens: a bundle by the name that its digest goes with, and the room of its batch."""

    bundle: str
    digest: str
    request: Request
    ids: bool
    room: Room


@dataclass(frozen=True)
class Refusal:
    """Why a worker cannot go on, in words for people; `needed_bytes` where a budget is too small."""

    text: str
    needed_bytes: int | None = None


@dataclass(frozen=True)
class Exchanged:
    """Answers since the last exchange, and what all passes have cost until the last of them."""

    answers: list[Answered]
    costs: BatchCosts


class NodeWorker:
    """Answers in a thread of its own, so that its passes go on while answers are handed over."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[int | Answered | Refusal | Exception] = queue.SimpleQueue()
        self._costs = BatchCosts(0, 0, 0, 0.0)

    def open(self, opening: Opening) -> int | Refusal:
        """How many sequences share a pass."""
        threading.Thread(target=self._work, args=(opening,), name="edgekit batch", daemon=True).start()
        told = self._told.get()
        if isinstance(told, Exception):
            raise told
        assert not isinstance(told, Answered), "nothing was asked"
        return told

    def exchange(self, lines: Sequence[Line]) -> Exchanged | Refusal:
        """Hand over lines, and wait a moment for answers; none where there are none yet."""
        for line in lines:
            self._lines.put(line)
        answers = list[Answered]()
        wait_s = _WAIT_S
        while True:
            try:
                told = self._told.get(timeout=wait_s) if wait_s else self._told.get_nowait()
            except queue.Empty:
                return Exchanged(answers, self._costs)
            wait_s = 0.0
            if isinstance(told, Refusal):
                return told
            if isinstance(told, Exception):
                raise told
            assert isinstance(told, Answered), "it was opened before"
            answers.append(told)

    def _work(self, opening: Opening) -> None:
        try:
            self._answer(opening)
        except BudgetExceeded as error:
            self._told.put(Refusal(str(error), error.needed_bytes))
        except click.ClickException as error:
            self._told.put(Refusal(error.format_message()))
        except EdgekitError as error:
            self._told.put(Refusal(str(error)))
        except OSError as error:
            self._told.put(Refusal(f"{error.filename or opening.bundle}: {error.strerror or error}"))
        except Exception as error:
            self._told.put(error)

    def _answer(self, opening: Opening) -> None:
        room = opening.room
        with opened(opening.bundle, opening.request, quiet=True) as (model, generator):
            if generator.bundle.digest != opening.digest:
                raise EdgekitError(
                    f"{opening.bundle} is another bundle there (digest {generator.bundle.digest[:12]}, here "
                    f"{opening.digest[:12]}); copy it anew"
                )
            answers = Answers(model, generator, opening.request, ids=opening.ids)
            with opened_batch(generator, room.lengths, room.sequences, room.requests) as batch:
                self._told.put(batch.sequences)

                def put(answered: Answered) -> None:
                    self._costs = batch.costs
                    self._told.put(answered)

                while True:
                    answers.run(batch, self._given(), put, lambda: None)

    def _given(self) -> Iterator[Line | None]:
        """Lines as they come, None for none at the moment; waits for the first."""
        yield self._lines.get()
        while True:
            try:
                yield self._lines.get_nowait()
            except queue.Empty:
                yield None
