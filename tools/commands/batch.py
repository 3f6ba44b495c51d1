"""`edgekit batch`: a file of prompts in, a file of answers out, several in every pass."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from edgekit.tools.console import Steps, prose
from edgekit.tools.failures import DAMAGED, Failure, Interrupted
from edgekit.tools.help import Command
from edgekit.tools.options import Count, bundle_argument, debug_option, json_option, quoting
from edgekit.tools.request import Request, opened, request_options
from edgekit.tools.stuck import ending_if_stuck
from edgekit.tools.terminal_text import counted


@click.command(
    "batch",
    cls=Command,
    short_help="Answer a file of prompts, several in every pass.",
    examples=(
        """printf '{"prompt": "What is %s?"}\\n' "23 + 45" "50 + 17" > in.jsonl""",
        "edgekit batch tiny-gemma-host-mixed4 in.jsonl out.jsonl",
        "edgekit batch tiny-gemma-host-mixed4 in.jsonl small.jsonl --memory 100MB",
    ),
)
@bundle_argument
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT.jsonl", type=click.Path(path_type=Path))
@request_options
@click.option(
    "--sequences",
    type=Count(1, 1024),
    metavar="N",
    help="Answers at a time. Default: what --memory has room for; 8 without it.",
)
@click.option(
    "--ray",
    "cluster",
    metavar="ADDRESS",
    help="Answer on all nodes of a Ray cluster: HOST:PORT of its head, or auto.",
)
@click.option("--ids", is_flag=True, help="Write the token ids of each answer, too.")
@click.option("--overwrite", is_flag=True, help="Begin anew, in place of what OUT.jsonl holds.")
@json_option
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str,
    source: Path,
    target: Path,
    request: Request,
    sequences: int | None,
    cluster: str | None,
    ids: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Answer each line of IN.jsonl with BUNDLE, and write a line for it to OUT.jsonl, in the same order.

    A line is an object with a "prompt" or "messages", an "id" if you like, and settings by name. Several
    answers share every pass over the weights. The same command goes on where an earlier one ended. The exit
    code is 1 where a line has an error in place of an answer.
    """
    from edgekit.tools.batch.lines import Input
    from edgekit.tools.batch.output import Output, early_path
    from edgekit.tools.batch.work import Work, run_digest

    for path, what in (source, "the lines are read twice"), (target, "an interrupted batch goes on from it"):
        if str(path) == "-":
            raise Failure(f"-: a pipe cannot be used, as {what}; give the name of a file")
    for path in target, early_path(target):
        if path.exists() and source.exists() and path.samefile(source):
            raise Failure(f"{path}: is the input, and would be written to; give the output another name")
    again = "the same command" + (" without --overwrite" if overwrite else "")
    hint = f"{again} goes on behind what is in {target}"
    try:
        with (
            ending_if_stuck(hint),
            quoting(request.memory),
            Input(source) as lines,
            opened(bundle, request, quiet=as_json) as (model, generator),
            Output(
                target, run_digest(generator, request, ids), overwrite=overwrite, bundle=generator.bundle.path
            ) as output,
            Steps("reading the prompts", quiet=as_json) as steps,
        ):
            work = Work(model, generator, request, lines, output, ids=ids)
            work.look(steps)
            if cluster is None:
                summary = work.answer(steps, sequences)
            else:
                from edgekit.tools.batch.on_cluster import opened_on

                summary = work.answer(steps, sequences, partial(opened_on, cluster, bundle, steps))
    except KeyboardInterrupt:
        raise Interrupted(hint if target.exists() else "") from None
    if as_json:
        click.echo(json.dumps(summary.as_dict()))
    else:
        prose(str(summary), err=True)
        if summary.errors:
            have, them = ("has", "it") if summary.errors == 1 else ("have", "them")
            whole = counted(summary.lines, "line")
            prose(
                f"{summary.errors} of {whole} {have} an error in place of an answer; mend {them} in "
                f"{source}, and the same command answers {them}",
                err=True,
            )
    if summary.errors:
        ctx.exit(DAMAGED)
