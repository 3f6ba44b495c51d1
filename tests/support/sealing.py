"""Edits of bundles that are sealed anew: as a stranger would make them, or as an export of other content."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.files import file_digests
from edgekit.tools.campaign.sealing import sealed


def reseal(bundle: Path) -> None:
    """Seal edgekit.json of a bundle again after its text was changed."""
    file = bundle / manifests.MANIFEST_NAME
    file.write_bytes(manifests.seal(file.read_bytes()))


def edit(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the table of a manifest, and seal it."""
    table = json.loads((bundle / manifests.MANIFEST_NAME).read_text(encoding="utf-8"))
    change(table)
    write(bundle, table)


def write(bundle: Path, table: dict[str, Any]) -> None:
    """Write a table as the manifest of a bundle, sealed whatever it says."""
    (bundle / manifests.MANIFEST_NAME).write_bytes(sealed(table))


def relist(bundle: Path, *names: str) -> None:
    """List files as they are now, and seal the manifest. Of the weights their size and header."""

    def change(table: dict[str, Any]) -> None:
        for name in names:
            if name == table["weights"]["file"]:
                raise ValueError("weights have runs of their own; edit their entry")
            table["files"][name] = asdict(manifests.file_entry(bundle / name))

    edit(bundle, change)


def check_all(bundle: Path) -> None:
    """Every file is the one that the manifest lists: digests for `run`, and SHA-256."""
    folder, manifest = BundleFolder(bundle), manifests.load(bundle)
    listed = {manifest.weights.file: manifest.weights, **manifest.files}
    for name, entry in listed.items():
        folder.check(name)
        assert file_digests(bundle / name)[:2] == (entry.size, entry.sha256), name
