"""README.md of a bundle: a model card as the Hugging Face hub reads it, made of the manifest alone.

Front matter is YAML; strings are written as JSON, which is YAML too.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from typing import Any

from edgekit.flashload.manifest import Manifest
from edgekit.flashload.registry import BrokenPlugin
from edgekit.flashload.sizes import size
from edgekit.runtime.engine_registry import EngineRow, running

CARD = "README.md"
#: What the model card of the checkpoint is called in a bundle.
SOURCE_CARD = "SOURCE_README.md"
#: Names of licences, notices and policies of use, as repositories have them. They travel with the weights.
LEGAL_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*")

_BODY = """\
# {model} for edgekit

{model}, a diffusion language model, quantized with {preset} by edgekit {version} for the format `{format}`.
edgekit runs it while its weights stream from disk.

| | |
|---|---|
{facts}

## Run it

```console
$ pip install "edgekit[{extras}]"
$ edgekit run hf:OWNER/NAME -p "Why is the sky blue?"    # owner and name of this repository, or a folder
$ edgekit verify FOLDER                                  # of a copy: every checksum
```

## Quantization

| role | bits | weights | stored | mean error | largest error |
|---|---|---|---|---|---|
{roles}

Errors are relative to the norm of the original matrix; `quantization.json` has those of every matrix.

## What was verified

`edgekit.json` lists every file of this bundle with its size and SHA-256. `edgekit push` compares all of them
before it uploads, `edgekit run hf:...` after it has downloaded, and does not run what differs. The
errors above were computed by edgekit {version} while it quantized; how well the quantized model answers has
not been measured.
"""


def is_legal(name: str) -> bool:
    """Whether a file of this name says what may be done with the weights."""
    return "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in LEGAL_FILES)


def front_matter(manifest: Manifest) -> str:
    """The lines between `---` that the hub reads, with these."""
    source, form = manifest.provenance, manifest.format
    fields: dict[str, Any] = {"library_name": "edgekit", "pipeline_tag": "text-generation"}
    for key in ("license", "license_name", "license_link"):
        if isinstance(source.get(key), str):
            fields[key] = source[key]
    if isinstance(source.get("repository"), str):
        fields |= {"base_model": source["repository"], "base_model_relation": "quantized"}
    fields["tags"] = ["edgekit", "diffusion-language-model", "quantized", *_tags(form)]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def card(manifest: Manifest) -> str:
    """The whole model card of a bundle. The card's own entry in the manifest is not counted."""
    versions = manifest.provenance.get("versions")
    return front_matter(manifest) + "\n" + _BODY.format(
        model=_plain(_model(manifest)),
        preset=_plain(manifest.quantization.get("preset")),
        version=_plain(versions.get("edgekit", "") if isinstance(versions, dict) else ""),
        format=_plain(manifest.format),
        extras=_extras(manifest.format),
        facts="\n".join(f"| {key} | {value} |" for key, value in _facts(manifest)),
        roles="\n".join(_role(role) for role in manifest.quantization.get("roles", [])),
    )  # fmt: skip


def with_front_matter(manifest: Manifest, text: str) -> str:
    """A README that a format or target has written, as a model card."""
    return text if text.startswith("---\n") else front_matter(manifest) + "\n" + text


def _model(manifest: Manifest) -> str:
    source = manifest.provenance
    return str(source.get("repository") or source.get("checkpoint") or manifest.model.get("family"))


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    source, quantization = manifest.provenance, manifest.quantization
    repository, revision = source.get("repository"), source.get("revision")
    shown = _plain(_model(manifest))
    if repository:
        shown = f"[{shown}](https://huggingface.co/{shown})"
    facts = [("source", shown)]
    if revision:
        facts.append(("revision", f"`{_plain(revision)}`"))
    named = source.get("license_name") or source.get("license")
    facts.append(("licence", _plain(named) if named else "not stated by the source: see its model card"))
    total = manifest.weights.size + sum(e.size for n, e in manifest.files.items() if n != CARD)
    facts += [
        ("family", _plain(manifest.model.get("family"))),
        ("preset", _plain(quantization.get("preset"))),
        ("bits per weight", f"{quantization['bits_per_weight']:.2f}"),
        ("parameters", f"{quantization['parameters']:,}"),
        ("size", size(total)),
    ]
    legal = [name for name in manifest.files if is_legal(name) or name == SOURCE_CARD]
    if legal:
        facts.append(("from the source", ", ".join(f"[{_plain(n)}]({n})" for n in legal)))
    return facts


def _role(role: Mapping[str, Any]) -> str:
    return (
        f"| {_plain(role['role'])} | {role['bits']} | {role['parameters']:,} | {size(role['bytes'])} | "
        f"{100 * role['mean_error']:.2f} % | {100 * role['max_error']:.2f} % |"
    )


def _extras(form: str) -> str:
    """The extras of edgekit that running a bundle of the format takes."""
    row = _engine(form)
    own = [row.extra] if row is not None and row.package == "edgekit" and row.extra else []
    return ",".join(["hub", *own])


def _tags(form: str) -> tuple[str, ...]:
    """Tags that the hub's users search for; none for the engine that is part of edgekit."""
    row = _engine(form)
    return () if row is not None and row.package == "edgekit" and not row.extra else (form,)


def _engine(form: str) -> EngineRow | None:
    """The engine for a format; none where it is broken: exports end with a card, whatever runs here."""
    try:
        return running(form)
    except BrokenPlugin:
        return None


def _plain(value: Any) -> str:
    """A value as text on one line that cannot open markup; names come from whoever published the source."""
    text = " ".join(str(value).split())[:200]
    return "".join(f"\\{c}" if c in "\\`*[]<>|#" else c for c in text)
