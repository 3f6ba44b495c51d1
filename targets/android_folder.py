"""Files beside a bundle for Android, or a set of them: README.md, which says how an application opens it, and
Info.json with the sizes per tier of devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle
from edgekit.targets import own_files
from edgekit.targets.android import TARGET
from edgekit.targets.own_files import INFO_FILE, answer_room, memory_table

_README = """\
# {name}

{model}, quantized with {preset}, made by edgekit for Android phones:

{bundles}

With this folder on a server of files, and edgekit's archive (`runtime/java/assemble_aar.py`) in the
application:

```java
String folder = new File(context.getFilesDir(), "{name}").getPath();
if (!Bundle.exists(folder)) {{  // not on the main thread: all of this blocks
  BundleFetch.fetch(folder, new FetchOptions("https://models.example/{name}"), null, progress -> {{}});
}}
try (Session session = Session.open(folder, new SessionOptions().memoryBytes(1_500_000_000L))) {{
  session.answer("Why is the sky blue?", {settings}part -> System.out.print(part));
}}
```
{choice}{npu}
{memory}

{info} has the figures in bytes.
"""
_CHOICE = """
A phone fetches one of the bundles: the first above that the application's sessions run. Where all of this
folder is on the phone, `Session.open` takes the same one.
"""
_NPU = """
Sessions run the bundle of format qnn once `new Npu().load()` has loaded ONNX Runtime and Qualcomm's
libraries, which the application brings: `docs/java.md` says which ones. Call it before the lines above: a
fetch brings what sessions run by then. `packages/*.qnn` are folders: an
ONNX model for each function, and one file with the weights of all of them. What ends in `.npu.onnx` is for
the NPU, what ends in `.processor.onnx` for the processor.
{compiled}{emulation}{room}"""
_EMULATION = """
On x86-64 Linux they run in Qualcomm's emulation, many times slower than on a phone:

```console
$ pip install 'edgekit[qnn]'
$ edgekit run {name} "Why is the sky blue?" --engine qnn --max-new-tokens {tokens}
```
"""
_COMPILED = """
`compiled/` has the same packages compiled for {chips}, and phones with such a chip open those. Other phones
{others}.
"""
_TAKE_ANOTHER = "take the other bundle, if Android tells their chip (12 and later)"
_COMPILE = "compile a package each time that it is opened, which takes long"
_NOT_COMPILED = """
Nothing is compiled: phones compile a package each time that it is opened, which takes long. An export with
`--soc sm8650,sm8750` or other chips has binaries for them beside the packages.
"""
#: Of an answer in emulation, which takes long.
_FEW_TOKENS = 16


def describe(folder: Path) -> None:
    """Write README.md and Info.json into a bundle or a set of bundles. Raises EdgekitError."""

    def text(name: str, facts: dict[str, Any]) -> str:
        return readme(name, facts, _chips(folder, facts))

    own_files.describe(folder, TARGET.tiers, text)


def readme(name: str, facts: dict[str, Any], chips: tuple[str, ...]) -> str:
    """README.md of a bundle or set in folder `name`; `facts` are those of `info` or `set_info`, `chips` what
    packages were compiled for.
    """
    each = facts.get("bundles", [facts])
    others = _TAKE_ANOTHER if len(each) > 1 else _COMPILE
    compiled = _COMPILED.format(chips=", ".join(chips), others=others) if chips else _NOT_COMPILED
    on_npu = any(_on_npu(own) for own in each)
    most, room = answer_room(each)
    tokens = _FEW_TOKENS if most is None else min(most, _FEW_TOKENS)
    return _README.format(
        name=name,
        model=each[0]["model"],
        preset=each[0]["quantization"],
        bundles="\n".join(map(_bundle_line, each)),
        choice=_CHOICE if len(each) > 1 else "",
        settings=f"new GenerationSettings().maxNewTokens({most}), null,\n      " if most else "",
        npu=_NPU.format(
            compiled=compiled,
            emulation="" if most == 0 else _EMULATION.format(name=name, tokens=tokens),
            room=f"\n{room}\n" if room else "",
        )
        if on_npu
        else "",
        memory="\n\n".join(map(memory_table, each)),
        info=INFO_FILE,
    )


def _on_npu(facts: dict[str, Any]) -> bool:
    """Whether facts are of a bundle of packages."""
    return "packages" in facts


def _chips(folder: Path, facts: dict[str, Any]) -> tuple[str, ...]:
    """What packages of the bundle or set were compiled for."""
    paths = [folder / own.get("path", ".") for own in facts.get("bundles", [facts]) if _on_npu(own)]
    found = [packages for path in paths if (packages := Bundle.open(path).packages) is not None]
    return tuple(chip for packages in found for chip in packages.compiled)


def _bundle_line(facts: dict[str, Any]) -> str:
    path = f"`{facts['path']}`: " if "path" in facts else ""
    runs = "Snapdragon's NPU" if _on_npu(facts) else "the processor of any phone"
    written = facts["format"]
    return (
        f"- {path}format {written}, for {runs}, {size(facts['download_bytes'])} to download "
        f"({TARGET.checked[written]})"
    )
