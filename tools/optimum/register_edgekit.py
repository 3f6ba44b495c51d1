"""`optimum-cli export edgekit`: installed where optimum looks for commands of other packages.

optimum-cli imports this file whatever it is asked for: it imports nothing of edgekit before its own command
runs, so that what fails there fails there alone.
"""

from argparse import REMAINDER, ArgumentParser

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand


class EdgekitExportCommand(BaseOptimumCLICommand):
    """Hands the words of the command line to `edgekit.tools.optimum_export`, which knows the options."""

    COMMAND = CommandInfo(
        name="edgekit",
        help="Quantize a diffusion language model and export it for a phone, Mac, GPU or board.",
    )

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Declare one argument that takes every word: nothing begins an option here."""
        parser.prefix_chars = "\0"
        parser.add_argument("words", nargs=REMAINDER)

    def run(self) -> None:
        """Export, and end the process with the exit code of `edgekit export`."""
        from edgekit.tools.interrupts import ending_at_once

        with ending_at_once():
            from edgekit.tools.optimum_export import command
        command(self.args.words, prog_name="optimum-cli export edgekit")


REGISTER_COMMANDS = [(EdgekitExportCommand, ExportCommand)]
