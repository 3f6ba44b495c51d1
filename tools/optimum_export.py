"""`edgekit export` as optimum's other exports are: the model is an option, the folder an argument."""

from __future__ import annotations

from typing import Any

import click

from edgekit.tools.cli import in_one_line
from edgekit.tools.commands import export
from edgekit.tools.completion import folders, models
from edgekit.tools.help import Command
from edgekit.tools.options import Folder


class _Export(Command):
    """Whatever it raises is one line and an exit code, as in `edgekit`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with in_one_line(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with in_one_line(ctx):
            return super().invoke(ctx)


_OWN = {
    "model": click.Option(
        ["-m", "--model"],
        required=True,
        metavar="MODEL",
        shell_complete=models,
        help="Folder in Hugging Face layout, owner/name on the hub, or a model that comes with edgekit.",
    ),
    "output": click.Argument(["output"], type=Folder(), metavar="OUTPUT", shell_complete=folders),
}

command = _Export(
    "edgekit",
    callback=export.command.callback,
    params=[_OWN.get(str(param.name), param) for param in export.command.params if param.name != "help_all"],
    help="Quantize the checkpoint MODEL and write a bundle to the folder OUTPUT, for `edgekit run`.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=("optimum-cli export edgekit -m tiny-gemma --target ios tiny-gemma-ios",),
)
