"""The row of a format: all that can be said of it without importing its writer."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import FormatOptions
from edgekit.flashload.names import either, shown, supported, unknown
from edgekit.flashload.registry import resolve


@dataclass(frozen=True)
class Systems:
    """The systems and machines, as `platform` calls them, that packages exist for, and what to call them."""

    machines: tuple[tuple[str, str], ...]
    named: str


@dataclass(frozen=True)
class DeviceRow:
    """A device that a format compiles programs for. `lacking`, as `module:function`, names a package that it
    takes beside the format's and that is not installed, or nothing; `extra` brings both.
    """

    summary: str
    lacking: str = ""
    extra: str = ""


@dataclass(frozen=True)
class FormatRow:
    """A format that bundles can be exported for.

    `name` is that of the command line and `writer` its subclass of `base.Format` as `module:class`. `layout`
    names the stored forms: engines refuse bundles of layouts that they do not know. Exporting imports the
    modules `needs`, which `extra` of the distribution `package` brings; those but PyTorch exist for
    `systems`, None for all. Manifests record the versions of `distributions`. `precisions` and `activations`
    are what can be chosen, the default first, `devices` by name what programs can be compiled for, and
    `device_advice`, by a part of the name, what is said of some that there are not; `packages` tells that
    weights are in packages, and that `Packaging` cuts them; `versions` are those of iOS that may be asked for
    then, the first by default, with the macOS of the same year. `socs` are chips by name that packages can be
    compiled for, with what each is sold as, `refused_socs` others, with why not. `calibrates` tells that the
    model runs on texts before it is written.
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
    devices: Mapping[str, DeviceRow] = field(default_factory=dict)
    device_advice: Mapping[str, str] = field(default_factory=dict)
    packages: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    socs: Mapping[str, str] = field(default_factory=dict)
    refused_socs: Mapping[str, str] = field(default_factory=dict)
    calibrates: bool = False

    @property
    def install(self) -> str:
        """The requirement for `pip install`."""
        return self._install("")

    def _install(self, extra: str) -> str:
        extra = extra or self.extra
        return f"{self.package}[{extra}]" if extra else self.package

    def check_installed(self, device: str | None = None) -> None:
        """Refuse a format that lacks a module, or a package to compile for a device of that name. Imports
        none of them: that takes seconds.

        Raises:
            ExportError: which module or package.
        """
        wanted = self.devices.get(device or "", DeviceRow(""))
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                raise ExportError(f"format {self.name} {self.lacks(module, wanted.extra)}")
        if wanted.lacking and (package := resolve(wanted.lacking)()):
            raise ExportError(f"format {self.name} for {device} {self.lacks(package, wanted.extra)}")

    def offers(self, option: str) -> bool:
        """Whether the format lets choose that member of `FormatOptions`."""
        return bool(
            {
                "packaging": self.packages,
                "activations": self.activations,
                "precision": self.precisions,
                "device": self.devices,
                "socs": self.socs,
                "texts": self.calibrates,
            }[option]
        )

    def check(self, options: FormatOptions) -> None:
        """Refuse options that the format does not offer.

        Raises:
            ExportError: which option.
        """
        if options.packaging is not None:
            check_minimum_os(options.packaging.minimum_os, [self], f"format {self.name}")
            if not self.offers("packaging"):
                raise ExportError(
                    f"format {self.name} has no packages, so no lengths or chunks to choose; leave them out"
                )
        if options.activations is not None and not self.offers("activations"):
            raise ExportError(
                f"format {self.name} has no activations to choose, they are its engine's; leave "
                "--activations out"
            )
        if options.precision is not None and not self.offers("precision"):
            raise ExportError(f"format {self.name} has no precision to choose; leave it out")
        if options.device is not None and not self.offers("device"):
            raise ExportError(f"format {self.name} compiles for no device; leave --device out")
        if options.socs is not None and not self.offers("socs"):
            raise ExportError(f"format {self.name} compiles for no chips; leave --soc out")
        if options.texts is not None and not self.offers("texts"):
            raise ExportError(f"format {self.name} takes no ranges of activations; leave --calibrate out")
        for soc in options.socs or ():
            if soc not in self.socs:
                raise ExportError(unknown_chip(soc, [self], of=f"format {self.name}"))
        for what, given, known in (
            ("precision", options.precision, self.precisions),
            ("activations", options.activations, self.activations),
        ):
            if given is not None and given not in known:
                raise ExportError(unknown(what, given, known, of=f"format {self.name}"))
        if (device := options.device) is not None and device not in self.devices:
            advice = [text for part, text in self.device_advice.items() if part in str(device).lower()]
            ways = f"{advice[0]}; supported: {', '.join(self.devices)}" if advice else ""
            ways = ways or supported(device, self.devices)
            raise ExportError(f"unknown device {shown(device)} for format {self.name}; {ways}")

    def lacks(self, module: str, extra: str = "") -> str:
        """The half sentence about a module that is not installed; `extra` brings it, else the format's."""
        here = (platform.system(), platform.machine())
        if self.systems is not None and here not in self.systems.machines and module != "torch":
            return f"needs the package {module}, which there is for {self.systems.named} only"
        return f"needs the package {module}: pip install '{self._install(extra)}'"


def check_minimum_os(wanted: str | None, rows: Iterable[FormatRow], what: str) -> None:
    """Refuse a version of iOS that none of the formats, which are those of `what`, is for.

    Raises:
        ExportError: what they are for.
    """
    rows = list(rows)
    if wanted is None or any(wanted in row.versions for row in rows):
        return
    known = [f"{version} ({row.name})" for row in rows for version in row.versions]
    if not known:
        raise ExportError(f"{what} is for no version of iOS; leave --min-os out")
    raise ExportError(f"--min-os {shown(wanted)} is no iOS that {what} is for; give {either(known)}")


def unknown_chip(name: str, rows: Iterable[FormatRow], of: str = "") -> str:
    """What is said of a chip that none of the formats compiles for; see `unknown` for `of`."""
    rows = list(rows)
    for row in rows:
        if (why := row.refused_socs.get(name.lower())) is not None:
            return f"chip {shown(name)} is not supported: {why}"
    return unknown("chip", name, [soc for row in rows for soc in row.socs], of=of)


def shared_out(rows: Sequence[FormatRow], options: FormatOptions) -> tuple[list[FormatOptions], list[str]]:
    """What each of several formats is asked for: options that only some of them offer are theirs alone. And
    the names of those formats behind the first that are asked for what the first does not offer.

    Raises:
        ExportError: what none of them offers, or a format that is asked for so, or the first, does not know.
    """
    given = [name for name, value in vars(options).items() if value is not None]
    offered = [name for name in given if any(row.offers(name) for row in rows)]
    first, forms, asked = rows[0], list[FormatOptions](), list[str]()
    for row in rows:
        own = replace(options, **{name: None for name in offered if not row.offers(name)})
        forms.append(own)
        if row is not first and any(row.offers(name) and not first.offers(name) for name in given):
            asked.append(row.name)
        if row is first or row.name in asked:
            row.check(own)
    return forms, asked
