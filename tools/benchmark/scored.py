"""Scores of the answers in a report, and what else is the same for all that were asked the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgekit.runtime.search.verifier import VerifierFailed
from edgekit.tools.benchmark.asked import Asked, as_table, of_table
from edgekit.tools.benchmark.prompts_file import digest
from edgekit.tools.benchmark.question import Question
from edgekit.tools.benchmark.scoring import Score
from edgekit.tools.terminal_text import counted


def failures(report: dict[str, Any]) -> str:
    """How many requests of a report failed, and the first reason; empty if none did."""
    asked = of_table(report["about"]["workload"]["asked"])
    errors = [each.error for each in asked if each.error is not None]
    return f"{len(errors)} of {counted(len(asked), 'request')} failed: {errors[0]}" if errors else ""


def add_scores(report: dict[str, Any], questions: Sequence[Question], score: Score) -> str:
    """Complete the member "workload" of a report with scores, 0 for requests that failed. What could not be
    scored has none; a line says so, empty if there is none.
    """
    workload = report["about"]["workload"]
    scored, failures = list[Asked](), list[str]()
    by_line = {each.line: each for each in questions}  # some may not have been asked
    for asked in of_table(workload["asked"]):
        question, found = by_line[asked.line], None
        if score.wants(question):
            try:
                found = 0.0 if asked.text is None else score.of(question, asked.text)
            except VerifierFailed as error:
                failures.append(f"line {question.line}: {error}")
        scored.append(replace(asked, score=found))
    workload |= {"asked": as_table(scored), "scored_by": score.name, "digest": digest(questions)}
    if not failures:
        return ""
    return f"{counted(len(failures), 'answer')} could not be scored; {failures[0]}"
