"""Device families: one export recipe each. edgekit's own are in modules of their names as `TARGET`; installed
distributions add theirs as entry points of the group `edgekit.targets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.names import shown, supported, unknown
from edgekit.flashload.registry import Registry, resolve
from edgekit.targets.tier import Tier

#: What was tried of TVM's programs for NVIDIA GPUs.
BY_NVRTC = (
    "compiled by TVM, for CUDA with NVRTC; the same programs executed on x86-64 processors; not run on a GPU"
)
#: What was tried of the format for ONNX Runtime on GPUs.
ON_WEBGPU = "executed with WebGPU on a software Vulkan device; not run on a GPU"


class UnknownTarget(EdgekitError):
    """A target that does not exist, or a format that the target does not run."""


@dataclass(frozen=True)
class Target:
    """Defaults of an export for a device family.

    `formats` are the ones that run there, the default first; `preset` and `group_size` are for
    quantization. `since` names the formats for the newest systems, each with the first version of the
    system that has it; `together` the formats that are written side by side where none is asked for and
    their weights take less than `together_bytes` (None: as much as they take), first the one that every
    device runs; `describe`, as `module:function`, is called with the folder of a finished bundle, or set of
    bundles, and adds what its users need. `engines` names by format the engine that runs it there, where
    that is not the format's own, or has to be asked for by name; `devices` what a format that compiles
    programs may compile them for, the default first: without an entry whatever it can, by default for the
    machine that exports. `checked` says by format what of it was executed, compiled or measured where.
    `tiers` are the devices by memory, for the tables of a bundle.
    """

    name: str
    summary: str
    formats: tuple[str, ...]
    preset: str
    group_size: int
    since: Mapping[str, int] = field(default_factory=dict)
    together: tuple[str, ...] = ()
    together_bytes: int | None = None
    describe: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    checked: Mapping[str, str] = field(default_factory=dict)
    tiers: tuple[Tier, ...] = ()

    def format(self, wanted: str | None = None, minimum_os: str | None = None) -> str:
        """The wanted format, or the target's own for systems from version `minimum_os` on. Raises
        UnknownTarget when it does not run there.
        """
        if wanted is not None and wanted not in self.formats:
            others = [target.name for target in TARGETS.working() if wanted in target.formats]
            hint = (
                f"did you mean --target {others[0]}? supported: {', '.join(self.formats)}"
                if others
                else supported(wanted, self.formats)
            )
            raise UnknownTarget(f"target {self.name} does not run format {shown(wanted)}; {hint}")
        newest = [f for f, first in self.since.items() if _major(minimum_os) >= first]
        return wanted or (newest or self.formats)[0]

    def formats_for(self, wanted: str | None = None, minimum_os: str | None = None) -> tuple[str, ...]:
        """The formats to write: several where neither a format nor a system is asked for. Raises as `format`
        does.
        """
        if wanted is None and minimum_os is None and self.together:
            return self.together
        return (self.format(wanted, minimum_os),)

    def device(self, written: str, wanted: str | None = None) -> str | None:
        """The wanted device of programs of a format, or the target's own; None leaves it to the format.

        Raises:
            UnknownTarget: the target is for others.
        """
        allowed = self.devices.get(written, ())
        if wanted is None or not allowed or wanted in allowed:
            return wanted or next(iter(allowed), None)
        others = [t.name for t in TARGETS.working() if t is not self and wanted in t.devices.get(written, ())]
        hint = f"did you mean --target {' or '.join(others)}? " if others else ""
        raise UnknownTarget(
            f"target {self.name} is not for device {shown(wanted)}; {hint}supported: {', '.join(allowed)}"
        )

    def finish(self, folder: Path) -> None:
        """Add the files of the target to the bundle or set in `folder`. Raises EdgekitError."""
        if self.describe is not None:
            resolve(self.describe)(folder)


#: Named in the order in which messages list them.
TARGETS = Registry(
    "target",
    "edgekit.targets",
    Target,
    {
        name: f"edgekit.targets.{name}:TARGET"
        for name in ("host", "mac", "ios", "android", "rtx", "jetson", "rpi")
    },
)


def _major(version: str | None) -> int:
    """The first number of a version; 0 if there is none."""
    first = (version or "").partition(".")[0]
    return int(first) if first.isdecimal() else 0


def get(name: str) -> Target:
    """The target of that name.

    Raises:
        UnknownTarget: there is none. BrokenPlugin: its distribution cannot give it.
    """
    target = TARGETS.find(name)
    if target is None:
        raise UnknownTarget(unknown("target", name, TARGETS))
    return target
