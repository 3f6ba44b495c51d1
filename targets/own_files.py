"""Files that targets add to a bundle or set: README.md, and Info.json with the sizes per tier of devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import BundleSet
from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.files import write_atomic
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.sizes import size, size_up
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.compiled import device_of
from edgekit.runtime.bundle.model_card import NO_ROOM, with_front_matter
from edgekit.runtime.generation import sampler_model, within_programs
from edgekit.runtime.sampling.answer_room import SHORT_PROMPT, short_of
from edgekit.runtime.session import SessionOptions, plan_session
from edgekit.targets.tier import Tier

README_FILE, INFO_FILE = OWN = "README.md", "Info.json"
#: Raised where a member changes what it means; new ones leave it alone.
INFO_VERSION = 1
#: As manifests list them.
TOKENIZER_FILE, CHAT_FORM_FILE = "tokenizer/tokenizer.json", "tokenizer/chat.json"

_MEMORY = """\
## Memory{of}

| device | memory for the model | weights that stay | read in every step |
|---|---|---|---|
{tiers}

Activations take {activations} of that memory{prefix}."""
_ROOM = """\
{programs} have room for {new_tokens} new tokens behind a prompt of {prompt_tokens}, less than a default
answer: longer ones take an export with longer `--lengths`."""


def save_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write Info.json: its version, and `facts`. Raises WriteFailed."""
    told = {"version": INFO_VERSION, **facts}
    write_atomic(folder / INFO_FILE, (json.dumps(told, indent=1) + "\n").encode())


def save_readme(folder: Path, manifest: Manifest, text: str) -> None:
    """Write README.md, with the front matter of a model card. Raises WriteFailed."""
    write_atomic(folder / README_FILE, with_front_matter(manifest, text).encode())


def list_own(folder: Path, several: BundleSet | None = None) -> None:
    """Have the manifest of a bundle, or bundles.json of a set, list them. Raises EdgekitError."""
    own = {name: manifests.file_entry(folder / name) for name in OWN}
    if several is None:
        manifest = manifests.load(folder)
        manifests.save(replace(manifest, files={**manifest.files, **own}), folder)
    else:
        bundle_set.save(replace(several, files={**several.files, **own}), folder)


def info(bundle: Bundle, tiers: Sequence[Tier]) -> dict[str, Any]:
    """Sizes in bytes: of the download, its packages, and what stays in memory and is read per denoising step
    on each tier, by the format's own engine. Where programs are compiled, also what for; where they have no
    room for a default answer, one that they have room for behind a short prompt.
    """
    manifest, packages = bundle.manifest, bundle.packages
    lengths = SessionOptions()
    options = within_programs(bundle, replace(lengths, canvas=bundle.model.canvas_length or lengths.canvas))
    engine = engines.to_plan(bundle)
    # The budget of a tier is the model's alone.
    wanted = plan_session(bundle, options, engine, process_bytes=0)

    def tier(known: Tier) -> dict[str, Any]:
        row: dict[str, Any] = asdict(known)
        try:
            plan = plan_session(bundle, replace(options, memory_bytes=known.budget_bytes), engine, 0)
        except BudgetExceeded as error:
            return row | {"runs": False, "needed_bytes": error.needed_bytes}
        kept, streamed = plan.pinned_bytes, plan.streamed_bytes
        return row | {"runs": True, "resident_bytes": kept, "bytes_per_step": streamed}

    found: dict[str, Any] = {
        "model": bundle.model.family,
        "format": manifest.format,
        "quantization": manifest.quantization["preset"],
        "edgekit": manifest.provenance.get("versions", {}).get("edgekit"),
        "source": manifest.provenance.get("checkpoint"),
        "tokenizer": _tokenizer(manifest),
        "download_bytes": manifest.weights.size
        + sum(entry.size for name, entry in manifest.files.items() if name not in OWN),
        "canvas": options.canvas,
        "activation_bytes": wanted.activations + wanted.head,
        "prefix_bytes": wanted.prefix,
    }
    if packages is not None:
        found |= {
            "minimum_os": dict(packages.minimum_os),
            "precision": packages.precision,
            "activations": packages.activations,
            "packages": {name: entry.nbytes for name, entry in packages.entries.items()},
            "lengths": [{"positions": t, "prefix": p} for t, p in packages.lengths()],
        }
        if short := short_of(sampler_model(bundle), packages.lengths()):
            found |= {"answer": {"prompt_tokens": SHORT_PROMPT, "new_tokens": short[1]}}
    if (device := device_of(manifest.programs)) is not None:
        found |= device.facts
    return found | {"tiers": [tier(known) for known in tiers]}


def _tokenizer(manifest: Manifest) -> dict[str, Any] | None:
    """Its file, and whether the core writes conversations as the model's chat template does; None where the
    bundle has none.
    """
    listed = TOKENIZER_FILE in manifest.files
    return {"file": TOKENIZER_FILE, "chat_form": CHAT_FORM_FILE in manifest.files} if listed else None


def set_info(folder: Path, several: BundleSet, tiers: Sequence[Tier]) -> dict[str, Any]:
    """`info` of every bundle of a set, with the folder of each."""
    each = [{"path": m.path} | info(Bundle.open(folder / m.path), tiers) for m in several.members]
    return {"download_bytes": sum(facts["download_bytes"] for facts in each), "bundles": each}


def describe(folder: Path, tiers: Sequence[Tier], readme: Callable[[str, dict[str, Any]], str]) -> None:
    """Write README.md and Info.json into a bundle or a set of bundles, and them into its manifest or
    bundles.json. `readme` has the text for a folder's name and the facts of `info` or `set_info`.

    Raises EdgekitError when the folder cannot be read or written.
    """
    several = bundle_set.load(folder) if bundle_set.is_set(folder) else None
    if several is None:
        bundle = Bundle.open(folder)
        facts, manifest = info(bundle, tiers), bundle.manifest
    else:
        facts = set_info(folder, several, tiers)
        # Members differ in nothing that their front matter says but the format.
        manifest = manifests.load(folder / several.members[-1].path)
    save_facts(folder, facts)
    save_readme(folder, manifest, readme(folder.resolve().name, facts))
    list_own(folder, several)


def memory_table(facts: dict[str, Any]) -> str:
    """The section of a README on memory, of the facts of a bundle."""
    return _MEMORY.format(
        of=f" of `{facts['path']}`" if "path" in facts else "",
        tiers="\n".join(map(_tier_row, facts["tiers"])),
        activations=size(facts["activation_bytes"]),
        prefix=f", a prefix up to {size(facts['prefix_bytes'])}" if facts["prefix_bytes"] else "",
    )


def answer_room(each: Sequence[dict[str, Any]]) -> tuple[int | None, str]:
    """Of the facts of bundles: the new tokens that an answer may have where programs have no room for a
    default one, 0 if they have none for any, and what a README says of it; None and an empty text where there
    is nothing to say.
    """
    found = next((own for own in each if "answer" in own), None)
    if found is None:
        return None, ""
    most: int = found["answer"]["new_tokens"]
    # Others of several may have room for more.
    programs = f"The programs of `{found['path']}`" if "path" in found else "Its programs"
    return most, (_ROOM if most else NO_ROOM).format(programs=programs, **found["answer"])


def _tier_row(tier: dict[str, Any]) -> str:
    first = f"| {tier['name']} | {size(tier['budget_bytes'])} | "
    if not tier["runs"]:
        return f"{first}does not run: needs {size_up(tier['needed_bytes'])} | |"
    read = size(tier["bytes_per_step"]) if tier["bytes_per_step"] else "nothing"
    return f"{first}{size(tier['resident_bytes'])} | {read} |"
