"""Options of `edgekit bench` for prompts of a user's own, and an endpoint that is asked them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from edgekit.flashload.names import shown
from edgekit.tools.help import Rare
from edgekit.tools.options import Assignment, BundleName, Count, Number
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.tools.benchmark.endpoint import Endpoint
    from edgekit.tools.benchmark.question import Question
    from edgekit.tools.benchmark.scoring import Score
    from edgekit.tools.console import Steps

F = TypeVar("F", bound=Callable[..., Any])


class _Baseline(BundleName):
    """A bundle, or the address of an endpoint."""

    name = "bundle or address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if _is_address(value) else super().convert(value, param, ctx)


class _Price(click.ParamType):
    """Two amounts of money: of a million tokens that are sent, and that come back."""

    name = "price"
    _amount = Number(lambda amount: amount >= 0, "at least 0")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if len(parts) != 2:
            raise click.UsageError(f"--price is {shown(value)}; use IN,OUT such as 0.15,0.6", ctx)
        sent, received = (self._amount.convert(part, param, ctx) for part in parts)
        return sent, received


def _is_address(value: str) -> bool:
    """Whether it names an endpoint, and no bundle."""
    return value.lower().startswith(("http://", "https://"))


_OPTIONS = (
    click.option(
        "--prompts", "prompts_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help='Ask your own: lines of {"prompt": ..., "answer": ...}, or "messages".',
    ),
    click.option(
        "--against", type=_Baseline(), metavar="BUNDLE|URL",
        help="Ask another bundle, or an OpenAI-compatible endpoint, the same.",
    ),
    click.option(
        "--score", cls=Rare, metavar="FILE.py:NAME",
        help="A function of (prompt, answer, expected) that says how good an answer is: a number, or whether "
        "it is right. Default: whether it is the expected answer, white space apart.",
    ),
    click.option(
        "--limit", cls=Rare, type=Count(1), metavar="N", help="Ask the first N prompts of the file alone."
    ),
    click.option("--model", cls=Rare, metavar="NAME", help="The endpoint's model."),
    click.option(
        "--price", cls=Rare, type=_Price(), metavar="IN,OUT",
        help="What the endpoint takes for a million tokens of prompts and of answers.",
    ),
    click.option(
        "--api-key", cls=Rare, metavar="VARIABLE",
        help="Environment variable with the endpoint's key. Default: OPENAI_API_KEY, where there is one.",
    ),
    click.option(
        "--request", "body", cls=Rare, type=Assignment(), multiple=True,
        help="A further member of the endpoint's requests: temperature=0. Can be repeated.",
    ),
    click.option(
        "--timeout", cls=Rare, metavar="SECONDS",
        type=Number(lambda seconds: 0 < seconds <= 86400, "above 0, at most 86400"),
        help="Time that an answer of the endpoint may take. Default: 120.",
    ),
)  # fmt: skip
#: Options that mean nothing without --prompts, and without an endpoint.
_OF_PROMPTS, _OF_ENDPOINT = ("against", "score", "limit"), ("model", "price", "api_key", "body", "timeout")
_NAMES = {"body": "request"}


@dataclass(frozen=True)
class Asking:
    """Prompts of a file as the options say, read and checked; `baseline` is a bundle to compare with,
    `endpoint` is asked first.
    """

    questions: Sequence[Question]
    score: Score
    baseline: str | None = None
    endpoint: Endpoint | None = None
    price: tuple[float, float] | None = None

    def ask_endpoint(self, warmups: int, steps: Steps) -> dict[str, Any]:
        """The report of the endpoint, see `answered_by`."""
        from edgekit.tools.benchmark.against import answered_by

        assert self.endpoint is not None, "there is one"
        report = answered_by(self.endpoint, self.questions, warmups, steps)
        report["about"]["workload"]["price"] = self.price
        return report

    def complete(self, report: dict[str, Any], steps: Steps) -> str:
        """Add scores to a report, and note which requests failed; a line says what could not be scored, empty
        if all was.
        """
        from edgekit.tools.benchmark.scored import add_scores, failures

        if said := failures(report):
            steps.note(said)
        return add_scores(report, self.questions, self.score)


def prompts_options(command: F) -> F:
    """Adds the options, which reach the command as its argument `asking`, a function of the length of answers
    that gives an `Asking`; None without --prompts.
    """

    @wraps(command)
    def with_prompts(*arguments: Any, **others: Any) -> Any:
        given = {name: others.pop(name) for name in ("prompts_file", *_OF_PROMPTS, *_OF_ENDPOINT)}
        return command(*arguments, asking=checked(given), **others)

    for option in reversed(_OPTIONS):
        with_prompts = option(with_prompts)
    return with_prompts  # type: ignore[return-value]


def checked(given: Mapping[str, Any]) -> Callable[[int | None], Asking] | None:
    """What reads the prompts; None without any. Raises UsageError for options that mean nothing beside the
    others.
    """
    address = given["against"] if given["against"] and _is_address(given["against"]) else None
    needed = "prompts of your own; name their file by --prompts" if given["prompts_file"] is None else ""
    wrong = [name for name in _OF_PROMPTS if given[name] is not None] if needed else []
    if not wrong and address is None:
        wrong = [name for name in _OF_ENDPOINT if given[name] not in (None, ())]
        bundle = given["against"] is not None
        needed = "an endpoint; give its address by --against" + (", http:// before it" if bundle else "")
    if wrong:
        option = _NAMES.get(wrong[0], wrong[0]).replace("_", "-")
        raise click.UsageError(f"--{option} is for {needed}")
    if address is not None and not given["model"]:
        raise click.UsageError("an endpoint has several models; name one by --model")
    if given["prompts_file"] is None:
        return None
    return lambda new_tokens: _read(given, address, new_tokens)


def _read(given: Mapping[str, Any], address: str | None, new_tokens: int | None) -> Asking:
    from edgekit.tools.benchmark.against import api_key
    from edgekit.tools.benchmark.endpoint import Endpoint
    from edgekit.tools.benchmark.prompts_file import read_questions
    from edgekit.tools.benchmark.scoring import score_of

    questions = read_questions(given["prompts_file"], given["limit"])
    score = score_of(given["score"], questions)
    if address is None:
        return Asking(questions, score, given["against"])
    body = {} if new_tokens is None else {"max_tokens": new_tokens}
    endpoint = Endpoint(
        address,
        given["model"],
        api_key(given["api_key"]),
        body | dict(given["body"]),
        given["timeout"] or 120.0,
    )
    return Asking(questions, score, None, endpoint, given["price"])


#: Options that say what is asked, or how often.
_OTHER_WAYS = {
    "prompts": "prompt", "prompt_tokens": "prompt-tokens", "forwards": "forwards", "sequences": "sequences",
    "runs": "runs", "html": "html",
}  # fmt: skip


def check_together(ctx: click.Context) -> None:
    """Raises UsageError for options that exclude each other, and for prompts that would not be asked. Those
    of a file are asked once each.
    """
    if ctx.params["prompts"] and ctx.params["prompt_tokens"] != (None,):
        raise click.UsageError("--prompt and --prompt-tokens exclude each other")
    prompts, most = len(ctx.params["prompts"]), max(ctx.params["sequences"])
    if prompts > most:
        raise click.UsageError(
            f"{prompts} prompts by --prompt, and {counted(most, 'answer')} at a time: the others would not "
            f"be asked; give --sequences {prompts}, or a file of --prompts"
        )
    for name, option in _OTHER_WAYS.items() if ctx.params["prompts_file"] else ():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--prompts and --{option} exclude each other")
