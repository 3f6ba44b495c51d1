"""`edgekit run`: a prompt in, text out, weights streamed under a memory budget."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from edgekit.tools.console import on_terminal, prose
from edgekit.tools.help import Command, Rare
from edgekit.tools.options import Number, bundle_argument, debug_option, json_option, quoting
from edgekit.tools.prompts import given_prompt
from edgekit.tools.request import Request, display_for, opened, request_options, settings_of
from edgekit.tools.search import SearchRequest, as_dict, search_options, search_summary, searched
from edgekit.tools.stuck import ending_if_stuck

if TYPE_CHECKING:
    from edgekit.runtime.api import SearchResult


@click.command(
    "run",
    cls=Command,
    short_help="Generate text from a bundle.",
    examples=(
        'edgekit run tiny-gemma-host-mixed4 "What is 23 + 45?"',
        'edgekit run tiny-gemma-host-mixed4 "Repeat: red cat 42" --memory 100MB --watch',
        'echo "What is 23 + 45?" | edgekit run tiny-gemma-host-mixed4 --json',
        'edgekit run tiny-gemma-host-mixed4 "What is 23 + 45?" --infill "[[1]]8"',
    ),
)
@bundle_argument
@click.argument("words", nargs=-1, metavar="[PROMPT]")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, if it is not given by itself.")
@request_options
@click.option(
    "--infill",
    metavar="TEXT",
    help="The answer with holes: [[12]] is one of twelve tokens that the model fills.",
)
@click.option(
    "--start",
    cls=Rare,
    metavar="TEXT",
    help="An earlier answer to start from, which the model may change; of models that denoise random tokens.",
)
@click.option(
    "--deadline",
    cls=Rare,
    type=Number(lambda seconds: seconds > 0, "of seconds, above 0"),
    metavar="SECONDS",
    help="When the answer should be there: what is open is settled in the last pass that there is time for.",
)
@search_options
@click.option("--watch", is_flag=True, help="Show the canvas while it resolves.")
@json_option
@debug_option
def command(
    bundle: str,
    words: tuple[str, ...],
    prompt: str | None,
    request: Request,
    infill: str | None,
    start: str | None,
    deadline: float | None,
    wanted: SearchRequest | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Generate text from BUNDLE, a folder that `edgekit export` wrote, or hf:OWNER/NAME on the Hugging Face
    hub. PROMPT may be piped in instead.

    The text goes to stdout as canvases commit, one line of statistics to stderr. Under --memory the weights
    that do not fit are read from disk in every denoising step.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    if infill is not None and start is not None:
        raise click.UsageError("--infill and --start exclude each other")
    if wanted is not None:
        for option, value in (("infill", infill), ("start", start), ("deadline", deadline), ("watch", watch)):
            if value not in (None, False):
                raise click.UsageError(f"--{option} and --verify exclude each other")
    prompt = given_prompt(bundle, words, prompt)

    from edgekit.tools.answer_display import (
        answer,
        beyond_budget,
        plan_as_dict,
        remark,
        statistics_as_dict,
        summary,
        write_text,
    )

    with ending_if_stuck(), opened(bundle, request, quiet=as_json) as (model, generator):
        ids = model.encode(prompt, system=request.system, raw=request.raw)
        search: SearchResult | None = None
        with quoting(request.memory):
            if wanted is not None:
                search = searched(model, prompt, request, wanted, quiet=as_json)
                result = search.answer
                plan = plan_as_dict(generator)
            elif as_json:
                # First: it reads the weights file, and a finished answer must not depend on that any more.
                generator.prepare(ids, settings_of(request.settings))
                plan = plan_as_dict(generator)
            if wanted is None:
                template = start if infill is None else infill
                if template is None:
                    events = model.events(ids, deadline_seconds=deadline, **request.settings)
                else:
                    events = model.infill_events(
                        ids, template, revise=infill is None, deadline_seconds=deadline, **request.settings
                    )
                result = answer(events, display_for(generator, request.settings, watch=watch, quiet=as_json))
        statistics = statistics_as_dict(generator, result)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "bundle": str(model.path),
                    "text": result.text,
                    "token_ids": result.ids,
                    "statistics": statistics,
                    "plan": plan,
                    **({} if search is None else as_dict(search)),
                }
            )
        )
        return
    if watch and on_terminal(sys.stderr) and result.text:
        # The canvas is gone from the screen; the answer stays.
        write_text(result.text)
    if said := remark(result):
        prose(f"note: {said}", err=True)
    if said := beyond_budget(result.statistics, statistics["engine"]):
        prose(f"note: {said}", err=True)
    prose(summary(result.statistics) if search is None else search_summary(search), err=True)
