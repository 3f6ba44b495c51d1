"""Does the command line of one unit in a process of its own: what it imports and takes ends with it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.tools.apart import Tell, serve
from edgekit.tools.console import tell_progress


def main() -> None:
    serve(_done)


def _done(given: Sequence[str], tell: Tell) -> Mapping[str, Any]:
    """The exit code, and what was said on stdout and stderr. Raises EdgekitError with the line that the
    command would end with.
    """
    from edgekit.tools.cli import main as edgekit

    tell_progress(tell)
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = edgekit.main(list(given), "edgekit", standalone_mode=False)
    except click.ClickException as error:
        raise EdgekitError(error.message) from error
    finally:
        lines = err.getvalue().splitlines()
        for line in lines:
            tell(note=line)
    return {"code": code or 0, "out": out.getvalue(), "last": lines[-1] if lines else ""}


if __name__ == "__main__":
    main()
