"""What the machine can do at most: what a run is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.bench import ProcessorProbe, probe_disk, probe_processor
from edgekit.tools.benchmark.busy import LITTLE, busy_cores

#: Of each figure of the processor, and of the disk.
PROCESSOR_SECONDS, DISK_SECONDS = 0.3, 1.0


def limits(bundles: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By bundle: rates of the processor, on all usable cores, and of the disk that the bundle is on; and the
    cores that other programs kept busy just before.
    """
    busy = busy_cores()
    processor = of_processor(probe_processor(seconds=PROCESSOR_SECONDS)) | {"busy_cores": busy}
    return {
        bundle: processor | {"disk_bytes_per_second": _disk_rate(bundle)} for bundle in dict.fromkeys(bundles)
    }


def of_processor(probe: ProcessorProbe) -> dict[str, Any]:
    """The processor's part of a report's limits."""
    return {
        "threads": probe.threads,
        "int8_operations_per_second": probe.int8_operations,
        "int8_instructions": probe.int8_instructions,
        "float_operations_per_second": probe.float_operations,
        "float_instructions": probe.float_instructions,
        "memory_bytes_per_second": probe.memory_bytes,
        "product_operations_per_second": probe.product_operations,
        "few_row_operations_per_second": probe.few_row_operations,
        "attention_operations_per_second": probe.attention_operations,
    }


def _disk_rate(bundle: str) -> float | None:
    """Of the bundle's weights; None where it has no such file, or it cannot be read past the cache."""
    from edgekit.runtime.bundle import Bundle, choice

    try:
        weights = Bundle.open(choice.choose(Path(bundle))).weights_path
        found = probe_disk(weights, DISK_SECONDS)
        return found.bytes_per_second if found.direct else None
    except EdgekitError:
        return None  # whoever opens it to run it says what is wrong


def machines(reports: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By machine, as it is named: the most that any of its reports has of each limit, for a rate that was
    reached once can be reached.
    """
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        most, own = found.setdefault(named(report), {}), report["about"].get("limits") or {}
        for name, value in own.items():
            if isinstance(value, int | float) and value > most.get(name, 0.0):
                instructions = name.replace("operations_per_second", "instructions")
                most |= {name: value} | {each: own[each] for each in (instructions,) if each in own}
    return found


def lines(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each machine, with its limits where they were measured."""
    return [_in_words(name, limits) for name, limits in machines(reports).items()]


def in_words(report: Mapping[str, Any]) -> str:
    """The machine of a report, with its limits where they were measured."""
    return lines([report])[0]


def named(report: Mapping[str, Any]) -> str:
    """The machine of a report."""
    machine = report["machine"]
    words = [machine["device"], machine["processor"], f"{machine['cores']} cores", machine["system"]]
    return ", ".join(filter(None, words))


def _in_words(machine: str, found: Mapping[str, Any]) -> str:
    words = [machine]
    for name, unit in (("int8", "int8"), ("float", "float32")):
        if rate := found.get(f"{name}_operations_per_second"):
            words.append(f"{unit} {rate / 1e12:.2f} TOP/s ({found.get(f'{name}_instructions')})")
    for name, what in (("memory", "memory"), ("disk", "disk")):
        if rate := found.get(f"{name}_bytes_per_second"):
            words.append(f"{what} {size(round(rate))}/s")
    if found.get("busy_cores", 0.0) >= LITTLE:
        words.append(f"other programs kept {found['busy_cores']:.1f} cores busy")
    return ", ".join(words)
