"""The `edgekit` command: subcommands are modules of `edgekit.tools.commands`, imported when they are used."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from typing import Any

import click

from edgekit.tools.failures import DEBUG, REFUSED, Failure, Interrupted, failure, print_traceback
from edgekit.tools.options import debug_option

COMMANDS = ("demo", "export", "run", "inspect", "verify", "push")


class Commands(click.Group):
    """Finds subcommands by name and turns every exception into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edgekit.tools.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            close = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"commands are: {', '.join(COMMANDS)}"
            raise Failure(f"no such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(REFUSED)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise failure(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
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
    try:
        version = importlib.metadata.version("edgekit")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed: run from a source tree)"
    click.echo(f"edgekit {version}")
    ctx.exit()


@click.command(
    cls=Commands,
    epilog="First use:  edgekit demo",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@debug_option
def main() -> None:
    """Quantize diffusion language models and run them while their weights stream from flash.

    \b
    edgekit export GSAI-ML/LLaDA-8B-Instruct -o llada
    edgekit run llada -p "Why is the sky blue?" --memory 4GB --watch
    """


if __name__ == "__main__":
    main()
