"""A batch from its input to its output: every line is checked first, then those that are not answered are."""

from __future__ import annotations

import json
from array import array
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.api import Answer, Model
from edgekit.runtime.api.batch import (
    Batch,
    BatchCosts,
    Request,
    opened_batch,
    request_of,
)
from edgekit.runtime.engine_registry import running
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Lengths
from edgekit.tools.batch.lines import Entry, Input, Line, WrongLine, entry_of
from edgekit.tools.batch.output import Output
from edgekit.tools.console import Steps
from edgekit.tools.request import Request as Given
from edgekit.tools.request import settings_of
from edgekit.tools.terminal_text import counted

#: Raised where the meaning of a line changes: outputs of before are not gone on with.
_VERSION = 1
#: Bytes of the input between two movements of the bar.
_SHOWN_BYTES = 1 << 16


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
    these are, and how many lines ask for nothing.
    """

    digests: array[int] = field(default_factory=lambda: array("Q"))
    lengths: set[Lengths] = field(default_factory=set)
    requests: int = 0
    wrong: int = 0


@dataclass(frozen=True)
class Summary:
    """How a batch ended: lines of the input, those that were `there` before, those that have an error; the
    tokens of what was answered now, how many `sequences` shared a pass, and what the passes cost. Without
    anything to answer there were none.
    """

    lines: int
    there: int
    errors: int
    answers: int = 0
    tokens: int = 0
    sequences: int = 0
    costs: BatchCosts = BatchCosts(0, 0, 0, 0.0)

    def as_dict(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "lines": self.lines,
            "there": self.there,
            "errors": self.errors,
            "answers": self.answers,
            "tokens": self.tokens,
            "sequences": self.sequences,
            "seconds": costs.seconds,
            "tokens_per_second": self.tokens / costs.seconds if costs.seconds else 0.0,
            "passes": costs.passes,
            "rows_per_pass": costs.rows / costs.passes if costs.passes else 0.0,
            "bytes_read": costs.bytes_read,
            "bytes_read_per_answer": costs.bytes_read / self.answers if self.answers else 0.0,
        }

    def __str__(self) -> str:
        if not self.sequences:
            return f"nothing to answer: {self.there} of {counted(self.lines, 'line')} had been answered"
        told = self.as_dict()
        read = "all weights in memory"
        if self.costs.bytes_read:
            read = f"{size(round(told['bytes_read_per_answer']))} read per answer"
        return (
            f"{counted(self.answers, 'answer')} in {self.costs.seconds:.1f} s, {self.sequences} at a time: "
            f"{told['tokens_per_second']:.1f} tokens/s, {counted(self.costs.passes, 'pass')} of "
            f"{told['rows_per_pass']:.0f} rows, {read}"
        )


class Work:
    """The lines of an input that are to be answered, and the output that they go to."""

    def __init__(
        self, model: Model, generator: Generator, given: Given, source: Input, output: Output, *, ids: bool
    ) -> None:
        self._model, self._generator, self._given, self._ids = model, generator, given, ids
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
                self._look_at(entry)
            shown += len(line.data or b"") + 1
            if shown >= _SHOWN_BYTES:
                steps.advance(shown, counted(line.number, "line"))
                shown = 0
        if not survey.digests:
            raise OtherInput(f"{self._source.path}: there is no line in it; write a prompt on each")
        self._output.check_end(len(survey.digests))

    def _look_at(self, entry: Entry) -> None:
        try:
            self.survey.lengths.add(self._request(entry).sampler.lengths)
        except EdgekitError:
            self.survey.wrong += 1  # which it is asked for once more when its turn comes
        else:
            self.survey.requests += 1

    def _request(self, entry: Entry) -> Request:
        if entry.error:
            raise WrongLine(entry.error)
        given = self._given
        ids = self._model.encode(entry.prompt, system=given.system, raw=given.raw)
        return request_of(self._generator, ids, settings_of({**given.settings, **entry.settings}))

    def answer(self, steps: Steps, sequences: int | None) -> Summary:
        """Answer what is not answered, `sequences` at a time; None: as many as there is room for.

        Raises BudgetExceeded, WriteFailed, OtherInput where the input has changed, and what a pass raises.
        """
        survey, output, total = self.survey, self._output, len(self.survey.digests)
        there = output.there
        if there and there < total:
            steps.note(f"going on: {there} of {total} answers are there")
        if survey.wrong:
            ones = "it gets an error in place of an answer"
            more = "they get an error in place of an answer"
            found = counted(survey.wrong, "line")
            steps.note(f"note: {found} cannot be used; {ones if survey.wrong == 1 else more}")
        if not survey.requests:
            output.begin()
            left = list(self._left(steps))
            assert not left, "they were of no use before"
            return Summary(total, there, output.errors)
        steps.stage("opening the model", 0)
        with opened_batch(self._generator, survey.lengths, sequences, survey.requests) as batch:
            output.begin()
            steps.stage(f"answering, {batch.sequences} at a time", total)
            steps.advance(output.there, "")
            return self._answer(batch, steps, there)

    def _answer(self, batch: Batch, steps: Steps, there: int) -> Summary:
        output, survey = self._output, self.survey
        answers = tokens = 0
        taken = dict[Hashable, tuple[Entry, int]]()

        def requests() -> Iterator[tuple[Hashable, Request]]:
            for number, (entry, digest, request) in self._left(steps):
                taken[number] = entry, digest
                yield number, request

        def told() -> None:
            costs = batch.costs
            read = f", {size(costs.bytes_read // answers)} read per answer" if answers else ""
            steps.advance(0, f"{tokens / costs.seconds:.1f} tokens/s{read if costs.bytes_read else ''}")

        for key, found in batch.run(requests(), told):
            assert isinstance(key, int), "they are numbers of lines"
            entry, digest = taken.pop(key)
            output.put(key, digest, self._members(entry, found))
            if isinstance(found, Answer):
                answers, tokens = answers + 1, tokens + found.statistics.tokens
            steps.advance(1, "")
        return Summary(
            len(survey.digests), there, output.errors, answers, tokens, batch.sequences, batch.costs
        )

    def _left(self, steps: Steps) -> Iterator[tuple[int, tuple[Entry, int, Request]]]:
        """Requests that are not answered, with the numbers of their lines. Lines that cannot be used are
        answered on the way.
        """
        for line in self._lines():
            if self._output.has(line.number):
                continue
            entry = entry_of(line)
            try:
                request = self._request(entry)
            except EdgekitError as error:
                self._output.put(line.number, line.digest, self._members(entry, error))
                steps.advance(1, "")
                continue
            yield line.number, (entry, line.digest, request)

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

    def _members(self, entry: Entry, found: Answer | EdgekitError) -> Mapping[str, Any]:
        """What the line of an answer, or of an error, says."""
        if not isinstance(found, Answer):
            return {"id": entry.id, "error": str(found)}
        statistics = found.statistics
        seed = {**self._given.settings, **entry.settings}.get("seed")
        return {
            "id": entry.id,
            "text": found.text,
            **({"token_ids": list(found.ids)} if self._ids else {}),
            "finish_reason": statistics.finish_reason,
            "seed": 0 if seed is None else seed,
            "statistics": {
                name: getattr(statistics, name)
                for name in ("prompt_tokens", "tokens", "steps", "forwards", "rows", "seconds")
            },
        }
