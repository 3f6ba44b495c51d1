"""Asks an endpoint a user's own prompts, one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from edgekit.runtime.bench import REPORT_VERSION, describe_machine
from edgekit.tools.benchmark.about import written_by
from edgekit.tools.benchmark.asked import Asked, as_table, check_any
from edgekit.tools.benchmark.endpoint import Endpoint, EndpointUnusable, messages_as
from edgekit.tools.benchmark.question import Question
from edgekit.tools.benchmark.reply import RequestFailed
from edgekit.tools.console import Steps
from edgekit.tools.failures import Failure

#: Where an API key is looked for if nobody says: as other programs do.
USUAL_KEY = "OPENAI_API_KEY"


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable, None where nobody named one and the usual one is not set. Raises
    Failure.
    """
    key = os.environ.get(variable or USUAL_KEY, "").strip()
    if variable is not None and not key:
        raise Failure(f"--api-key: there is no environment variable {variable}, or it is empty")
    if not key.isascii() or not key.isprintable():
        raise Failure(f"the environment variable {variable or USUAL_KEY} has characters that no API key has")
    return key or None


def answered_by(
    endpoint: Endpoint, questions: Sequence[Question], warmups: int, steps: Steps
) -> dict[str, Any]:
    """The report of an endpoint, see docs/bench.md. A request that failed stays so. Raises EndpointUnusable
    as soon as no request can come to an answer, and EdgekitError where none did.
    """
    if warmups:
        steps.stage("warming up", warmups)
    for number in range(warmups):
        try:
            endpoint.ask(messages_as(questions[number % len(questions)].prompt))
        except EndpointUnusable:
            raise
        except RequestFailed:
            pass  # it is asked again below, and counted there
        steps.advance(1, "")
    steps.stage("asking", len(questions))
    asked = list[Asked]()
    for question in questions:
        try:
            asked.append(_answer(endpoint, question))
        except RequestFailed as error:
            if isinstance(error, EndpointUnusable) and all(each.error for each in asked):
                raise
            asked.append(Asked(question.line, error=str(error)))
        steps.advance(1, "")
    check_any(asked)
    named = {"host": endpoint.host, "model": endpoint.model, "body": dict(endpoint.body)}
    return {
        "edgekit_bench": REPORT_VERSION,
        "about": {**written_by(), "endpoint": named, "workload": {"asked": as_table(asked)}},
        "machine": describe_machine(),
    }


def _answer(endpoint: Endpoint, question: Question) -> Asked:
    reply = endpoint.ask(messages_as(question.prompt))
    return Asked(
        question.line, reply.text, None, None, reply.seconds, None, reply.first_text_seconds,
        reply.prompt_tokens, reply.tokens,
    )  # fmt: skip
