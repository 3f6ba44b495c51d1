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
from edgekit.runtime.bundle.compiled import device_of
from edgekit.runtime.engine_registry import EngineRow, running
from edgekit.runtime.sampling.answer_room import SHORT_PROMPT

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

{run}

## Quantization

| role | bits | weights | stored | mean error | largest error |
|---|---|---|---|---|---|
{roles}

Errors are relative to the norm of the original matrix; `quantization.json` has those of every matrix.

## What was verified

`edgekit.json` lists every file of this bundle with its size and SHA-256. `edgekit push` compares all of them
before it uploads, {compared}. The
errors above were computed by edgekit {version} while it quantized; how well the quantized model answers has
not been measured.
"""


_RUN = """\
```console
$ {install}
{run}$ edgekit verify FOLDER    # of a copy: every checksum
```"""
_ASK = """\
$ edgekit run hf:OWNER/NAME -p "Why is the sky blue?"{words}    # this repository, or a folder
"""
_EMULATED = """

It is for {title}. On other computers an emulation of that computes, many times slower."""
#: In place of a command that no answer would come of.
NO_ROOM = """\
{programs} have no room for an answer behind a prompt of {prompt_tokens} tokens: answers take an export with
longer `--lengths`."""
_DOWNLOADED = "`edgekit run hf:...` after it has downloaded, and does not run what differs"
_LINKED = "`edgekit verify` those of a copy"
_LINK = """\
{archive} holds objects for {device}, which an application's own tools link. edgekit does not run
linked ones yet: there a bundle of the format `native` runs, through the C ABI. `edgekit verify FOLDER`
compares every checksum of a copy."""


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


def card(manifest: Manifest, new_tokens: int | None = None) -> str:
    """The whole model card of a bundle. The card's own entry in the manifest is not counted. `new_tokens` is
    the answer that programs have room for behind a short prompt, 0 if none, where that is less than a default
    one; None where there is room.
    """
    versions = manifest.provenance.get("versions")
    return front_matter(manifest) + "\n" + _BODY.format(
        model=_plain(_model(manifest)),
        preset=_plain(manifest.quantization.get("preset")),
        version=_plain(versions.get("edgekit", "") if isinstance(versions, dict) else ""),
        format=_plain(manifest.format),
        run=_how_to_run(manifest, new_tokens),
        compared=_LINKED if _archive(manifest) else _DOWNLOADED,
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
    if (device := device_of(manifest.programs)) is not None:
        facts.append(("programs for", _plain(device.label)))
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


def _how_to_run(manifest: Manifest, new_tokens: int | None) -> str:
    device, row = device_of(manifest.programs), _engine(manifest.format)
    if device is not None and (archive := _archive(manifest)):
        return _LINK.format(archive=f"`{_plain(archive)}`", device=_plain(device.name))
    requirement = f"edgekit[{_extras(manifest.format)}]"
    install = f'pip install "{requirement}"' if device is None else device.install(requirement)
    words = f" --engine {row.name}" if row is not None and row.by_name else ""
    words += f" --max-new-tokens {new_tokens}" if new_tokens else ""
    more = "" if device is None or not device.needs else f"\n\nRunning it takes {device.needs}."
    more += _EMULATED.format(title=row.title) if row is not None and row.machines else ""
    if new_tokens == 0:
        more += "\n\n" + NO_ROOM.format(programs="Its programs", prompt_tokens=SHORT_PROMPT)
    run = "" if new_tokens == 0 else _ASK.format(words=words)
    return _RUN.format(install=install, run=run) + more


def _archive(manifest: Manifest) -> str:
    """The file of programs that only an application can link; empty where there is none."""
    device = device_of(manifest.programs)
    return "" if device is None else device.archive


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
