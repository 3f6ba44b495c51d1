"""Damage copies of bundles and see what every command makes of them.

    edgekit export tiny-llada --format native -o llada
    python -m edgekit.tools.campaign llada [BUNDLE...] [--as-found 600] [--sealed 600] [--faults FILE]

An edit as found is what storage, a download or a hand may do: `run` must refuse it in one line or give the
intact tokens, and `verify` must find it. Sealed anew, with digests that are right again, other text is
allowed, but no traceback, signal, more than 5 s of processors or more than 300 MB above the intact run.
Every fault is printed and, with --faults, appended to a file as a line of JSON; --replay makes the edits of
such a file again, those of the bundle's format. Linux only; the last line is JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when numpy is imported: forked processes must not inherit a pool of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
from rich.console import Console
from rich.progress import track

from edgekit.flashload import manifest as manifests
from edgekit.tools.campaign import commands, judge
from edgekit.tools.campaign.edits import Edit, edited_copy
from edgekit.tools.campaign.faults import keep, kept
from edgekit.tools.campaign.hostile import Hostile
from edgekit.tools.campaign.sealing import reseal
from edgekit.tools.campaign.trial import Trial, trial

PROMPT = "Copy this: Ada 7 cat"
TOKENS = 8


class Campaign:
    """Edits of one bundle, tried one after the other in copies below `scratch`."""

    def __init__(self, bundle: Path, scratch: Path) -> None:
        self.bundle, self._scratch = bundle, scratch
        manifest = manifests.load(bundle)
        self.format = manifest.format
        self._listed = {manifests.MANIFEST_NAME, *manifest.files} | set(weights_files(manifest))
        commands.preload(self.format)
        self.intact = self._try(bundle)
        for name, run in self.intact.items():
            if run.code:
                how = run.err.strip() or f"exit code {run.code} after {run.seconds:.1f} s of processors"
                raise click.ClickException(f"{bundle}: {name} fails on the intact bundle: {how}")

    def tried(self, edit: Edit, *, sealed: bool) -> list[judge.Fault] | None:
        """Try a copy that has the edit and describe what goes wrong; None when it cannot be made."""
        copy = self._scratch / "copy"
        if not edited_copy(self.bundle, copy, edit):
            return None
        if sealed:
            reseal(copy, [edit.file])
        harmless = not sealed and (edit.file not in self._listed or _same(self.bundle, copy, edit.file))
        return judge.faults(self._try(copy), self.intact, sealed=sealed, harmless=harmless)

    def _try(self, bundle: Path) -> dict[str, Trial]:
        return {
            "run": trial(commands.generating(bundle, self.format, PROMPT, TOKENS)),
            "inspect": trial(commands.inspecting(bundle)),
            "verify": trial(commands.verifying(bundle)),
        }


def weights_files(manifest: manifests.Manifest) -> list[str]:
    """Names of the files that hold weights."""
    return [manifest.weights.file]


def _same(bundle: Path, copy: Path, name: str) -> bool:
    """Whether an edit left a file as it was."""
    path = copy / name
    return path.is_file() and not path.is_symlink() and path.read_bytes() == (bundle / name).read_bytes()


#: An edit, whether digests are made anew after it, and what went wrong; None: the bundle has no such place.
Tried = tuple[Edit, bool, list[judge.Fault] | None]


def drawn(campaign: Campaign, seed: int, as_found: int, sealed: int) -> Iterator[Tried]:
    """So many edits by chance, each of which the bundle has a place for."""
    hostile = Hostile(campaign.bundle, seed)
    for wanted, draw, anew in ((as_found, hostile.as_found, False), (sealed, hostile.sealed, True)):
        done = 0
        while done < wanted:
            edit = draw()
            wrong = campaign.tried(edit, sealed=anew)
            if wrong is not None:
                done += 1
                yield edit, anew, wrong


def replayed(campaign: Campaign, file: Path) -> Iterator[Tried]:
    """The edits of a file."""
    for edit, anew in kept(file, campaign.format):
        yield edit, anew, campaign.tried(edit, sealed=anew)


@click.command()
@click.argument(
    "bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--as-found", default=600, show_default=True, help="Edits with digests left as they are.")
@click.option("--sealed", default=600, show_default=True, help="Edits with digests made anew.")
@click.option("--seed", default=1, show_default=True)
@click.option("--faults", type=click.Path(path_type=Path), help="Append every fault to this file.")
@click.option(
    "--replay", type=click.Path(path_type=Path, exists=True), help="Make the edits of such a file instead."
)
def main(
    bundles: tuple[Path, ...], as_found: int, sealed: int, seed: int, faults: Path | None, replay: Path | None
) -> None:
    """Damage copies of BUNDLES and see what every command makes of them."""
    rows: list[dict[str, Any]] = []
    for bundle in bundles:
        with tempfile.TemporaryDirectory(prefix="campaign-", dir=bundle.resolve().parent) as scratch:
            campaign = Campaign(bundle, Path(scratch))
            found = replayed(campaign, replay) if replay else drawn(campaign, seed, as_found, sealed)
            tried: Counter[str] = Counter()
            total = None if replay else as_found + sealed
            for edit, anew, wrong in track(found, campaign.format, total=total, console=Console(stderr=True)):
                kind = "sealed" if anew else "as found"
                if wrong is None:
                    tried["impossible"] += 1
                    continue
                tried[kind] += 1
                tried[f"{kind}: faults"] += bool(wrong)
                for fault in wrong:
                    click.echo(f"{campaign.format}, {kind}: {fault.command}: {fault.what}: {edit}")
                    if faults is not None:
                        keep(faults, campaign.format, edit, anew, fault)
            rows.append({"bundle": str(bundle), "format": campaign.format, **tried})
    click.echo(json.dumps(rows))


if __name__ == "__main__":
    main()
