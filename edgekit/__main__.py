"""The command line, as `python -m edgekit` and as the `edgekit` script."""

from edgekit.tools.interrupts import ending_at_once


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported is one line, too."""
    with ending_at_once():
        from edgekit.tools.cli import main as commands
    commands(prog_name="edgekit")


if __name__ == "__main__":
    main()
