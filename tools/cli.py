"""The `edgekit` command: subcommands are modules of `edgekit.tools.commands`, imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from edgekit.flashload.names import unknown
from edgekit.tools.console import remarks
from edgekit.tools.failures import DEBUG, REFUSED, Failure, Interrupted, failure, print_traceback
from edgekit.tools.help import write_examples
from edgekit.tools.interrupts import ending_at_once
from edgekit.tools.options import debug_option
from edgekit.tools.own_stdout import keep_to_ourselves
from edgekit.tools.versions import installed_version

COMMANDS = (
    "demo",
    "export",
    "run",
    "chat",
    "batch",
    "options",
    "plan",
    "inspect",
    "verify",
    "bench",
    "sweep",
    "doctor",
    "selftest",
    "push",
    "fetch",
    "targets",
    "config",
)
EXAMPLES = (
    "edgekit demo",
    "edgekit export tiny-gemma",
    'edgekit run tiny-gemma-host-mixed4 "What is 23 + 45?" --memory 100MB',
)
#: What switches it on, by shell.
COMPLETION = (
    ("bash, in ~/.bashrc", 'eval "$(_EDGEKIT_COMPLETE=bash_source edgekit)"'),
    ("zsh, in ~/.zshrc", 'eval "$(_EDGEKIT_COMPLETE=zsh_source edgekit)"'),
    ("fish, in config.fish", "_EDGEKIT_COMPLETE=fish_source edgekit | source"),
)


class Commands(click.Group):
    """Finds subcommands by name; whatever they raise is one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with ending_at_once():
            command: click.Command = importlib.import_module(f"edgekit.tools.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = ctx.resilient_parsing or args[:1] == [] or args[0].startswith("-") or args[0] in COMMANDS
        if not known:
            raise Failure(unknown("command", args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(REFUSED)
        with in_one_line(ctx):
            return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, EXAMPLES)
        with formatter.section("Tab completion"):
            formatter.write_dl(COMPLETION)

    def invoke(self, ctx: click.Context) -> Any:
        keep_to_ourselves()
        with in_one_line(ctx), remarks():
            return super().invoke(ctx)


@contextmanager
def in_one_line(ctx: click.Context) -> Iterator[None]:
    """Turns every exception of the block into one line and an exit code."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise  # click ends the process quietly for these
    except KeyboardInterrupt:
        raise Interrupted() from None
    except Exception as error:
        if ctx.meta.get(DEBUG):
            print_traceback(error)
        raise failure(error) from error


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"edgekit {installed_version()}")
    ctx.exit()


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@debug_option
def main() -> None:
    """Quantize diffusion language models and run them streamed from flash. Each command has --help."""


if __name__ == "__main__":
    main()
