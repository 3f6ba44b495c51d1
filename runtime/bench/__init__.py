"""Measurements that the core makes: of sessions while they run, of the machine, of this process."""

from edgekit.runtime.bench.machine import describe_machine
from edgekit.runtime.bench.probe import DiskProbe, ProcessorProbe, probe_disk, probe_processor
from edgekit.runtime.bench.recorder import REPORT_VERSION, Bench

__all__ = [
    "REPORT_VERSION",
    "Bench",
    "DiskProbe",
    "ProcessorProbe",
    "describe_machine",
    "probe_disk",
    "probe_processor",
]
