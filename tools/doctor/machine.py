"""The processor, memory and what limits it, and how fast the disk is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgekit.flashload.errors import DiskFull, EdgekitError
from edgekit.flashload.sizes import size
from edgekit.runtime.bench import describe_machine, probe_processor
from edgekit.tools.disk_trial import DISK_BYTES, NoFiles, NoRoom, try_disk
from edgekit.tools.doctor.finding import Finding

_SECONDS = 0.2
#: A model that a budget is of use for does not fit in less.
_LITTLE_BYTES = 1 << 30
#: What makes integer products fast, by architecture.
_X86, _ARM = ("avx512_vnni", "avx_vnni"), ("dotprod", "i8mm")
_WANTED = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM, "ARM64": _ARM}


def examine(folder: Path, *, measure: bool) -> Iterator[Finding]:
    """`folder` is where the disk is tried; without `measure` nothing is written and nothing timed."""
    found = describe_machine()
    yield _processor(found, measure=measure)
    yield _memory(found)
    if measure:
        yield on_disk(folder)


def _processor(found: dict[str, object], *, measure: bool) -> Finding:
    features = list(map(str, found["cpu_features"]))  # type: ignore[call-overload]
    wanted = _WANTED.get(str(found["architecture"]), ())
    facts = {name: found[name] for name in ("processor", "device", "architecture", "cores", "cpu_features")}
    said = f"{found['processor']}, {found['cores']} cores"
    if measure:
        rates = probe_processor(seconds=_SECONDS)
        facts |= {
            "int8_operations_per_second": rates.int8_operations,
            "int8_instructions": rates.int8_instructions,
            "float_operations_per_second": rates.float_operations,
            "memory_bytes_per_second": rates.memory_bytes,
        }
        said += (
            f": int8 {rates.int8_operations / 1e12:.2f} TOP/s ({rates.int8_instructions}), float32 "
            f"{rates.float_operations / 1e12:.2f} TOP/s, memory {size(round(rates.memory_bytes))}/s"
        )
    if not wanted:
        return Finding(
            "processor", "note", f"{said}; the portable kernels run here, which are slow", facts=facts
        )
    if not set(wanted) & set(features):
        return Finding(
            "processor",
            "note",
            f"{said}; it has none of {', '.join(wanted)}: products take longer",
            facts=facts,
        )
    return Finding("processor", "works", said, facts=facts)


def _memory(found: dict[str, object]) -> Finding:
    granted, physical = int(str(found["memory_bytes"])), _meminfo("MemTotal:")
    available = _meminfo("MemAvailable:")
    facts = {"memory_bytes": granted, "physical_bytes": physical, "available_bytes": available}
    if not granted:
        return Finding("memory", "note", "the system does not tell how much there is", facts=facts)
    said = f"{size(granted)} for this process"
    if physical and granted < physical:
        said += f", of {size(physical)}: a control group limits it"
    if available:
        said += f"; {size(min(available, granted))} free now"
    if granted < _LITTLE_BYTES:
        return Finding("memory", "note", f"{said}: too little for models of billions of weights", facts=facts)
    return Finding("memory", "works", said, facts=facts)


def _meminfo(name: str) -> int:
    """A line of Linux's /proc/meminfo in bytes; 0 elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def on_disk(folder: Path) -> Finding:
    """A flash file is written there, opened as sessions open theirs, and read for a moment."""
    about = "disk"  # reports have no names of folders
    try:
        trial = try_disk(folder, 5 * _SECONDS)
    except (OSError, EdgekitError) as error:
        reason = getattr(error, "strerror", None) or "what was written cannot be read"
        if isinstance(error, NoRoom | DiskFull):
            reason = "there is not so much free"
        elif isinstance(error, NoFiles):
            reason = "it is the system's own, and takes no files"
        said = f"{DISK_BYTES >> 20} MiB cannot be written and read where --disk says: {reason}"
        return Finding(about, "broken", said, "edgekit doctor --disk FOLDER, where bundles are to be")
    rate = trial.probe.bytes_per_second
    facts = {"bytes_per_second": rate, "io_mode": trial.mode}
    said = f"{size(round(rate))}/s, read {trial.mode}"
    if not trial.probe.direct:
        return Finding(about, "note", f"{said}: what streams fills the page cache, too", facts=facts)
    return Finding(about, "works", said, facts=facts)
