"""Measurements that the core makes: of sessions while they run, of the machine, of this process."""

from edgekit.runtime.bench.probe import DiskProbe, ProcessorProbe, probe_disk, probe_processor
from edgekit.runtime.bench.recorder import REPORT_VERSION, Bench
from edgekit.runtime.process import describe_machine

__all__ = [
    "REPORT_VERSION",
    "Bench",
    "DiskProbe",
    "ProcessorProbe",
    "describe_machine",
    "probe_disk",
    "probe_processor",
]
