"""The configuration of the model that a plan is for; no weights are downloaded or read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import InvalidConfig, NotACheckpoint, NotForExport
from edgekit.export.checkpoint.hub import locate
from edgekit.export.checkpoint.safetensors_dir import CONFIG, GENERATION_CONFIG
from edgekit.export.checkpoint.text_files import MOST_CONFIG_BYTES, read_config, read_json_object
from edgekit.export.models import HEAD, complete
from edgekit.flashload import bundle_set, manifest
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.names import shown
from edgekit.runtime.hub import Progress
from edgekit.tools.console import command_line
from edgekit.tools.planning import released


@dataclass(frozen=True)
class Configuration:
    """config.json and generation_config.json of a model, the second empty where it has none."""

    name: str
    config: dict[str, Any]
    generation: dict[str, Any]


def configuration(model: str, progress: Progress | None = None) -> Configuration:
    """Of a config.json, a folder with one, a name in `released.MODELS`, or what an export takes. Raises
    EdgekitError.
    """
    path, generation = Path(os.path.expanduser(model)), dict[str, Any]()
    if path.is_file() and path.suffix == ".json":
        name = path.resolve().parent.name if path.name == CONFIG else path.stem
        config = read_json_object(path, MOST_CONFIG_BYTES, InvalidConfig)
    elif model in released.MODELS and not path.exists():
        name, config = model, released.config(model)
    elif (path / MANIFEST_NAME).is_file() or bundle_set.is_set(path):
        raise NotForExport(
            f"{path}: is a bundle; plan takes the checkpoint that it was made of{_made_of(path)}, and for "
            f"this machine {command_line('inspect', path, '--memory', 'SIZE')} shows the bundle's own plan"
        )
    else:
        folder = locate(model, progress=progress, others=released.MODELS).path
        name = path.resolve().name if path.is_dir() else model
        config = read_config(folder, CONFIG, "a Hugging Face checkpoint", NotACheckpoint, InvalidConfig)
        if (file := folder / GENERATION_CONFIG).is_file():
            generation = read_json_object(file, MOST_CONFIG_BYTES, InvalidConfig)
    # Families whose head is their own where one is stored are taken at their configuration's word.
    stored = () if config.get("tie_word_embeddings") else (HEAD,)
    return Configuration(name, complete(config, stored, name), generation)


def _made_of(bundle: Path) -> str:
    """The checkpoint that the bundle names, in brackets, as messages have it; empty where it names none."""
    try:
        name = manifest.load(bundle).provenance.get("checkpoint")
    except EdgekitError:  # of several bundles, or what is wrong with it is for others to say
        return ""
    return f" ({shown(name)})" if name else ""
