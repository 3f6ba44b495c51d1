"""Files beside a bundle for Android: README.md, which says what an application opens, and Info.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.targets import Target, computer_folder, get
from edgekit.targets.own_files import INFO_FILE, info, list_own, memory_table, save_facts, save_readme

_README = """\
# {name}

{model}, quantized with {preset}, made by edgekit for {summary}. Format {format}, {download} to download.

`packages/*.qnn` are folders: an ONNX model for each function, and one file with the weights of all of them.
`edgekit.json` says what goes in and out of each. What ends in `.npu.onnx` is for QNN's HTP backend (ONNX
Runtime's provider `QNNExecutionProvider`), what ends in `.processor.onnx` for ONNX Runtime's own kernels.
edgekit has no code that runs them in an application.
{compiled}
On x86-64 Linux they run in Qualcomm's emulation, many times slower than on a phone:

```console
$ pip install 'edgekit[qnn]'
$ edgekit run {name} "Why is the sky blue?" --max-new-tokens 16
```

Tried: {checked}.

{table}

{info} has the figures in bytes.
"""
_COMPILED = """
`compiled/` has the same packages compiled for {chips}, where `FUNCTION.ctx.onnx` stands for
`FUNCTION.npu.onnx`.
"""


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle, and list them in its manifest. Raises EdgekitError."""
    bundle = Bundle.open(folder)
    if bundle.packages is None:
        computer_folder.describe(folder)
        return
    target = get(str(bundle.manifest.provenance["target"]))
    facts = info(bundle, target.tiers)
    save_facts(folder, facts)
    text = readme(folder.resolve().name, facts, target, tuple(bundle.packages.compiled))
    save_readme(folder, bundle.manifest, text)
    list_own(folder)


def readme(name: str, facts: dict[str, Any], target: Target, chips: tuple[str, ...]) -> str:
    """README.md of a bundle of packages in folder `name`; `facts` are those of `info`, `chips` what packages
    were compiled for.
    """
    return _README.format(
        name=name,
        model=facts["model"],
        preset=facts["quantization"],
        summary=target.summary.partition(":")[0],
        format=facts["format"],
        download=size(facts["download_bytes"]),
        compiled=_COMPILED.format(chips=", ".join(chips)) if chips else "",
        checked=target.checked[facts["format"]],
        table=memory_table(facts),
        info=INFO_FILE,
    )
