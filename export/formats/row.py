"""The row of a format: all that can be said of it without importing its writer."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import FormatOptions
from edgekit.flashload.names import unknown


@dataclass(frozen=True)
class Systems:
    """The systems and machines, as `platform` calls them, that packages exist for, and what to call them."""

    machines: tuple[tuple[str, str], ...]
    named: str


@dataclass(frozen=True)
class FormatRow:
    """A format that bundles can be exported for.

    `name` is that of the command line and `writer` its subclass of `base.Format` as `module:class`. `layout`
    names the stored forms: engines refuse bundles of layouts that they do not know. Exporting imports the
    modules `needs`, which `extra` of the distribution `package` brings; those but PyTorch exist for
    `systems`, None for all. Manifests record the versions of `distributions`. `precisions` and `activations`
    are what can be chosen, the default first, `devices` what programs can be compiled for; `packages` tells
    that weights are in packages, and that `Packaging` cuts them; `versions` are those of iOS that may be
    asked for then, the first by default, with the macOS of the same year.
    """

    name: str
    writer: str
    layout: str
    needs: tuple[str, ...]
    extra: str = ""
    package: str = "edgekit"
    systems: Systems | None = None
    distributions: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    packages: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def install(self) -> str:
        """The requirement for `pip install`."""
        return f"{self.package}[{self.extra}]" if self.extra else self.package

    def check_installed(self) -> None:
        """Refuse a format that lacks a module. Imports none of them: that takes seconds.

        Raises:
            ExportError: which module.
        """
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                raise ExportError(f"format {self.name} {self.lacks(module)}")

    def check(self, options: FormatOptions) -> None:
        """Refuse options that the format does not offer.

        Raises:
            ExportError: which option.
        """
        if options.packaging is not None and not self.packages:
            raise ExportError(
                f"format {self.name} has no packages, so no lengths, chunks or minimum OS to choose; "
                "leave them out"
            )
        if options.activations is not None and not self.activations:
            raise ExportError(
                f"format {self.name} has no activations to choose, they are its engine's; leave "
                "--activations out"
            )
        if options.precision is not None and not self.precisions:
            raise ExportError(f"format {self.name} has no precision to choose; leave it out")
        if options.device is not None and not self.devices:
            raise ExportError(f"format {self.name} compiles for no device; leave --device out")
        for what, given, known in (
            ("precision", options.precision, self.precisions),
            ("activations", options.activations, self.activations),
            ("device", options.device, self.devices),
        ):
            if given is not None and given not in known:
                raise ExportError(unknown(what, given, known, of=f"format {self.name}"))

    def lacks(self, module: str) -> str:
        """The half sentence about a module that is not installed."""
        here = (platform.system(), platform.machine())
        if self.systems is not None and here not in self.systems.machines and module != "torch":
            return f"needs the package {module}, which there is for {self.systems.named} only"
        return f"needs the package {module}: pip install '{self.install}'"
