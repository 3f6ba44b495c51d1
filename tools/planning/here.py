"""This machine as plans know devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import exact_size, size
from edgekit.runtime.bench import describe_machine, probe_processor
from edgekit.tools.benchmark.limits import of_processor
from edgekit.tools.disk_trial import DISK_BYTES, NoRoom, try_disk
from edgekit.tools.planning.rates import Rates, machine_name, of_limits, with_share

#: Of each figure of the processor, and of the disk.
_PROCESSOR_SECONDS, _DISK_SECONDS = 0.3, 1.0


class NotMeasured(EdgekitError):
    """This machine does not tell, or cannot do, what a plan of it needs."""


def here(folder: Path, budget: int | None) -> Rates:
    """Measure the processor, and the disk that a folder is on; a budget of None takes the share of what
    the process may have that plans do. Raises NotMeasured.
    """
    machine = describe_machine()
    granted = int(machine["memory_bytes"])
    if budget is None and not granted:
        raise NotMeasured("this system does not tell how much memory there is; give a budget with --memory")
    if budget is not None and 0 < granted < budget:
        raise NotMeasured(
            f"--memory {exact_size(budget)}: more than the {size(granted)} that this process may have; "
            "give less"
        )
    try:
        disk = try_disk(folder, _DISK_SECONDS).probe.bytes_per_second
    except NoRoom as error:
        raise NotMeasured(f"{error}; name the folder where bundles are to be with --disk") from error
    except OSError as error:
        raise NotMeasured(
            f"{folder}: {DISK_BYTES >> 20} MiB cannot be written and read there ({error.strerror}); name the "
            "folder where bundles are to be with --disk"
        ) from error
    processor = probe_processor(seconds=_PROCESSOR_SECONDS)
    limits = of_processor(processor) | {"disk_bytes_per_second": disk}
    name = machine_name(machine, processor.threads)
    rates = with_share(of_limits(name, limits, None, "here, just now"), granted)
    return rates if budget is None else replace(rates, budget=budget)
