"""What a bundle for iOS brings besides itself: README.md, which says how an application uses it, and
Info.json with the sizes per tier of devices.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.files import write_atomic
from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.memory import needs, residency
from edgekit.runtime.session import SessionOptions
from edgekit.targets.ios import TIERS, Tier

README_FILE, INFO_FILE = OWN = "README.md", "Info.json"

_SESSION = """\
let path = Foundation.Bundle.main.path(forResource: "{name}", ofType: nil)!
let session = try await Session(path: path, options: SessionOptions(memoryBytes: 1_500_000_000))
for try await event in session.generate([5, 6, 7]) {{  // token ids of the prompt
  if case .committed(let part) = event {{ print(part.tokens) }}
}}"""
_SEGMENTS = """\
let path = Foundation.Bundle.main.path(forResource: "{name}", ofType: nil)!
let bundle = try EdgeKit.Bundle(path: path)
let session = try await Session(bundle: bundle) {{
  try Segments(bundle: bundle, executor: {executor}(bundle: bundle), weightBytes: 800_000_000)
}}
for try await event in session.generate([5, 6, 7]) {{  // token ids of the prompt
  if case .committed(let part) = event {{ print(part.tokens) }}
}}"""
_EXECUTORS = {"coreml": "CoreMLPackages", "coreai": "YourPackageExecutor"}
_SCOPES = {
    "native": "Passes and denoising loop run in the native core.",
    "coreml": "Core ML computes the passes; the denoising loop runs in the native core.",
    "coreai": """\
`YourPackageExecutor` is the application's: a `PackageExecutor` that opens .aimodel assets with Core AI, which
the Swift package does not have. The denoising loop runs in the native core. A bundle that generates with the
package alone is made by `edgekit export --target ios --format coreml` or `--format native`.""",
}
_NATIVE_SYSTEMS = {"ios": "18", "macos": "15"}  # of the Swift package

_README = """\
# {name}

{model}, quantized with {preset}, format {format}, from {systems} on: {download} to download. Made by edgekit.

Drag this folder into an Xcode project as a folder reference (or download it at run time), add edgekit's Swift
package `runtime/swift`, and:

```swift
import EdgeKit
import Foundation

{code}
```

{scope}

| device | memory for the model | weights that stay | read in every step |
|---|---|---|---|
{tiers}

Activations take {activations} of that memory, a prefix up to {prefix}. {info} has the figures in bytes, and
the sources of the limits. More than the default limit takes the entitlement
`com.apple.developer.kernel.increased-memory-limit`.
"""


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle, and them into its manifest. Raises EdgekitError when the
    bundle cannot be read or written.
    """
    bundle = Bundle.open(folder)
    facts = info(bundle)
    write_atomic(folder / INFO_FILE, (json.dumps(facts, indent=1) + "\n").encode())
    write_atomic(folder / README_FILE, readme(folder.resolve().name, facts).encode())
    own = {name: manifests.file_entry(folder / name) for name in OWN}
    manifests.save(replace(bundle.manifest, files={**bundle.manifest.files, **own}), folder)


def info(bundle: Bundle) -> dict[str, Any]:
    """Sizes in bytes: of the download, its packages, and what stays in memory and is read per denoising step
    on each tier.
    """
    manifest, packages = bundle.manifest, bundle.packages
    with bundle.open_weights() as file:
        lengths = SessionOptions()
        canvas = bundle.model.canvas_length or lengths.canvas
        # The budget of a tier is the model's alone.
        wanted = replace(needs(bundle, file, lengths.positions, canvas), process=0)

        def tier(known: Tier) -> dict[str, Any]:
            row: dict[str, Any] = asdict(known)
            try:
                plan = residency(bundle, file, wanted, known.budget_bytes, None)
            except BudgetExceeded as error:
                return row | {"runs": False, "needed_bytes": error.needed_bytes}
            kept, streamed = plan.pinned_bytes, plan.streamed_bytes
            return row | {"runs": True, "resident_bytes": kept, "bytes_per_step": streamed}

        found: dict[str, Any] = {
            "model": bundle.model.family,
            "format": manifest.programs["format"],
            "quantization": manifest.quantization["preset"],
            "download_bytes": manifest.weights.size
            + sum(entry.size for name, entry in manifest.files.items() if name not in OWN),
            "canvas": canvas,
            "activation_bytes": wanted.activations,
            "prefix_bytes": wanted.prefix,
        }
        if packages is not None:
            found |= {
                "minimum_os": dict(packages.minimum_os),
                "precision": packages.precision,
                "packages": {name: entry.nbytes for name, entry in packages.entries.items()},
                "lengths": [{"positions": t, "prefix": p} for t, p in packages.lengths()],
            }
        return found | {"tiers": [tier(known) for known in TIERS]}


def readme(name: str, facts: dict[str, Any]) -> str:
    """README.md of a bundle in folder `name`."""
    program_format = facts["format"]
    code = _SESSION if program_format == "native" else _SEGMENTS
    return _README.format(
        name=name,
        model=facts["model"],
        preset=facts["quantization"],
        format=program_format,
        systems="iOS {ios} and macOS {macos}".format(**facts.get("minimum_os", _NATIVE_SYSTEMS)),
        download=size(facts["download_bytes"]),
        code=code.format(name=name, executor=_EXECUTORS.get(program_format)),
        scope=_SCOPES[program_format],
        tiers="\n".join(_tier_row(tier) for tier in facts["tiers"]),
        activations=size(facts["activation_bytes"]),
        prefix=size(facts["prefix_bytes"]),
        info=INFO_FILE,
    )


def _tier_row(tier: dict[str, Any]) -> str:
    first = f"| {tier['name']} | {size(tier['budget_bytes'])} | "
    if not tier["runs"]:
        return f"{first}does not run: needs {size(tier['needed_bytes'])} | |"
    read = size(tier["bytes_per_step"]) if tier["bytes_per_step"] else "nothing"
    return f"{first}{size(tier['resident_bytes'])} | {read} |"
