"""Failures as the user sees them when a command cannot do its work: one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import IO, Any

import click

from edgekit.flashload.errors import EdgekitError, OutOfMemory, one_line
from edgekit.flashload.names import nearest, shown
from edgekit.tools.console import prose
from edgekit.tools.interrupts import INTERRUPTED, said
from edgekit.tools.terminal_text import shortened, visible

#: Key of `click.Context.meta`: whether failures show their traceback.
DEBUG = "edgekit.debug"
#: Exit codes: a check that found damage; bad input, a missing file and the like; a bug.
DAMAGED, REFUSED, BUG = 1, 2, 70

#: What takes less memory, by the option that a command may have for it.
_OF_MEMORY = {"--memory": "give a smaller --memory", "--threads": "fewer --threads"}
#: Words by which others than Python and the core say that memory lacks: loaders of libraries, and PyTorch.
_SIGNS_OF_MEMORY = (
    "failed to map segment from shared object",
    "cannot allocate memory",
    "Cannot allocate memory",
    "DefaultCPUAllocator: ",
    "can't start new thread",
)

#: Characters of the line: messages quote what files hold.
_LONGEST_LINE = 600


class Failure(click.ClickException):
    """Ends the command with `edgekit: error: <message>`."""

    exit_code = REFUSED
    label = "error: "

    def show(self, file: IO[Any] | None = None) -> None:
        line = shortened(visible(" ".join(self.message.splitlines())), _LONGEST_LINE)
        line = f"edgekit: {self.label}{line}"
        if file is None:
            prose(line, err=True)
        else:
            click.echo(line, file=file)


class Interrupted(Failure):
    """Ends the command after Ctrl-C; `hint` says what can be done with what was made so far."""

    exit_code = INTERRUPTED
    label = ""

    def __init__(self, hint: str = "") -> None:
        super().__init__(said(hint))


class Bug(Failure):
    """Ends the command after an exception that nobody expected."""

    exit_code = BUG
    label = "internal error: "


def failure(error: Exception) -> Failure:
    """The line and exit code for an exception."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, click.UsageError):
        return Failure(_usage(error))
    if isinstance(error, click.ClickException):
        return Failure(error.format_message())
    if isinstance(error, OutOfMemory):
        options = " and ".join(_options_for_memory())
        return Failure(f"{error}{f'; see {options}' if options else ''}")
    if isinstance(error, EdgekitError):
        return Failure(str(error))
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in (extras := extras_by_package()):
            return Failure(f"this needs the package {package}: pip install 'edgekit[{extras[package]}]'")
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS_OF_MEMORY):
        return Failure(_out_of_memory(error))
    if isinstance(error, OSError):
        where = "stdout" if error.filename is None and _is_of_stdout(error) else error.filename
        return Failure(f"{'' if where is None else f'{where}: '}{error.strerror or error}")
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    return Bug(f"{words} (--debug shows where)")


def _out_of_memory(error: Exception) -> str:
    """The line for memory that the system, or the loader of a library in words of its own, did not give."""
    said = "" if isinstance(error, MemoryError) else f" ({one_line(error)})"
    ways = ["close other programs", *_options_for_memory().values()]
    return f"out of memory{said}; {', '.join(ways)} or choose a smaller model"


def _options_for_memory() -> dict[str, str]:
    """Those of `_OF_MEMORY` that the command which is running has."""
    ctx = click.get_current_context(silent=True)
    command = None if ctx is None else ctx.command
    if ctx is not None and isinstance(command, click.Group) and ctx.invoked_subcommand:
        command = command.get_command(ctx, ctx.invoked_subcommand)
    if command is None or command.name == "plan":  # whose budget is that of another device
        return {}
    own = {name for p in command.params for name in p.opts}
    return {name: way for name, way in _OF_MEMORY.items() if name in own}


def extras_by_package() -> dict[str, str]:
    """The packages outside the core installation, as they are imported, and the extra that brings each: the
    first row's that needs it, an engine's before a format's.
    """
    from edgekit.export.formats import ROWS
    from edgekit.runtime.engine_registry import OWN

    needed = [
        ("huggingface_hub", "hub"),
        ("plotly", "report"),
        ("ray", "ray"),
        *((row.needs, row.extra) for row in OWN if row.extra),
    ]
    needed += [(module, row.extra) for row in ROWS for module in row.needs]
    found: dict[str, str] = {}
    for module, extra in needed:
        found.setdefault(module.partition(".")[0], extra)
    return found


def _is_of_stdout(error: OSError) -> bool:
    """Whether it was stdout that could not be written to. It is given up then: the end of Python would
    complain once more about what is still waiting there.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return False
    local = frames[-1].f_locals
    if frames[-1].f_code is click.echo.__code__:
        if local["file"] is sys.stderr:
            return False
    elif getattr(local.get("self"), "file", None) is not sys.stdout:  # a rich console's
        return False
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _usage(error: click.UsageError) -> str:
    """Describe what is wrong with a command line, in words that begin like all other lines."""
    ctx = error.ctx
    page = f"see {ctx.command_path} --help" if ctx is not None else ""
    if isinstance(error, click.NoSuchOption):
        options = [] if ctx is None else [name for p in ctx.command.get_params(ctx) for name in p.opts]
        close = nearest(error.option_name, [name for name in options if name.startswith("--")])
        meant = f"did you mean {close}? " if close else ""
        if not close and "--prompt" in options:
            meant = "a prompt that begins with - stands behind -p; "
        return f"unknown option {shown(error.option_name)}; {meant}{page}"
    message = error.format_message()
    if type(error) is click.BadParameter and isinstance(error.param, click.Option):
        message = f"{max(error.param.opts, key=len)}: {error.message}"
    if not message[:2].isupper():  # BUNDLE stays
        message = message[:1].lower() + message[1:]
    message = message.rstrip(".")
    return f"{message}{' ' if message.endswith('?') else '; '}{page}" if page else message


def print_traceback(error: Exception) -> None:
    """The whole traceback on stderr."""
    click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
