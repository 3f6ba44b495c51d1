"""What a device computes and reads in a second, from the database, from probes, or from reports of `bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bench import DiskProbe, ProcessorProbe
from edgekit.targets.devices import Device, Figure

GB, TERA = 1e9, 1e12
#: Shares of what loops on registers reach, of the native engine's kernels at the sizes of real models: products of
#: 8-bit integers, and attention in float32.
PRODUCTS_SHARE, FLOATS_SHARE = 0.85, 0.7


class NotKnown(EdgekitError):
    """A device lacks a figure that a plan needs."""


@dataclass(frozen=True)
class Rates:
    """A device: bytes per second from flash (`disk`) and from memory, operations per second that products with
    weights (`products`) and attention (`floats`) reach, and bytes that a process may plan with. `sources` say
    of each where it is from.
    """

    name: str
    disk: float
    products: float
    floats: float
    budget: int
    memory: float | None
    sources: Mapping[str, str]
    target: str | None = None
    sustained: float = 1.0


def of_device(device: Device) -> Rates:
    """From the database. Raises NotKnown."""

    def figure(name: str) -> Figure:
        found = device.figures.get(name)
        if found is None:
            raise NotKnown(f"{device.id}: its {name} is not known; give it with --rate {name}=NUMBER")
        return found

    share = figure("compute_eff")
    floats, whole = figure("compute_tflops_fp16"), device.figures.get("compute_tops_int8")
    products = max((each for each in (floats, whole) if each is not None), key=lambda each: each.value)
    memory, sustained = (
        device.figures.get("memory_bandwidth_gbps"),
        device.figures.get("thermal_sustained_fraction"),
    )
    disk, budget = figure("flash_read_gbps"), figure("app_budget_gb")
    return Rates(
        device.name,
        disk.value * GB,
        products.value * share.value * TERA,
        floats.value * share.value * TERA,
        round(budget.value * GB),
        None if memory is None else memory.value * GB,
        {
            "flash": _told(disk, f"{disk.value:g} GB/s"),
            "budget": _told(budget, f"{budget.value:g} GB"),
            "products": f"{_told(products, f'{products.value:g} TOP/s')}, of which {_told(share, f'{share.value:g}')}",
        }
        | ({} if memory is None else {"memory": _told(memory, f"{memory.value:g} GB/s")})
        | ({} if sustained is None else {"when hot": _told(sustained, f"{sustained.value:g} of that")}),
        device.target,
        1.0 if sustained is None else sustained.value,
    )


def _told(figure: Figure, value: str) -> str:
    between = "" if figure.low is None or figure.high is None else f" ({figure.low:g}..{figure.high:g})"
    return f"{value}{between}, {figure.flag}: {figure.source}"


def of_probes(name: str, processor: ProcessorProbe, disk: DiskProbe, budget: int) -> Rates:
    """This machine's, with the native engine."""
    return Rates(
        name,
        disk.bytes_per_second,
        processor.int8_operations * PRODUCTS_SHARE,
        processor.float_operations * FLOATS_SHARE,
        budget,
        processor.memory_bytes,
        {
            "flash": f"{disk.bytes_per_second / GB:.2f} GB/s, measured just now",
            "products": f"{processor.int8_operations / TERA:.2f} TOP/s, measured just now, of which "
            f"{PRODUCTS_SHARE:g}",
            "memory": f"{processor.memory_bytes / GB:.1f} GB/s, measured just now",
        },
        "host",
    )
