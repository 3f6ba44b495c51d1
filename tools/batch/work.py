"""A batch from its input to its output: every line is checked first, then those that are not answered are."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import xxhash

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.api import Model
from edgekit.runtime.api.batch import BatchCosts
from edgekit.runtime.engine_registry import running
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Lengths
from edgekit.tools.batch.answers import Answered, Answers, Room, opened_here
from edgekit.tools.batch.lines import Entry, Input, Line, entry_of
from edgekit.tools.batch.output import Output
from edgekit.tools.console import Steps
from edgekit.tools.request import Request as Given
from edgekit.tools.terminal_text import counted, shortened

#: Raised where the meaning of a line changes: outputs of before are not gone on with.
_VERSION = 1
#: Bytes of the input between two movements of the bar.
_SHOWN_BYTES = 1 << 16
#: Lines that cannot be used of which the reason is told, and letters of it.
_MOST_REASONS, _REASON_LETTERS = 3, 300


class OtherInput(EdgekitError):
    """The input is not what it was when it was looked through, or it names two lines alike."""


def run_digest(generator: Generator, given: Given, ids: bool) -> str:
    """Equal for equal bundles, engines and settings: what the answers of two equal lines hang on."""
    bundle = generator.bundle
    row = running(bundle.manifest.format, given.engine)
    told = {
        "version": _VERSION,
        "bundle": bundle.digest,
        "adapter": given.adapter,
        "engine": bundle.manifest.format if row is None else row.name,
        "system": given.system,
        "raw": given.raw,
        "settings": dict(given.settings),
        "ids": ids,
    }
    return xxhash.xxh3_64_hexdigest(json.dumps(told, sort_keys=True).encode())


@dataclass
class Survey:
    """What the input holds: a digest for each line, lengths of the requests that are to be answered, how many
    these are, how many lines ask for nothing, and of the first of these why, by number.
    """

    digests: array[int] = field(default_factory=lambda: array("Q"))
    lengths: set[Lengths] = field(default_factory=set)
    requests: int = 0
    wrong: int = 0
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """How a batch ended: lines of the input, those that were `there` before, those that have an error; the
    tokens of what was answered now, how many `sequences` were at work at a time, what the passes cost, and
    how many `workers` ran them. Without anything to answer there were none.
    """

    lines: int
    there: int
    errors: int
    answers: int = 0
    tokens: int = 0
    sequences: int = 0
    costs: BatchCosts = BatchCosts(0, 0, 0, 0.0)
    workers: int = 0

    def as_dict(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "lines": self.lines,
            "there": self.there,
            "errors": self.errors,
            "answers": self.answers,
            "tokens": self.tokens,
            "sequences": self.sequences,
            "workers": self.workers,
            "seconds": costs.seconds,
            "tokens_per_second": self.tokens / costs.seconds if costs.seconds else 0.0,
            "passes": costs.passes,
            "rows_per_pass": costs.rows / costs.passes if costs.passes else 0.0,
            "bytes_read": costs.bytes_read,
            "bytes_read_per_answer": costs.bytes_read / self.answers if self.answers else 0.0,
        }

    def __str__(self) -> str:
        if not self.sequences:
            were = "was" if self.there == 1 else "were"
            return f"nothing to answer: {self.there} of {counted(self.lines, 'line')} {were} answered before"
        told = self.as_dict()
        where = f" on {self.workers} nodes" if self.workers > 1 else ""
        read = "all weights in memory"
        if self.costs.bytes_read:
            read = f"{size(round(told['bytes_read_per_answer']))} read per answer"
        return (
            f"{counted(self.answers, 'answer')} in {self.costs.seconds:.1f} s, "
            f"{self.sequences} at a time{where}: {told['tokens_per_second']:.1f} tokens/s, "
            f"{counted(self.costs.passes, 'pass')} of {told['rows_per_pass']:.0f} rows, {read}"
        )


class Workers(Protocol):
    """What answers lines: in this process or elsewhere, `sequences` at a time by so many `workers`."""

    @property
    def workers(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def costs(self) -> BatchCosts: ...
    def run(
        self, lines: Iterator[Line], put: Callable[[Answered], object], told: Callable[[], object]
    ) -> None:
        """Answer all lines; each goes to `put` when it is done, `told` is called now and then."""


#: Opens them for the requests of a batch.
Opened = Callable[[Answers, Room], AbstractContextManager[Workers]]


class Work:
    """The lines of an input that are to be answered, and the output that they go to."""

    def __init__(
        self, model: Model, generator: Generator, given: Given, source: Input, output: Output, *, ids: bool
    ) -> None:
        self._answers = Answers(model, generator, given, ids=ids)
        self._source, self._output = source, output
        self.survey = Survey()

    def look(self, steps: Steps) -> None:
        """Look through the input. Raises OtherInput for an empty one and for an id that two lines have,
        OtherOutput where the output answers something else.
        """
        steps.stage("reading the prompts", self._source.bytes)
        survey, ids, shown = self.survey, dict[str | int, int](), 0
        for line in self._source.lines():
            entry = entry_of(line)
            if entry.id is not None and (first := ids.setdefault(entry.id, line.number)) != line.number:
                raise OtherInput(
                    f"{self._source.path}: lines {first} and {line.number} have the same id, "
                    f"{json.dumps(entry.id)[:80]}; give each its own, or none"
                )
            self._output.check(line.number, line.digest)
            survey.digests.append(line.digest)
            if not self._output.has(line.number):
                self._look_at(line.number, entry)
            shown += len(line.data or b"") + 1
            if shown >= _SHOWN_BYTES:
                steps.advance(shown, counted(line.number, "line"))
                shown = 0
        if not survey.digests:
            raise OtherInput(f"{self._source.path}: there is no line in it; write a prompt on each")
        self._output.check_end(len(survey.digests))

    def _look_at(self, number: int, entry: Entry) -> None:
        try:
            self.survey.lengths.add(self._answers.request(entry).sampler.lengths)
        except EdgekitError as error:
            self.survey.wrong += 1  # which it is asked for once more when its turn comes
            if len(self.survey.reasons) < _MOST_REASONS:
                self.survey.reasons[number] = str(error)
        else:
            self.survey.requests += 1

    def answer(self, steps: Steps, sequences: int | None, opened: Opened = opened_here) -> Summary:
        """Answer what is not answered, `sequences` at a time; None: as many as there is room for. `opened`
        says where.

        Raises BudgetExceeded, WriteFailed, OtherInput where the input has changed, what a pass raises, and
        what `opened` does.
        """
        survey, output, total = self.survey, self._output, len(self.survey.digests)
        there = output.there
        if there and there < total:
            steps.note(f"going on: {there} of {total} answers are there")
        if output.again:
            steps.note(f"note: answering again {counted(output.again, 'changed line')} that had an error")
        self._tell_wrong(steps)
        if not survey.requests:
            output.begin()
            for line in self._left():
                answered = self._answers.of_wrong(line)
                assert answered is not None, "it was of no use before"
                output.put(answered.number, answered.digest, answered.members)
                steps.advance(1, "")
            return Summary(total, there, output.errors)
        steps.stage("opening the model", 0)
        room = Room(frozenset(survey.lengths), survey.requests, sequences)
        with opened(self._answers, room) as workers:
            output.begin()
            where = f" on {workers.workers} nodes" if workers.workers > 1 else ""
            steps.stage(f"answering, {workers.sequences} at a time{where}", total)
            steps.advance(output.there, "")
            return self._answer(workers, steps, there)

    def _tell_wrong(self, steps: Steps) -> None:
        survey = self.survey
        if not survey.wrong:
            return
        gets = "it gets" if survey.wrong == 1 else "they get"
        found = counted(survey.wrong, "line")
        steps.note(f"note: {found} cannot be used; {gets} an error in place of an answer")
        for number, reason in survey.reasons.items():
            steps.note(shortened(f"line {number}: {reason}", _REASON_LETTERS))
        if more := survey.wrong - len(survey.reasons):
            steps.note(f"and {more} more; {self._output.path} has every error")

    def _answer(self, workers: Workers, steps: Steps, there: int) -> Summary:
        output = self._output
        answers = tokens = 0

        def put(answered: Answered) -> None:
            nonlocal answers, tokens
            output.put(answered.number, answered.digest, answered.members)
            if answered.tokens is not None:
                answers, tokens = answers + 1, tokens + answered.tokens
            steps.advance(1, "")

        def told() -> None:
            costs = workers.costs
            read = f", {size(costs.bytes_read // answers)} read per answer" if answers else ""
            steps.advance(0, f"{tokens / costs.seconds:.1f} tokens/s{read if costs.bytes_read else ''}")

        workers.run(self._left(), put, told)
        return Summary(
            len(self.survey.digests), there, output.errors, answers, tokens, workers.sequences, workers.costs,
            workers.workers,
        )  # fmt: skip

    def _left(self) -> Iterator[Line]:
        """Lines that are not answered."""
        return (line for line in self._lines() if not self._output.has(line.number))

    def _lines(self) -> Iterator[Line]:
        """The lines of the input once more. Raises OtherInput where one has changed."""
        digests = self.survey.digests
        for number, (line, digest) in enumerate(zip(self._source.lines(), digests, strict=False), 1):
            if line.digest != digest:
                raise OtherInput(f"{self._source.path}: line {number} was changed meanwhile; begin again")
            yield line
            if number == len(digests):
                return
        raise OtherInput(f"{self._source.path}: was shortened meanwhile; begin again")
