"""Writes the reference of the command line: the full help page of every command.

python -m edgekit.tools.command_pages > docs/cli.md
"""

from __future__ import annotations

import click

from edgekit.tools.cli import COMMANDS, main
from edgekit.tools.help import full_page

#: Of a page, in characters.
COLUMNS = 100

_HEAD = f"""# The command line

What `edgekit --help` and `edgekit COMMAND --help-all` say, {COLUMNS} columns wide. Values of options that
take several are separated by commas. Errors are one line and exit code 2, `--debug` adds the traceback; exit
code 1 is a result that is not good, such as a damaged file; 130 is Ctrl-C. This page is what
`python -m edgekit.tools.command_pages` prints.
"""


def reference() -> str:
    """All pages, in Markdown."""
    above = click.Context(main, info_name="edgekit", terminal_width=COLUMNS, **main.context_settings)
    pages = [("edgekit", full_page(above))]
    for name in COMMANDS:
        command = main.get_command(above, name)
        assert command is not None, "it is listed"
        pages.append((f"edgekit {name}", full_page(click.Context(command, above, name))))
    return _HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in pages)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
