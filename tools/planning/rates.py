"""What a device computes and reads in a second, from the database, from probes, or from a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.targets.devices import FLAGS, Device, Figure, Flag

GB, TERA = 1e9, 1e12


class NotKnown(EdgekitError):
    """A device lacks a figure that a plan needs."""


@dataclass(frozen=True)
class Kernels:
    """How much of what a processor can do its kernels reach: of 8-bit `products` and of `floats`. Unpacking a
    weight takes as long as `unpacking` rows of its product, a score of the vocabulary head as long as
    `per_score` 8-bit operations, and while they compute reads have `beside` of the disk's rate.
    """

    products: float
    floats: float
    unpacking: float
    per_score: float
    beside: float

    def share(self, rows: float) -> float:
        """Of the peak, of products of so many rows with each weight."""
        return self.products * rows / (rows + self.unpacking)


#: The native engine's, as `python -m edgekit.tools.bench.plans` finds them; see tools/bench/RESULTS.md.
NATIVE = Kernels(products=0.9, floats=0.5, unpacking=7.0, per_score=1000.0, beside=0.9)


@dataclass(frozen=True)
class Rates:
    """A device: bytes per second from flash (`disk`) and from memory, operations per second of 8-bit products
    and of float sums at their peak, bytes that a process may plan with (None: as many as it wants), and what
    kernels reach of that. `figures` are what it was computed from, by name.
    """

    name: str
    disk: float
    products: float
    floats: float
    memory: float
    budget: int | None
    kernels: Kernels
    figures: Mapping[str, Figure]
    target: str = "host"
    #: Speed after some minutes over that at the beginning.
    sustained: float = 1.0

    def with_figure(self, name: str, figure: Figure) -> Rates:
        """The same, with where one more of its figures is from."""
        return replace(self, figures={**self.figures, name: figure})

    @property
    def flag(self) -> Flag:
        """How far the weakest of its figures goes."""
        return max((figure.flag for figure in self.figures.values()), key=FLAGS.index)


#: Figures of a device that plans use, with their units.
PLANNED = {
    "flash_read_gbps": "GB/s",
    "app_budget_gb": "GB",
    "compute_tops_int8": "TOP/s",
    "compute_tflops_fp16": "TFLOP/s",
    "compute_eff": "",
    "memory_bandwidth_gbps": "GB/s",
    "thermal_sustained_fraction": "",
}
_NEEDED = ("flash_read_gbps", "app_budget_gb", "compute_tflops_fp16", "compute_eff")


def of_device(device: Device) -> Rates:
    """From the database. Raises NotKnown."""
    figures = {name: device.figures[name] for name in PLANNED if name in device.figures}
    for name in _NEEDED:
        if name not in figures:
            raise NotKnown(f"{device.id}: its {name} is not known, without which there is no plan")
    value = {name: figure.value for name, figure in figures.items()}
    floats = value["compute_tflops_fp16"]
    share = value["compute_eff"]
    return Rates(
        device.name,
        value["flash_read_gbps"] * GB,
        max(floats, value.get("compute_tops_int8", 0.0)) * TERA,
        floats * TERA,
        value.get("memory_bandwidth_gbps", math.inf) * GB,
        round(value["app_budget_gb"] * GB),
        # `compute_eff` is what products reach; how much unpacking and scores take is in it.
        Kernels(share, share, unpacking=0.0, per_score=0.0, beside=1.0),
        figures,
        device.target,
        value.get("thermal_sustained_fraction", 1.0),
    )


def of_limits(name: str, limits: Mapping[str, Any], budget: int | None, source: str) -> Rates:
    """From what was measured on a machine, the "limits" of a report (docs/bench.md), for the native engine.
    Raises NotKnown.
    """
    names = {
        "flash_read_gbps": ("disk_bytes_per_second", GB),
        "compute_tops_int8": ("int8_operations_per_second", TERA),
        "compute_tflops_fp32": ("float_operations_per_second", TERA),
        "memory_bandwidth_gbps": ("memory_bytes_per_second", GB),
    }
    found = {}
    for figure, (key, unit) in names.items():
        if not (rate := limits.get(key)):
            raise NotKnown(f"{name}: its {key} was not measured, without which there is no plan")
        found[figure] = Figure(rate / unit, "measured", source)
    disk, products, floats, memory = (limits[key] for key, _ in names.values())
    return Rates(name, disk, products, floats, memory, budget, NATIVE, found)
