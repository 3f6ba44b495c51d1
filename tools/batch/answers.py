"""From lines of the input to lines of the output, on whatever machine the model is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.api import Answer, Model
from edgekit.runtime.api.batch import Batch, BatchCosts, Request, opened_batch, request_of
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Lengths
from edgekit.tools.batch.lines import Entry, Line, WrongLine, entry_of
from edgekit.tools.request import Request as Given
from edgekit.tools.request import settings_of


@dataclass(frozen=True)
class Answered:
    """What a line of the output says of the line with this number and digest; `tokens` of the answer, None
    where there is an error in its place.
    """

    number: int
    digest: int
    members: Mapping[str, Any]
    tokens: int | None


@dataclass(frozen=True)
class Room:
    """What batches are opened for: the lengths of their requests, and how many these are, with so many
    `sequences` in each batch, None: what there is room for.
    """

    lengths: frozenset[Lengths]
    requests: int
    sequences: int | None


class Answers:
    """Answers lines with a model that is open, with token ids where `ids` says so."""

    def __init__(self, model: Model, generator: Generator, given: Given, *, ids: bool) -> None:
        self.generator, self.given, self.ids = generator, given, ids
        self._model = model

    def request(self, entry: Entry) -> Request:
        """What a line asks of the model. Raises EdgekitError for one that cannot be used."""
        if entry.error:
            raise WrongLine(entry.error)
        ids = self._model.encode(entry.prompt, system=self.given.system, raw=self.given.raw)
        return request_of(self.generator, ids, settings_of({**self.given.settings, **entry.settings}))

    def of_wrong(self, line: Line) -> Answered | None:
        """The answer of a line that cannot be used; None for others."""
        entry = entry_of(line)
        try:
            self.request(entry)
        except EdgekitError as error:
            return self._answered(line, entry, error)
        return None

    def run(
        self,
        batch: Batch,
        lines: Iterable[Line | None],
        put: Callable[[Answered], object],
        told: Callable[[], object],
    ) -> None:
        """Answer lines, which are taken as sequences become free, see `Batch.run`; each goes to `put` when it
        is done. `told` is called behind passes that denoise. Raises what a pass raises for all.
        """
        taken = dict[Hashable, tuple[Line, Entry]]()

        def requests() -> Iterator[tuple[Hashable, Request] | None]:
            for line in lines:
                if line is None:
                    yield None
                    continue
                entry = entry_of(line)
                try:
                    request = self.request(entry)
                except EdgekitError as error:
                    put(self._answered(line, entry, error))
                    continue
                taken[line.number] = line, entry
                yield line.number, request

        for key, found in batch.run(requests(), told):
            put(self._answered(*taken.pop(key), found))

    def _answered(self, line: Line, entry: Entry, found: Answer | EdgekitError) -> Answered:
        tokens = found.statistics.tokens if isinstance(found, Answer) else None
        return Answered(line.number, line.digest, self._members(entry, found), tokens)

    def _members(self, entry: Entry, found: Answer | EdgekitError) -> Mapping[str, Any]:
        """What the line of an answer, or of an error, says."""
        if not isinstance(found, Answer):
            return {"id": entry.id, "error": str(found)}
        statistics = found.statistics
        seed = {**self.given.settings, **entry.settings}.get("seed")
        return {
            "id": entry.id,
            "text": found.text,
            **({"token_ids": list(found.ids)} if self.ids else {}),
            "finish_reason": statistics.finish_reason,
            "seed": 0 if seed is None else seed,
            "statistics": {
                name: getattr(statistics, name)
                for name in ("prompt_tokens", "tokens", "steps", "forwards", "rows", "seconds")
            },
        }


class Here:
    """Answers in this process: what a `tools/batch/on_cluster.py` `Workers` does on several machines."""

    workers = 1

    def __init__(self, batch: Batch, answers: Answers) -> None:
        self._batch, self._answers = batch, answers

    @property
    def sequences(self) -> int:
        """How many answers are at work at a time."""
        return self._batch.sequences

    @property
    def costs(self) -> BatchCosts:
        """Until now."""
        return self._batch.costs

    def run(
        self, lines: Iterator[Line], put: Callable[[Answered], object], told: Callable[[], object]
    ) -> None:
        """See `Answers.run`."""
        self._answers.run(self._batch, lines, put, told)


@contextmanager
def opened_here(answers: Answers, room: Room) -> Iterator[Here]:
    """Raises BudgetExceeded, and what opening a session raises."""
    with opened_batch(answers.generator, room.lengths, room.sequences, room.requests) as batch:
        yield Here(batch, answers)
