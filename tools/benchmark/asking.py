"""Asks a bundle a user's own prompts, one at a time."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.api.prompt import encode
from edgekit.runtime.bench import Bench
from edgekit.runtime.generation import Generator, longest
from edgekit.runtime.sampling import Committed, CoreSampler, Draft, Lengths, drive
from edgekit.runtime.session import Session
from edgekit.tools.apart import Tell, ending
from edgekit.tools.benchmark.asked import Asked, as_table, check_any
from edgekit.tools.benchmark.question import Question
from edgekit.tools.benchmark.recording import recording
from edgekit.tools.benchmark.wanted import Wanted
from edgekit.tools.benchmark.workload import sampler_of, settings_of

#: Rows of tables that a report keeps, of so many prompts as there is room for: who reads it refuses more
#: than a million values.
MOST_ROWS = 20_000


def answered(wanted: Wanted, generator: Generator, tell: Tell) -> dict[str, Any]:
    """The report of a case whose prompts are the user's, with what came of each in "about". A prompt that
    cannot be answered has failed. Raises EdgekitError where that is so of all, and what opening a session
    raises.
    """
    bundle = _Bundle(wanted, generator)
    tell(stage="opening", total=0)
    found, fits = bundle.fitting()
    lengths = [each.lengths for each in fits]
    with (
        generator.branching(longest(lengths, 1), 1) as (session, _, _),
        recording(wanted, session, max(each.new_tokens for each in lengths)) as bench,
    ):
        if wanted.warmups:
            tell(stage="warming up", total=wanted.warmups)
        for number in range(wanted.warmups):
            if ending.is_set():
                break
            with suppress(EdgekitError):  # of a prompt, which is asked again
                bundle.answer(fits[number % len(fits)].question, session)
            tell(done=1)
        tell(stage="asking", total=len(fits))
        for each in fits:
            line = each.question.line
            if ending.is_set():  # those behind it are no part of the report
                break
            try:
                with bench.test({"line": line}, each.prompt_tokens):
                    found[line] = bundle.answer(each.question, session, bench)
            except EdgekitError as error:
                found[line] = Asked(line, error=str(error))
            session.idle()
            tell(done=1)
        report = bench.report()
    if not ending.is_set():
        check_any(found.values())
    report["about"]["case"]["prompt"] = "file"
    asked = [found[each.line] for each in wanted.questions if each.line in found]
    report["about"]["workload"] = {"asked": as_table(asked)}
    _shorten(report["tests"])
    return report


def check(wanted: Wanted, generator: Generator) -> None:
    """Raises what `answered` would before the first prompt: for settings, for prompts of which none fits, and
    for a memory budget without room.
    """
    _, fits = _Bundle(wanted, generator).fitting()
    generator.plan(generator.session_options(longest([each.lengths for each in fits], 1)))


def _shorten(tests: list[dict[str, Any]]) -> None:
    """Keep as many tests as there is room for, at least one."""
    rows = 0
    for count, test in enumerate(tests):
        rows += sum(len(test[name]["rows"]) for name in ("passes", "spans"))
        rows += len(test["memory"]["over_time"]["rows"])
        if rows > MOST_ROWS and count:
            del tests[count:]
            return


@dataclass(frozen=True)
class _Fitting:
    """A prompt that can be answered, and what that takes."""

    question: Question
    prompt_tokens: int
    lengths: Lengths


class _Bundle:
    """A bundle that is asked with the settings of a case."""

    def __init__(self, wanted: Wanted, generator: Generator) -> None:
        self._questions, self._generator = wanted.questions, generator
        self._settings = settings_of(wanted.case)

    def fitting(self) -> tuple[dict[int, Asked], list[_Fitting]]:
        """The prompts that can be answered, and what is wrong with the others, by line. Raises EdgekitError
        where something is with all.
        """
        failed, fit = dict[int, Asked](), list[_Fitting]()
        for question in self._questions:
            try:
                ids = self._encoded(question)
                fit.append(_Fitting(question, len(ids), self._sampler(ids).lengths))
            except EdgekitError as error:
                failed[question.line] = Asked(question.line, error=str(error))
        if not fit:
            check_any(failed.values())
        return failed, fit

    def answer(self, question: Question, session: Session, bench: Bench | None = None) -> Asked:
        """The answer to a prompt, told to `bench`. Raises what the generation fails with."""
        text, pieces, tokens = self._generator.tokenizer.stream(), list[str](), 0
        first_draft = first_text = None
        started = time.perf_counter()
        ids = self._encoded(question)
        sampler = self._sampler(ids)
        for event in drive(sampler, session):
            now = time.perf_counter() - started
            if isinstance(event, Draft) and first_draft is None:
                first_draft = now
            if isinstance(event, Committed):
                kept = (event.ids if event.text is None else event.text).tolist()
                pieces.append(text.push(kept))
                tokens += len(kept)
                first_text = first_text or now
            if bench is not None:
                bench.tell(0, event, sampler)
        pieces.append(text.finish())
        seconds = time.perf_counter() - started
        return Asked(
            question.line, "".join(pieces), None, None, seconds, first_draft, first_text, len(ids), tokens
        )

    def _encoded(self, question: Question) -> list[int]:
        return list(encode(self._generator.tokenizer, question.prompt, None, False, None))

    def _sampler(self, ids: list[int]) -> CoreSampler:
        return sampler_of(self._generator, ids, self._settings)
