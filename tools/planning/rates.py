"""What a device computes and reads in a second, from the database, from probes, or from a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.targets.devices import FLAGS, Device, Figure, Flag

GB, TERA = 1e9, 1e12


class NotKnown(EdgekitError):
    """A device lacks a figure that a plan needs."""


#: Of the native engine: what a score of the vocabulary head takes, drawing and summing, in float operations
#: on registers, and the disk's rate beside computing cores over that of plain reads. See
#: tools/bench/RESULTS.md.
SCORE_OPERATIONS, BESIDE = 1300.0, 0.9


@dataclass(frozen=True)
class Rates:
    """A device: bytes per second from flash (`disk`) and from memory, operations per second that kernels
    reach in 8-bit products of many rows, and in attention, and bytes that a process may plan with (None: as
    many as it wants). Unpacking a weight takes as long as `unpacking` rows of its product; `score_seconds`
    are of a row's score of one token, beyond its product; reads have `beside` of the disk's rate while all
    cores compute. `figures` are what it was computed from, by name.
    """

    name: str
    disk: float
    products: float
    attention: float
    memory: float
    budget: int | None
    figures: Mapping[str, Figure]
    target: str = "host"
    #: Speed after some minutes over that at the beginning.
    sustained: float = 1.0
    unpacking: float = 0.0
    score_seconds: float = 0.0
    beside: float = 1.0
    #: Bytes that the process holds before its session, where they are known.
    process: int | None = None

    def reached(self, rows: float) -> float:
        """Operations per second in products of so many rows with each weight."""
        return self.products * rows / (rows + self.unpacking)

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
    floats, share = value["compute_tflops_fp16"], value["compute_eff"]
    return Rates(
        device.name,
        value["flash_read_gbps"] * GB,
        max(floats, value.get("compute_tops_int8", 0.0)) * share * TERA,
        floats * share * TERA,
        value.get("memory_bandwidth_gbps", math.inf) * GB,
        round(value["app_budget_gb"] * GB),
        figures,
        device.target,
        value.get("thermal_sustained_fraction", 1.0),
    )


#: Rates that `bench` measures (docs/bench.md), with their units, by the names of the figures that they are.
_MEASURED = {
    "flash_read_gbps": ("disk_bytes_per_second", GB),
    "memory_bandwidth_gbps": ("memory_bytes_per_second", GB),
    "products_256": ("product_operations_per_second", TERA),
    "products_16": ("few_row_operations_per_second", TERA),
    "attention_tflops": ("attention_operations_per_second", TERA),
    "compute_tflops_fp32": ("float_operations_per_second", TERA),
}


def machine_name(machine: Mapping[str, Any], threads: int) -> str:
    """What plans call a machine of a report, or the one here."""
    return ", ".join(filter(None, (machine["device"], machine["processor"], f"{threads} threads")))


def of_limits(name: str, limits: Mapping[str, Any], budget: int | None, source: str) -> Rates:
    """From what was measured on a machine, the "limits" of a report (docs/bench.md), for the native engine.
    Raises NotKnown.
    """
    found = {}
    for figure, (key, unit) in _MEASURED.items():
        if not (rate := limits.get(key)):
            raise NotKnown(f"{name}: its {key} was not measured, without which there is no plan")
        found[figure] = Figure(rate / unit, "measured", source)
    disk, memory, many, few, attention, floats = (limits[key] for key, _ in _MEASURED.values())
    unpacking = _unpacking(few / many)
    return Rates(
        name,
        disk,
        many * (MANY + unpacking) / MANY,
        attention,
        memory,
        budget,
        found,
        unpacking=unpacking,
        score_seconds=SCORE_OPERATIONS / floats,
        beside=BESIDE,
    )


#: Of the memory that a process may have, what a plan takes.
MEMORY_SHARE = 0.75


def with_share(rates: Rates, granted: int) -> Rates:
    """With a budget of MEMORY_SHARE of the bytes that a process may have on a machine."""
    budget = round(MEMORY_SHARE * granted)
    share = f"{MEMORY_SHARE:.0%} of the {size(granted)} that a process may have"
    return replace(rates, budget=budget).with_figure("app_budget_gb", Figure(budget / GB, "estimate", share))


#: Rows of the two products that are measured.
MANY, FEW = 256, 16


def _unpacking(ratio: float) -> float:
    """Rows that a weight's unpacking takes as long as, where a product of FEW rows reaches `ratio` of the
    rate of MANY: both are `products * rows / (rows + unpacking)`.
    """
    least = FEW / MANY
    ratio = min(1.0, max(1.5 * least, ratio))
    return FEW * (1 - ratio) / (ratio - least)
