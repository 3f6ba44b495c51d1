"""`edgekit push`: a bundle into a repository on the Hugging Face hub."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from edgekit.flashload.sizes import size
from edgekit.tools.console import Steps, command_line, note, on_terminal
from edgekit.tools.failures import Failure, Interrupted
from edgekit.tools.help import Command
from edgekit.tools.options import bundle_argument, debug_option, json_option
from edgekit.tools.terminal_text import visible


@click.command(
    "push",
    cls=Command,
    short_help="Upload a bundle to the Hugging Face hub.",
    examples=(
        "edgekit push tiny-gemma-host-mixed4 OWNER/tiny-gemma-edgekit",
        'edgekit run hf:OWNER/tiny-gemma-edgekit "What is 23 + 45?"',
    ),
)
@bundle_argument
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="Make a new repository private; refuse one that is public.")
@click.option("--revision", metavar="BRANCH", help="Branch to upload to; made if it is not there.")
@json_option
@debug_option
def command(bundle: str, repository: str, private: bool, revision: str | None, as_json: bool) -> None:
    """Upload BUNDLE to the repository OWNER/NAME on the Hugging Face hub, which is made if it is not there.

    Every file is compared with its checksum first, then uploaded as it is: the bundle's README.md is its
    model card. Run it again after an interruption: what is on the hub is not sent again.
    """
    from edgekit.runtime.hub.bundles import is_on_hub
    from edgekit.runtime.hub.upload import check, upload

    if is_on_hub(bundle):
        raise Failure(f"{bundle}: is on the hub already; push takes the folder of a bundle on this machine")
    if as_json or not on_terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Steps("opening", quiet=as_json) as steps:
        checked = check(Path(bundle), repository, revision, private, steps)
    if checked.there and not as_json:
        note(f"every checksum is right; {checked.repository} has this bundle already: nothing to upload")
    elif not as_json:
        many = f"{len(checked.names)} files, {size(checked.nbytes)}"
        note(f"every checksum is right; uploading {many} to {checked.repository}")
    try:
        page = upload(checked)  # outside of Steps: huggingface_hub draws bars of its own
    except KeyboardInterrupt:
        raise Interrupted("the same command goes on where it stopped") from None
    if as_json:
        done = {"url": page, "repository": checked.repository, "files": len(checked.names)}
        click.echo(json.dumps(done | {"bytes": checked.nbytes, "uploaded": not checked.there}))
        return
    click.echo(visible(page))
    at = f"@{revision}" if revision else ""
    note(f"next: {command_line('chat', f'hf:{checked.repository}{at}')}")
