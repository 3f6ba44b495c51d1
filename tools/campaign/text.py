"""Damage small tokenizers and see what the core makes of them.

    python -m edgekit.tools.campaign.text [--edits 300] [--faults FILE]

Each kind of `campaign.tokenizers`, hand-made or a tiny model's, gets so many edits of its tokenizer.json and
of a form of chats: of bytes, of JSON, and such as fit the format. The core refuses the file in one line, or
opens it and then makes ids of texts, texts of ids and of conversations, or refuses that in one line: without
a traceback, a signal, more than 5 s of processors or more than 300 MB above the intact files. Faults are
printed, kept and made again as by `edgekit.tools.campaign`, the name of the kind as their format. Linux only;
the last line is JSON.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from edgekit.tools.campaign import commands, judge, tokenizers
from edgekit.tools.campaign.edits import Edit, edited_copy
from edgekit.tools.campaign.faults import keep, kept
from edgekit.tools.campaign.hostile_text import HostileText
from edgekit.tools.campaign.trial import Trial, trial


class TextCampaign:
    """Edits of one kind, tried one after the other in copies below `scratch`."""

    def __init__(self, kind: str, scratch: Path) -> None:
        self.kind, self.folder, self._scratch = kind, scratch / "intact", scratch
        self.folder.mkdir()
        tokenizers.write(kind, self.folder)
        self.intact = self._try(self.folder)
        if self.intact["text"].code:
            raise click.ClickException(f"{kind}: fails intact: {self.intact['text'].err.strip()}")

    def tried(self, edit: Edit) -> list[judge.Fault] | None:
        """Try a copy that has the edit and describe what goes wrong; None when it cannot be made."""
        copy = self._scratch / "copy"
        if not edited_copy(self.folder, copy, edit):
            return None
        return judge.faults(self._try(copy), self.intact, sealed=True, harmless=False)

    def _try(self, folder: Path) -> dict[str, Trial]:
        return {"text": trial(commands.reading_text(folder))}


def _drawn(campaign: TextCampaign, seed: int, count: int) -> Iterator[tuple[Edit, list[judge.Fault]]]:
    """So many edits by chance, each of which the files have a place for."""
    hostile, done = HostileText(campaign.folder, seed), 0
    while done < count:
        edit = hostile.edit()
        wrong = campaign.tried(edit)
        if wrong is not None:
            done += 1
            yield edit, wrong


def _replayed(campaign: TextCampaign, file: Path) -> Iterator[tuple[Edit, list[judge.Fault]]]:
    for edit, _ in kept(file, campaign.kind):
        wrong = campaign.tried(edit)
        if wrong is None:
            raise click.ClickException(f"{campaign.kind} has no place for {edit}")
        yield edit, wrong


@click.command(help=__doc__.partition("\n\n")[0] if __doc__ else None)
@click.option("--edits", default=300, show_default=True, help="Of each kind.")
@click.option("--seed", default=1, show_default=True)
@click.option("--faults", type=click.Path(path_type=Path), help="Append every fault to this file.")
@click.option(
    "--replay", type=click.Path(path_type=Path, exists=True), help="Make the edits of such a file instead."
)
def main(edits: int, seed: int, faults: Path | None, replay: Path | None) -> None:
    import edgekit.runtime.tokenizer.core_text  # noqa: F401 (forked processes have it)

    rows = []
    for kind in (*tokenizers.MADE, *tokenizers.TINY):
        with tempfile.TemporaryDirectory(prefix="campaign-") as scratch:
            campaign = TextCampaign(kind, Path(scratch))
            found = _replayed(campaign, replay) if replay else _drawn(campaign, seed, edits)
            tried = Counter(edits=0, faults=0)
            for edit, wrong in track(
                found, kind, total=None if replay else edits, console=Console(stderr=True)
            ):
                tried["edits"] += 1
                tried["faults"] += bool(wrong)
                for fault in wrong:
                    click.echo(f"{kind}: {fault.what}: {edit}")
                    if faults is not None:
                        keep(faults, kind, edit, True, fault)
            rows.append({"kind": kind, **tried})
    click.echo(json.dumps(rows))


if __name__ == "__main__":
    main()
