"""Files beside a bundle for iOS, or a set of them: README.md, which says how an application uses it, and
Info.json with the sizes per tier of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.runtime.engine_registry import running
from edgekit.targets import own_files
from edgekit.targets.ios import TIERS
from edgekit.targets.own_files import INFO_FILE, answer_room, memory_table

_NATIVE_SYSTEMS = {"ios": "18", "macos": "15"}  # of the Swift package

_README = """\
# {name}

{model}, quantized with {preset}, made by edgekit:

{bundles}

Drag this folder into an Xcode project as a folder reference (or have `BundleFetch` bring it from a server
of files at run time), add edgekit's Swift package (*Add Package Dependencies*: the address of its repository,
or a checkout in which `runtime/swift/build-xcframework.sh` has run on a Mac), and:

```swift
import EdgeKit
import Foundation

let path = Foundation.Bundle.main.path(forResource: "{name}", ofType: nil)!
let session = try await Session(path: path, options: SessionOptions(memoryBytes: 1_500_000_000))
for try await text in session.answer("Why is the sky blue?"{settings}) {{
  print(text, terminator: "")
}}
```

{computes}{choice}
{room}
{memory}

These figures are for an application with the entitlement
`com.apple.developer.kernel.increased-memory-limit`, but where a row says that there is none. {info} has them
in bytes, and the sources of the limits.
"""
_CHOICE = """ `Session` takes the
newest bundle that the device's system runs; an app that needs one of them alone takes its folder in place of
this one."""


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle or a set of bundles. Raises EdgekitError."""
    own_files.describe(folder, TIERS, readme)


def readme(name: str, facts: dict[str, Any]) -> str:
    """README.md of a bundle or set in folder `name`; `facts` are those of `info` or `set_info`."""
    each = facts.get("bundles", [facts])
    most, room = answer_room(each)
    return _README.format(
        name=name,
        model=each[0]["model"],
        preset=each[0]["quantization"],
        bundles="\n".join(map(_bundle_line, each)),
        settings=f", settings: GenerationSettings(maxNewTokens: {most})" if most else "",
        computes=_computes([own["format"] for own in each]),
        room=f"\n{room}\n" if room else "",
        choice=_CHOICE if len(each) > 1 else "",
        memory="\n\n".join(map(memory_table, each)),
        info=INFO_FILE,
    )


def _computes(formats: Sequence[str]) -> str:
    """What runs bundles of these formats, as a sentence."""
    if set(formats) == {"native"}:
        return "The native core runs all of it."
    runtimes = " or ".join(map(_runtime, formats))
    return f"{runtimes} computes the passes; the denoising loop runs in the native core."


def _runtime(program_format: str) -> str:
    """The runtime of a bundle, as a sentence begins with it."""
    row = running(program_format)
    title = program_format if row is None else row.title
    return title[:1].upper() + title[1:]


def _bundle_line(facts: dict[str, Any]) -> str:
    path = f"`{facts['path']}`: " if "path" in facts else ""
    systems = "iOS {ios} and macOS {macos}".format(**facts.get("minimum_os", _NATIVE_SYSTEMS))
    return f"- {path}format {facts['format']}, from {systems} on, {size(facts['download_bytes'])} to download"
