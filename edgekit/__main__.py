"""The command line, as `python -m edgekit` and as the `edgekit` script."""

import os
import sys

from edgekit.tools.interrupts import ending_at_once


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported is one line, too."""
    _open_standard_streams()
    with ending_at_once():
        from edgekit.tools.cli import main as commands
    try:
        commands(prog_name="edgekit")
    finally:
        # Python 3.11 and `-m`: an interrupt inside of exec("..."), which dataclasses and torch use, would end
        # the process by SIGINT, whatever its exit code is by then. The next exec forgets it.
        exec("")


def _open_standard_streams() -> None:
    """Nowhere in place of streams that the caller has closed: the next file would get their number, and what
    is written to the stream with it. Processes that work for this one have them too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - for the whole process
            os.set_inheritable(nowhere.fileno(), True)
            setattr(sys, name, nowhere)


if __name__ == "__main__":
    main()
