"""Energy of a Mac's chip by the system's `powermetrics`, as a meter for `edgekit.runtime.bench.Bench`."""

from __future__ import annotations

import math
import os
import plistlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import IO, Any
from xml.parsers.expat import ExpatError

from edgekit.flashload.errors import EdgekitError

#: A sample is of so many milliseconds: the energy of a test is right to one of them at its beginning and its
#: end.
INTERVAL_MS = 100
PROGRAM = "/usr/bin/powermetrics"
COMMAND = (PROGRAM, "--samplers", "cpu_power,gpu_power", "-i", str(INTERVAL_MS), "-f", "plist", "-b", "0")
_END = b"</plist>"
#: Seconds until the first sample; more than a few intervals.
_FIRST_S = 10.0
#: More than any sample has bytes.
_MOST_BYTES = 16 << 20
_PARTS = "cpu", "gpu", "ane"


class MeterFailed(EdgekitError):
    """powermetrics gives no samples."""


def joules_of(sample: bytes) -> float | None:
    """The energy of processor, GPU and Neural Engine in a sample: milliwatts over its nanoseconds, or their
    millijoules where it has no power. None: it says nothing of them.
    """
    try:
        found = plistlib.loads(sample.strip(b"\0 \r\n\t"), fmt=plistlib.FMT_XML)
    except (ValueError, ExpatError, LookupError, TypeError, AttributeError):
        return None
    chip = found.get("processor") if isinstance(found, dict) else None
    if not isinstance(chip, dict):
        return None
    whole = _number(chip.get("combined_power"))
    parts = [value for part in _PARTS if (value := _number(chip.get(f"{part}_power"))) is not None]
    nanoseconds = _number(found.get("elapsed_ns"))
    if nanoseconds is not None and (whole is not None or parts):
        return (sum(parts) if whole is None else whole) * nanoseconds * 1e-12
    energies = [value for part in _PARTS if (value := _number(chip.get(f"{part}_energy"))) is not None]
    return sum(energies) * 1e-3 if energies else None


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and value >= 0 else None


class PowerMetrics:
    """Counts the energy of samples while its block lasts; `joules` is for `Bench`. Raises MeterFailed where
    the program gives none.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._sum, self._samples, self._ended = 0.0, 0, False
        self._first = threading.Event()  # a sample, or the end

    def __enter__(self) -> PowerMetrics:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise MeterFailed(f"{self._command[0]} cannot be started: {error.strerror}") from error
        out, said = self._process.stdout, self._process.stderr
        assert out is not None and said is not None, "both are pipes"
        self._words = list[bytes]()
        self._threads = [
            threading.Thread(target=self._count, args=(out,), daemon=True),
            threading.Thread(target=self._words.extend, args=(said,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._first.wait(_FIRST_S)
        if not self._samples:
            self._close()
            words = b"".join(self._words[:4]).decode(errors="replace").split()
            reason = " ".join(words) or f"no sample of power came within {_FIRST_S:g} s"
            raise MeterFailed(f"{self._command[0]}: {reason}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def joules(self) -> float | None:
        """Since the first sample; None once there are no more."""
        return None if self._ended else self._sum

    def _count(self, out: IO[bytes]) -> None:
        held = b""
        while data := os.read(out.fileno(), 1 << 16):
            *samples, held = (held + data).split(_END)
            for sample in samples:
                found = joules_of(sample + _END)
                if found is not None:
                    self._sum += found
                    self._samples += 1
                    self._first.set()
            if len(held) > _MOST_BYTES:
                break
        self._ended = True
        self._first.set()

    def _close(self) -> None:
        self._process.terminate()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None, "both are pipes"
            pipe.close()


@contextmanager
def own_meter(
    system: str = sys.platform, command: Sequence[str] = COMMAND
) -> Iterator[tuple[Callable[[], float | None] | None, str]]:
    """A meter for `Bench` where the core has none but the system's program does, and why there is none; empty
    where the core looks for meters itself.
    """
    if system != "darwin":
        yield None, ""
        return
    if os.geteuid() != 0:
        yield None, "powermetrics needs root: sudo edgekit bench ..."
        return
    with ExitStack() as until:
        try:
            meter = until.enter_context(PowerMetrics(command))
        except MeterFailed as error:
            yield None, str(error)
            return
        yield meter.joules, ""
