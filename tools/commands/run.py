"""`edgekit run`: a prompt in, text out, weights streamed under a memory budget."""

from __future__ import annotations

import json
import sys

import click

from edgekit.tools.console import on_terminal, prose
from edgekit.tools.help import Command
from edgekit.tools.options import bundle_argument, debug_option, json_option, quoting
from edgekit.tools.prompts import given_prompt
from edgekit.tools.request import Request, display_for, opened, request_options, settings_of
from edgekit.tools.stuck import ending_if_stuck


@click.command(
    "run",
    cls=Command,
    short_help="Generate text from a bundle.",
    examples=(
        'edgekit run tiny-gemma-host-mixed4 "What is 23 + 45?"',
        'edgekit run tiny-gemma-host-mixed4 "Repeat: red cat 42" --memory 100MB --watch',
        'echo "What is 23 + 45?" | edgekit run tiny-gemma-host-mixed4 --json',
    ),
)
@bundle_argument
@click.argument("words", nargs=-1, metavar="[PROMPT]")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, if it is not given by itself.")
@request_options
@click.option("--watch", is_flag=True, help="Show the canvas while it resolves.")
@json_option
@debug_option
def command(
    bundle: str,
    words: tuple[str, ...],
    prompt: str | None,
    request: Request,
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
    prompt = given_prompt(bundle, words, prompt)

    from edgekit.tools.answer_display import (
        answer,
        plan_as_dict,
        remark,
        statistics_as_dict,
        summary,
        write_text,
    )

    with ending_if_stuck(), opened(bundle, request, quiet=as_json) as (model, generator):
        ids = model.encode(prompt, system=request.system, raw=request.raw)
        with quoting(request.memory):
            if as_json:
                # First: it reads the weights file, and a finished answer must not depend on that any more.
                generator.prepare(ids, settings_of(request.settings))
                plan = plan_as_dict(generator)
            events = model.events(ids, **request.settings)
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
                }
            )
        )
        return
    if watch and on_terminal(sys.stderr) and result.text:
        # The canvas is gone from the screen; the answer stays.
        write_text(result.text)
    if said := remark(result):
        prose(f"note: {said}", err=True)
    prose(summary(result.statistics), err=True)
