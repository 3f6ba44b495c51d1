"""Failures as the user sees them when a command cannot do its work: one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import IO, Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import nearest, shown
from edgekit.tools.console import prose
from edgekit.tools.interrupts import INTERRUPTED, said
from edgekit.tools.terminal_text import shortened, visible

#: Key of `click.Context.meta`: whether failures show their traceback.
DEBUG = "edgekit.debug"
#: Exit codes: a check that found damage; bad input, a missing file and the like; a bug.
DAMAGED, REFUSED, BUG = 1, 2, 70

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
    if isinstance(error, EdgekitError):
        return Failure(str(error))
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package in (extras := extras_by_package()):
            return Failure(f"this needs the package {package}: pip install 'edgekit[{extras[package]}]'")
    if isinstance(error, OSError):
        where = "stdout" if error.filename is None and _is_of_stdout(error) else error.filename
        return Failure(f"{'' if where is None else f'{where}: '}{error.strerror or error}")
    if isinstance(error, MemoryError):
        return Failure("out of memory; close other programs or choose a smaller model or --memory")
    words = f"{type(error).__name__}: {error}".rstrip(": ")
    return Bug(f"{words} (--debug shows where)")


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
