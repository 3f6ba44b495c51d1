"""Names of bundles where nobody gives one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgekit.targets import Target


def folder_name(model: str, adapter: str | None, target: Target, formats: Sequence[str], preset: str) -> str:
    """The name of a bundle's folder where nobody gives one."""
    tuned_as = [] if adapter is None else [model_name(adapter)]
    # Exports for other formats than the target's own ones get a folder of their own.
    written_for = [] if formats == target.formats_for() else formats
    return "-".join([model_name(model), *tuned_as, target.name, *written_for, preset])


def model_name(model: str) -> str:
    """A name for the bundle of a model: the last part of its path or id."""
    model = model.removeprefix("hf:").partition("@")[0] if model.startswith("hf:") else model
    return Path(os.path.abspath(os.path.expanduser(model))).name or "model"
