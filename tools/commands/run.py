"""`edgekit run`: a prompt in, text out, weights streamed under a memory budget."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from edgekit.tools.completion import engine_names
from edgekit.tools.console import note, on_terminal, prose
from edgekit.tools.help import Command, Rare
from edgekit.tools.options import (
    Assignment,
    Bytes,
    Size,
    bundle_argument,
    bundle_folder,
    chosen_from,
    debug_option,
    json_option,
    memory_option,
    quoting,
)
from edgekit.tools.prompts import given_prompt

if TYPE_CHECKING:
    from edgekit.runtime.generation import Generator, Settings
    from edgekit.tools.answer import Display, Outline


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
@click.option("--system", metavar="TEXT", help="System message before the prompt.")
@click.option("--raw", is_flag=True, help="Give the prompt to the model without a chat template.")
@memory_option
@click.option(
    "--resident", cls=Rare, type=Bytes(), metavar="SIZE",
    help="At most this many bytes of weights stay in memory; 0 streams all.",
)
@click.option(
    "--engine", cls=Rare, metavar="NAME", shell_complete=engine_names,
    help="Insist on an engine: native, onnx, mlx, coreml or coreai. Default: the bundle's own.",
)
@click.option(
    "--threads", cls=Rare, type=click.IntRange(min=1), metavar="N",
    help="Processor threads. Default: every usable core.",
)
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), metavar="N",
    help="Length of the answer. Default: the model's own.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Denoising steps. Default: the model's own."
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True,
    help="Equal seeds give equal answers.",
)
@click.option(
    "--option", "options", type=Assignment(), multiple=True,
    help="A sampler option by name, e.g. temperature=0.7. Can be repeated.",
)
@click.option("--watch", is_flag=True, help="Show the canvas while it resolves.")
@json_option
@debug_option
def command(
    bundle: str,
    words: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    raw: bool,
    memory: Size | None,
    resident: Size | None,
    engine: str | None,
    threads: int | None,
    max_new_tokens: int | None,
    steps: int | None,
    seed: int,
    options: tuple[tuple[str, Any], ...],
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
    if raw and system is not None:
        raise click.UsageError("--raw leaves the chat template out, so there is no place for --system")
    prompt = given_prompt(bundle, words, prompt)

    from edgekit.runtime.engines import ENGINES_WITH_THREADS
    from edgekit.runtime.generation import Generator, Prompt, Settings
    from edgekit.tools.answer import answer, plan_as_dict

    bundle = bundle_folder(bundle, engine, quiet=as_json)
    settings = Settings(max_new_tokens, steps, seed, dict(options))
    with Generator(
        bundle, memory_bytes=memory, resident_bytes=resident, threads=threads or 0, engine=engine
    ) as generator:
        written = generator.bundle.manifest.programs.get("format")
        if threads is not None and written not in ENGINES_WITH_THREADS:
            note(f"note: --threads has no effect: {written} decides about threads itself")
        taken = chosen_from(bundle, generator.bundle)
        if taken and not as_json:
            note(taken)
        display = display_for(generator, settings, watch=watch, quiet=as_json)
        asked = Prompt(prompt, system, chat=not raw)
        with quoting(memory):
            if as_json:
                # First: it reads the weights file, and a finished answer must not depend on that any more.
                generator.prepare(asked, settings)
                plan = plan_as_dict(generator)
            result = answer(generator, asked, settings, display)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "bundle": str(generator.bundle.path),
                    "text": result.text,
                    "token_ids": result.ids,
                    "statistics": result.statistics(),
                    "plan": plan,
                }
            )
        )
        return
    if watch and on_terminal(sys.stderr):
        from edgekit.tools.console import Status

        # The canvas is gone from the screen; the answer stays.
        if result.text:
            Status().write(result.text if result.text.endswith("\n") else result.text + "\n")
    if remark := result.remark():
        prose(f"note: {remark}", err=True)
    prose(result.summary(), err=True)


class _Display:
    """Makes the display of a generation once its outline is known."""

    def __init__(self, generator: Generator, settings: Settings, watch: bool, quiet: bool) -> None:
        self._generator, self._settings, self._watch, self._quiet = generator, settings, watch, quiet

    def __call__(self, outline: Outline) -> Display:
        from edgekit.tools.answer import Silent, Streamed

        if self._quiet:
            return Silent()
        if not self._watch:
            return Streamed(outline)
        if not on_terminal(sys.stderr):
            note("--watch needs a terminal; this is plain text")
            return Streamed(outline)
        from edgekit.tools.watch import Canvas, Pieces, Watch

        options = self._generator.options(self._settings)
        title = str(
            self._generator.bundle.manifest.provenance.get("checkpoint") or self._generator.bundle.path.name
        )
        mask = getattr(options, "mask_token_id", None)
        return Watch(Canvas(title, Pieces(self._generator.tokenizer), outline, mask))


def display_for(generator: Generator, settings: Settings, *, watch: bool, quiet: bool) -> _Display:
    """The display that the options and the terminal call for."""
    return _Display(generator, settings, watch, quiet)
