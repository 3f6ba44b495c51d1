"""`edgekit chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgekit.tools.console import on_terminal, prose
from edgekit.tools.failures import DEBUG, REFUSED, Failure, failure, print_traceback
from edgekit.tools.help import Command
from edgekit.tools.interrupts import INTERRUPTED
from edgekit.tools.options import bundle_argument, debug_option, quoting
from edgekit.tools.prompts import decoded
from edgekit.tools.request import Request, display_for, opened, request_options, title_of
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.runtime.generation import Generator
    from edgekit.tools.conversation import Conversation

#: Of the numbers of keys and values in a saved conversation, by what `--kv` says.
BITS = {"float32": 32, "int8": 8}


@click.command(
    "chat",
    cls=Command,
    short_help="Hold a conversation with a bundle.",
    examples=(
        "edgekit chat tiny-gemma-host-mixed4 --memory 100MB",
        'printf "What is 23 + 45?\\n/save t.kv" | edgekit chat tiny-gemma-host-mixed4',
        "edgekit chat tiny-gemma-host-mixed4 --resume t.kv",
    ),
)
@bundle_argument
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Go on with a conversation that `/save FILE.kv` has written.",
)
@click.option(
    "--kv",
    type=click.Choice(list(BITS)),
    help="Keys and values in FILE.kv: as computed, or a quarter of that, after which answers may differ. "
    "Default: as the file of --resume has them, otherwise float32.",
)
@request_options
@debug_option
def command(bundle: str, request: Request, resume: Path | None, kv: str | None) -> None:
    """Hold a conversation with BUNDLE, a folder or hf:OWNER/NAME on the Hugging Face hub; its canvas is shown
    while it resolves. Lines that begin with a slash are commands: /help lists them. Ctrl-C stops an answer,
    Ctrl-D ends the conversation.

    Each line of a pipe is a turn; answers go to stdout, all else to stderr.
    """
    from edgekit.runtime.tokenizer import ChatTemplateError
    from edgekit.tools.conversation import Conversation
    from edgekit.tools.session_plan import check_budget

    if resume is not None and (request.raw or request.system is not None):
        given = "--raw" if request.raw else "--system"
        raise click.UsageError(f"a conversation that is resumed goes on as it began; leave {given} out")
    with opened(bundle, request) as (model, generator):
        title = title_of(generator)
        try:
            conversation = Conversation(
                model,
                title,
                request.system,
                request.raw,
                request.settings,
                resume,
                None if kv is None else BITS[kv],
            )
        except ChatTemplateError:
            raise Failure(
                f"{model.path}: the model has no chat template, so it knows no turns; with --raw it goes on "
                "from plain text"
            ) from None
        check_budget(model, generator, request)
        talk = _Talk(conversation, generator, request)
        if sys.stdin.isatty() and sys.stdout.isatty():
            prose(f"{title}: /help lists the commands, Ctrl-D ends the conversation", err=True)
            if resume is not None:
                prose(f"{resume}: goes on behind {counted(conversation.turns, 'turn')}", err=True)
            talk.interactively()
        else:
            talk.from_pipe()


class _Talk:
    """Reads lines and has the conversation take them."""

    def __init__(self, conversation: Conversation, generator: Generator, request: Request) -> None:
        self._conversation, self._generator, self._request = conversation, generator, request
        self._watch = self._patient = False

    def from_pipe(self) -> None:
        """Exit code 2 if a line was refused; the others have had their turns."""
        from edgekit.tools.conversation import Quit
        from edgekit.tools.line_input import piped_lines

        refused = False
        for number, data in enumerate(piped_lines(), 1):
            try:
                self._take(decoded(data, f"line {number} on stdin"))
            except Quit:
                break
            except Exception as error:
                self._say(error)
                refused = True
        if refused:
            sys.exit(REFUSED)

    def interactively(self) -> None:
        """Ctrl-C twice, without a line between, ends it with the exit code that shells know."""
        from edgekit.tools.conversation import Quit
        from edgekit.tools.line_input import Editor

        self._watch, self._patient = on_terminal(sys.stderr), True  # or it would end with all turns
        editor = Editor(self._conversation.completions)
        interrupted = False
        while True:
            try:
                line = editor.read()
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                click.echo(err=True)
                if interrupted:
                    sys.exit(INTERRUPTED)
                interrupted = True
                prose("Ctrl-C again ends the conversation", err=True)
                continue
            except Failure as error:
                self._say(error)
                continue
            try:
                interrupted = False
                self._take(line)
                click.echo(err=True)
            except Quit:
                return
            except KeyboardInterrupt:
                interrupted = True
            except Exception as error:
                self._say(error)

    def _take(self, line: str) -> None:
        """Raises what commands and turns raise; KeyboardInterrupt after a line about it."""
        if not line.strip():
            return
        prompt = self._conversation.prompt(line)
        if prompt is None:
            self._conversation.command(line)
            return
        from edgekit.runtime.errors import PromptTooLong

        turns = self._conversation.turns
        try:
            self._answer(prompt)
        except PromptTooLong as error:
            if not turns:
                raise
            raise PromptTooLong(f"{error}; /new begins another conversation") from error
        except KeyboardInterrupt:
            if self._conversation.turns == turns:
                prose("stopped: this turn is taken back, and the conversation is as before", err=True)
            raise

    def _answer(self, prompt: str) -> None:
        from edgekit.tools.answer_display import answer, remark, write_text

        conversation = self._conversation
        display = display_for(self._generator, conversation.settings, watch=self._watch)
        with quoting(self._request.memory):
            found = answer(conversation.ask(prompt), display, patient=self._patient)
        if self._watch or not found.text:
            # The canvas is gone from the screen; and a pipe gets a line for every answer.
            write_text(found.text)
        if said := remark(found, "another seed or more steps with /set"):
            prose(f"note: {said}", err=True)
        elif found.statistics.finish_reason == "length":
            prose("note: the answer is as long as it may be; /set max_new_tokens=N changes that", err=True)

    def _say(self, error: Exception) -> None:
        if click.get_current_context().meta.get(DEBUG):
            print_traceback(error)
        failure(error).show()
