"""`edgekit demo`: a small model quantized, exported and run with all weights streamed, in about a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.sizes import exact_size, size
from edgekit.tools.commands.export import show_quantization
from edgekit.tools.completion import folders
from edgekit.tools.console import command_line, on_terminal, prose, table
from edgekit.tools.failures import Failure
from edgekit.tools.help import Command
from edgekit.tools.interrupts import INTERRUPTED, held_back
from edgekit.tools.options import Bytes, Folder, Size, debug_option, quoting
from edgekit.tools.prompts import suggested_prompt
from edgekit.tools.request import Request, display_for, opened
from edgekit.tools.terminal_text import visible

if TYPE_CHECKING:
    from edgekit.runtime.api import Answer, Model
    from edgekit.runtime.generation import Generator
    from edgekit.tools.tiny.tasks import Example

MODEL = "tiny-gemma"
#: One prompt each; the names are those of `tools.tiny.tasks`.
TASKS = ("addition-2", "json", "copying")
#: Held-out examples of the tasks, which both shipped models answer in every preset and with any noise.
EXAMPLE_SEED = 3


@click.command(
    "demo",
    cls=Command,
    short_help="Export a tiny model and watch it write while its weights stream.",
    examples=("edgekit demo",),
)
@click.option(
    "-o",
    "--output",
    type=Folder(),
    default=Path("edgekit-demo"),
    show_default=True,
    metavar="DIR",
    shell_complete=folders,
    help="Folder of the bundle.",
)
@click.option(
    "--memory",
    type=Bytes(least=1),
    default="256MB",
    show_default=True,
    metavar="SIZE",
    help="Budget of the process that generates.",
)
@click.option("--model", default=MODEL, hidden=True)
@debug_option
def command(output: Path, memory: Size, model: str) -> None:
    """Quantize and export a small diffusion language model, then watch it write.

    Every denoising step reads all weights from disk again, within a memory budget for the whole process: what
    a phone does with a model that is larger than its memory.
    """
    words = _export_words(model, output)
    _check_budget(memory)
    _heading(f"1. Export {model}: quantize its weights, compile its layers")
    _export(words)

    from edgekit.tools.tiny.tasks import examples

    results = []
    request = Request(None, False, memory, Size(0, "0"), None, None, {"seed": 1})
    with opened(str(output), request) as (loaded, generator):
        quantization = generator.bundle.manifest.quantization
        show_quantization(quantization)
        prose(
            f"{quantization['parameters']:,} parameters: {size(2 * quantization['parameters'])} in bfloat16, "
            f"{size(quantization['bytes'])} now "
            f"({quantization['bits_per_weight']:.2f} bits each, scales included)"
        )
        _heading(f"2. Generate with no weight kept in memory, in at most {memory.text} for the process")
        for task in TASKS:
            (example,) = examples(task, 1, EXAMPLE_SEED)
            with quoting(memory):
                results.append((example, _ask(loaded, generator, request, example)))
        assert generator.stats is not None
        engine = generator.stats.engine
    _heading("3. What happened")
    _summarize(results, engine)
    click.echo()
    click.echo("Next:")
    for words in next_commands(output, memory.text):
        click.echo(f"  {command_line(*words)}")


def next_commands(output: Path, memory: str) -> list[list[str]]:
    """Commands to try after the demo: prompts that the shipped models answer, and a model for real."""
    bundle = str(output)
    return [
        ["run", bundle, suggested_prompt(MODEL), "--watch"],
        ["run", bundle, "Repeat: red cat 42", "--memory", memory, "--resident", "0", "--json"],
        ["inspect", bundle, "--memory", memory],
        ["verify", bundle],
        ["export", "GSAI-ML/LLaDA-8B-Instruct", "-o", "llada"],
    ]


def _check_budget(memory: Size) -> None:
    """Refuse a budget that no model would fit before exporting one. Raises BudgetExceeded."""
    import edgekit.runtime.generation  # noqa: F401  what generates is part of the process
    from edgekit.runtime.process import resident_bytes

    if memory < (held := resident_bytes()):
        with quoting(memory):
            raise BudgetExceeded(
                f"a memory budget of {exact_size(memory)} is too small; the process alone takes {size(held)}",
                held,
            )


def _export_words(model: str, output: Path) -> list[str]:
    """The export's arguments, by what the folder holds. Raises Failure: another model's bundle."""
    from edgekit.flashload.manifest import MANIFEST_NAME, load

    words = [model, "-o", str(output), "--if-interrupted", "run the same command again"]
    if (output / MANIFEST_NAME).exists():
        made_from = load(output).provenance.get("checkpoint")
        if made_from != Path(model).name:
            raise Failure(f"{output}: holds a bundle of {made_from}; give another folder with -o")
        words.append("--overwrite")
    elif output.is_dir() and any(output.iterdir()):
        words.append("--resume")
    return words


def _export(words: list[str]) -> None:
    """Export in a process of its own: this one stays as small as the budget says, without PyTorch."""
    # -P: a folder of the working directory must not stand in for a package.
    export = None
    try:
        with held_back():
            export = subprocess.Popen(
                [sys.executable, "-P", "-m", "edgekit", "export", *words], stdout=subprocess.DEVNULL
            )
        code = export.wait()
    except KeyboardInterrupt:
        if export is None:
            raise
        # The terminal interrupts both processes; the other one has said so.
        sys.exit(export.wait() or INTERRUPTED)
    if code:
        sys.exit(code)


def _ask(model: Model, generator: Generator, request: Request, example: Example) -> Answer:
    from edgekit.tools.answer_display import answer

    click.echo()
    click.secho(f"> {example.prompt}", fg="cyan")
    watched = on_terminal(sys.stderr)
    events = model.events(example.prompt, **request.settings)
    result = answer(events, display_for(generator, request.settings, watch=watched, quiet=not watched))
    click.echo(visible(result.text.strip(), keep="\n"))
    right = example.check(result.text)
    click.secho(
        "right" if right else f"wrong; the answer is {example.answer}", fg="green" if right else "yellow"
    )
    return result


def _summarize(results: list[tuple[Example, Answer]], engine: dict[str, Any]) -> None:
    """`engine` is what the engine counted for the last answer."""
    rows = [
        [
            example.task,
            "right" if example.check(answer.text) else "wrong",
            str(answer.statistics.tokens),
            str(answer.statistics.steps),
            f"{answer.statistics.tokens_per_step:.1f}",
            f"{answer.statistics.tokens_per_second:.0f}",
            size(answer.statistics.bytes_read),
            f"{answer.statistics.wait_seconds:.2f} s",
        ]
        for example, answer in results
    ]
    table(["task", "answer", "tokens", "steps", "tokens/forward", "tokens/s", "read", "waited"], rows, left=2)
    prose(
        f"Every step read {size(engine['streamed_bytes_per_step'])} of weights from disk "
        f"({engine['io_mode']}) through a ring of {size(engine['ring_bytes'])}; "
        f"{size(engine['pinned_bytes'])} stayed in memory."
    )
    prose(
        f"Peak memory of the process: {size(engine['peak_bytes'])} "
        f"of the {size(engine['memory_bytes'])} allowed."
    )


def _heading(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)
