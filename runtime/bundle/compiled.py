"""Programs that were compiled for one device, as manifests tell of them, and what running them takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Packages of the system of a GPU that its part of TVM's runtime takes, beside those of the engine.
_PACKAGES = {"cuda": ("nvidia-cuda-runtime",)}
#: What they take for GPUs. TVM's wheels have a library of their own for CUDA (Linux) and Metal (macOS).
_NEEDS = {
    "cuda": "NVIDIA's driver for CUDA 13 and the package nvidia-cuda-runtime",
    "opencl": "a TVM runtime built with USE_OPENCL=ON: no wheel of TVM's has OpenCL",
    "metal": "TVM's runtime for Metal, which its wheel for macOS has",
    "metal-ios": "a TVM runtime built with USE_METAL=ON",
}


@dataclass(frozen=True)
class Device:
    """The device that programs were compiled for. `archive` names the file of objects where only an
    application's own tools can link them, and is empty elsewhere.
    """

    name: str
    summary: str = ""
    archive: str = ""

    @property
    def label(self) -> str:
        """Its name and what that means."""
        return f"{self.name}: {self.summary}" if self.summary else self.name

    @property
    def facts(self) -> dict[str, str]:
        """What reports say of it."""
        return {"device": self.name, "device_summary": self.summary}

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages to install beside the engine's."""
        return _PACKAGES.get(self._kind, ())

    @property
    def needs(self) -> str:
        """What else running them takes there; empty for processors."""
        return _NEEDS.get(self.name) or _NEEDS.get(self._kind, "")

    @property
    def _kind(self) -> str:
        return self.name.partition("-")[0]

    def install(self, requirement: str) -> str:
        """The line that installs what runs them, the engine being `requirement`."""
        return " ".join(["pip install", f"'{requirement}'", *self.packages])


def device_of(programs: Mapping[str, Any]) -> Device | None:
    """The device of a manifest's section on programs; None where they are for no device alone."""
    name, summary, library = (programs.get(key) for key in ("device", "device_summary", "library"))
    if not isinstance(name, str):
        return None
    archive = library if isinstance(library, str) and library.endswith(".tar") else ""
    return Device(name, summary if isinstance(summary, str) else "", archive)
