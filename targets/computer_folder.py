"""Files beside a bundle for computers: README.md with the lines that run it, and Info.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.compiled import Device, device_of
from edgekit.runtime.engine_registry import ENGINES
from edgekit.targets import Target, get
from edgekit.targets.own_files import INFO_FILE, info, list_own, memory_table, save_facts, save_readme

_README = """\
# {name}

{model}, quantized with {preset}, made by edgekit for {summary}. Format {format}, {download} to download.
{device}
```console
$ {install}
$ edgekit run {name} "Why is the sky blue?"{engine} --memory {memory} --watch
```

`--memory` bounds the process: what does not fit is read again in every denoising step, ahead of the layers
that use it. Without it all weights stay in memory. `edgekit chat` takes the same options, `edgekit verify
{name}` compares every checksum of a copy.

Tried: {checked}.

{table}

{info} has the figures in bytes.
"""


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle, and list them in its manifest. Raises EdgekitError."""
    bundle = Bundle.open(folder)
    target = get(str(bundle.manifest.provenance["target"]))
    facts = info(bundle, target.tiers)
    save_facts(folder, facts)
    save_readme(folder, bundle.manifest, readme(folder.resolve().name, facts, target))
    list_own(folder)


def readme(name: str, facts: dict[str, Any], target: Target) -> str:
    """README.md of a bundle in folder `name`; `facts` are those of `info`."""
    written = str(facts["format"])
    engine = target.engines.get(written)
    row = ENGINES.find(engine or written)
    device = device_of(facts)
    requirement = "edgekit" if row is None else row.install
    about = "" if device is None else f"Programs for {device.label}."
    if device is not None and device.needs:
        about += f" Running them takes {device.needs}."
    runs = next((tier for tier in facts["tiers"] if tier["runs"]), None)
    return _README.format(
        name=name,
        model=facts["model"],
        preset=facts["quantization"],
        summary=target.summary.partition(":")[0],
        format=written,
        download=size(facts["download_bytes"]),
        device=f"\n{about}\n" if about else "",
        install=(device or Device("")).install(requirement),
        engine="" if engine is None else f" --engine {engine}",
        memory="2GB" if runs is None else f"{runs['budget_bytes'] / 1e9:g}GB",
        checked=target.checked.get(written, "nothing is known"),
        table=memory_table(facts),
        info=INFO_FILE,
    )
