"""Files beside a bundle for iOS, or a set of them: README.md, which says how an application uses it, and
Info.json with the sizes per tier of devices.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import BundleSet
from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.files import write_atomic
from edgekit.flashload.sizes import size, size_up
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.model_card import with_front_matter
from edgekit.runtime.engine_registry import running
from edgekit.runtime.session import SessionOptions, plan_session
from edgekit.targets.ios import TIERS, Tier

README_FILE, INFO_FILE = OWN = "README.md", "Info.json"

_NATIVE_SYSTEMS = {"ios": "18", "macos": "15"}  # of the Swift package

_README = """\
# {name}

{model}, quantized with {preset}, made by edgekit:

{bundles}

Drag this folder into an Xcode project as a folder reference (or download it at run time), add edgekit's Swift
package `runtime/swift`, and:

```swift
import EdgeKit
import Foundation

let path = Foundation.Bundle.main.path(forResource: "{name}", ofType: nil)!
let session = try await Session(path: path, options: SessionOptions(memoryBytes: 1_500_000_000))
for try await event in session.generate([5, 6, 7]) {{  // token ids of the prompt
  if case .committed(let part) = event {{ print(part.tokens) }}
}}
```

{runtimes} computes the passes; the denoising loop runs in the native core.{choice}

{memory}

{info} has the figures in bytes, and the sources of the limits. More than the default limit takes the
entitlement `com.apple.developer.kernel.increased-memory-limit`.
"""
_CHOICE = """ `Session` takes the
newest bundle that the device's system runs; an app that needs one of them alone takes its folder in place of
this one."""
_MEMORY = """\
## Memory{of}

| device | memory for the model | weights that stay | read in every step |
|---|---|---|---|
{tiers}

Activations take {activations} of that memory, a prefix up to {prefix}."""


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle or a set of bundles, and them into its manifest or
    bundles.json. Raises EdgekitError when the folder cannot be read or written.
    """
    several = bundle_set.load(folder) if bundle_set.is_set(folder) else None
    if several is None:
        bundle = Bundle.open(folder)
        facts = info(bundle)
    else:
        facts = set_info(folder, several)
    write_atomic(folder / INFO_FILE, (json.dumps(facts, indent=1) + "\n").encode())
    # The members of a set differ in nothing that their front matter says but the format.
    manifest = bundle.manifest if several is None else manifests.load(folder / several.members[-1].path)
    text = with_front_matter(manifest, readme(folder.resolve().name, facts))
    write_atomic(folder / README_FILE, text.encode())
    own = {name: manifests.file_entry(folder / name) for name in OWN}
    if several is None:
        manifests.save(replace(bundle.manifest, files={**bundle.manifest.files, **own}), folder)
    else:
        bundle_set.save(replace(several, files={**several.files, **own}), folder)


def set_info(folder: Path, several: BundleSet) -> dict[str, Any]:
    """`info` of every bundle of a set, with the folder of each."""
    each = [{"path": m.path} | info(Bundle.open(folder / m.path)) for m in several.members]
    return {"download_bytes": sum(facts["download_bytes"] for facts in each), "bundles": each}


def info(bundle: Bundle) -> dict[str, Any]:
    """Sizes in bytes: of the download, its packages, and what stays in memory and is read per denoising step
    on each tier.
    """
    manifest, packages = bundle.manifest, bundle.packages
    lengths = SessionOptions()
    options = replace(lengths, canvas=bundle.model.canvas_length or lengths.canvas)
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
    return found | {"tiers": [tier(known) for known in TIERS]}


def readme(name: str, facts: dict[str, Any]) -> str:
    """README.md of a bundle or set in folder `name`; `facts` are those of `info` or `set_info`."""
    each = facts.get("bundles", [facts])
    return _README.format(
        name=name,
        model=each[0]["model"],
        preset=each[0]["quantization"],
        bundles="\n".join(map(_bundle_line, each)),
        runtimes=" or ".join(_runtime(own["format"]) for own in each),
        choice=_CHOICE if len(each) > 1 else "",
        memory="\n\n".join(map(_memory, each)),
        info=INFO_FILE,
    )


def _runtime(program_format: str) -> str:
    """The runtime of a bundle, as a sentence begins with it."""
    row = running(program_format)
    title = program_format if row is None else row.title
    return title[:1].upper() + title[1:]


def _bundle_line(facts: dict[str, Any]) -> str:
    path = f"`{facts['path']}`: " if "path" in facts else ""
    systems = "iOS {ios} and macOS {macos}".format(**facts.get("minimum_os", _NATIVE_SYSTEMS))
    return f"- {path}format {facts['format']}, from {systems} on, {size(facts['download_bytes'])} to download"


def _memory(facts: dict[str, Any]) -> str:
    return _MEMORY.format(
        of=f" of `{facts['path']}`" if "path" in facts else "",
        tiers="\n".join(map(_tier_row, facts["tiers"])),
        activations=size(facts["activation_bytes"]),
        prefix=size(facts["prefix_bytes"]),
    )


def _tier_row(tier: dict[str, Any]) -> str:
    first = f"| {tier['name']} | {size(tier['budget_bytes'])} | "
    if not tier["runs"]:
        return f"{first}does not run: needs {size_up(tier['needed_bytes'])} | |"
    read = size(tier["bytes_per_step"]) if tier["bytes_per_step"] else "nothing"
    return f"{first}{size(tier['resident_bytes'])} | {read} |"
