"""Energy by powermetrics: what its samples say, and a program in its place that prints such samples.

The keys and units are those of recorded samples: milliwatts of processor, GPU and Neural Engine, whose sum is
`combined_power`, over `elapsed_ns`; energies are millijoules, in whole numbers. Samples after the first begin
with a byte of 0.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgekit.runtime.bench import Bench
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.session import Session, SessionOptions
from edgekit.tools.benchmark.powermetrics import COMMAND, MeterFailed, PowerMetrics, joules_of, own_meter

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" '
    '"http://www.apple.com/DTDs/PropertyList-1.0.dtd">\n<plist version="1.0">\n<dict>\n'
    "<key>is_delta</key><true/>\n"
)


def sample(chip: str, elapsed: str = "<key>elapsed_ns</key><integer>1023685416</integer>") -> bytes:
    gpu = "<key>gpu</key><dict><key>gpu_energy</key><integer>284</integer></dict>"
    date = "<key>timestamp</key><date>2026-01-22T21:07:07Z</date>"
    whole = f"{HEAD}{elapsed}{date}<key>processor</key><dict>{chip}</dict>{gpu}</dict>\n</plist>\n"
    return whole.encode()


def real(name: str, value: float) -> str:
    return f"<key>{name}</key><real>{value}</real>\n"


POWERS = real("cpu_power", 2978.45) + real("gpu_power", 269.614) + real("ane_power", 0)


@pytest.mark.parametrize(
    ("chip", "joules"),
    [
        (POWERS + real("combined_power", 3248.07), 3.24807 * 1.023685416),
        (POWERS, 3.248064 * 1.023685416),
        (real("cpu_power", 1000.0), 1.023685416),
        (real("combined_power", 0), 0.0),
        ("<key>cpu_energy</key><integer>1923</integer><key>gpu_energy</key><integer>5807</integer>", 7.73),
        ("<key>clusters</key><array/>", None),
        (real("cpu_power", -1.0), None),
        ("<key>cpu_power</key><real>nan</real>", None),
        ("<key>cpu_power</key><true/>", None),
        ("<key>cpu_power</key><string>3</string>", None),
    ],
)
def test_a_sample_is_power_over_its_time(chip: str, joules: float | None) -> None:
    found = joules_of(b"\0" + sample(chip))
    assert found == (None if joules is None else pytest.approx(joules, rel=1e-9))


def test_what_is_no_sample() -> None:
    whole = sample(POWERS)
    for data in (b"", whole[:-20], b"<plist></plist>", b"hello", whole.replace(b"processor", b"professor")):
        assert joules_of(data) is None
    timeless = sample(POWERS + "<key>cpu_energy</key><integer>5</integer>", "")
    assert joules_of(timeless) == pytest.approx(0.005), "power is nothing without its time"


def program(folder: Path, body: str) -> Sequence[str]:
    """A command that runs Python in the place of powermetrics."""
    file = folder / "powermetrics.py"
    file.write_text(f"import os, sys, time\nout = sys.stdout.buffer\n{body}\n")
    return sys.executable, str(file)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_samples_add_up_however_they_arrive(tmp_path: Path) -> None:
    one = sample(real("combined_power", 500.0), "<key>elapsed_ns</key><integer>100000000</integer>")
    (tmp_path / "samples").write_bytes(b"\0".join([one] * 5))
    body = f"""
data = open({str(tmp_path / "samples")!r}, "rb").read()
for begin in range(0, len(data), 97):
    out.write(data[begin:begin + 97]); out.flush()
time.sleep(60)
"""
    with PowerMetrics(program(tmp_path, body)) as meter:
        assert meter.joules() is not None
        wait_for(lambda: (meter.joules() or 0) > 0.249)
        assert meter.joules() == pytest.approx(5 * 0.05)
        process = meter._process
    assert process.returncode is not None and meter.joules() is None


def test_a_program_that_says_no_is_quoted(tmp_path: Path) -> None:
    refuses = "sys.stderr.write('powermetrics must be invoked as\\nthe superuser\\n'); sys.exit(1)"
    with pytest.raises(MeterFailed, match="powermetrics must be invoked as the superuser"):
        PowerMetrics(program(tmp_path, refuses)).__enter__()
    with pytest.raises(MeterFailed, match="no-such-program cannot be started: No such file"):
        PowerMetrics(["no-such-program"]).__enter__()
    with pytest.raises(MeterFailed, match="no sample of power"):
        PowerMetrics(program(tmp_path, "out.write(b'<plist></plist>')")).__enter__()


def test_a_meter_that_ends_is_not_known_any_more(tmp_path: Path) -> None:
    (tmp_path / "samples").write_bytes(sample(POWERS))
    body = f"""
out.write(open({str(tmp_path / "samples")!r}, "rb").read()); out.flush()
while not os.path.exists({str(tmp_path / "over")!r}):
    time.sleep(0.01)
"""
    with PowerMetrics(program(tmp_path, body)) as meter:
        assert meter.joules() == pytest.approx(3.248064 * 1.023685416)
        (tmp_path / "over").touch()
        wait_for(lambda: meter.joules() is None)


STEADY = """
while True:
    time.sleep(0.02)
    out.write(open({file!r}, "rb").read()); out.flush()
"""


def test_a_recorder_counts_what_a_test_took(
    shipped_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a joule every 20 ms or more."""
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    half = sample(real("combined_power", 5000.0), "<key>elapsed_ns</key><integer>100000000</integer>")
    (tmp_path / "sample").write_bytes(half)
    command = program(tmp_path, STEADY.format(file=str(tmp_path / "sample")))
    bundle = Bundle.open(shipped_bundle("tiny-gemma", "native"))
    with (
        own_meter("darwin", command) as (joules, unknown),
        Session(bundle, SessionOptions()) as session,
        Bench(session, joules=joules) as bench,
    ):
        assert unknown == "" and joules is not None
        with bench.test({}):
            began = joules() or 0.0
            wait_for(lambda: (joules() or 0.0) > began + 2)
            ended = joules() or 0.0
        (test,) = bench.report()["tests"]
    (energy,) = test["energy"]
    assert energy["meter"] == "own" and ended - began <= energy["joules"] + 1e-9
    assert energy["joules"] <= 0.5 * (test["seconds"] / 0.02 + 2) + ended - began
    assert energy["joules"] == pytest.approx(0.5 * round(energy["joules"] / 0.5))


def test_who_has_no_meter_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_meter("linux") as found:
        assert found == (None, "")
    monkeypatch.setattr(os, "geteuid", lambda: 501, raising=False)
    with own_meter("darwin") as found:
        assert found == (None, "powermetrics needs root: sudo edgekit bench ...")
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    with own_meter("darwin", program(tmp_path, "sys.exit('no such sampler')")) as (joules, unknown):
        assert joules is None and unknown.endswith("no such sampler")
    assert COMMAND[0] == "/usr/bin/powermetrics", "root runs no program of somebody else's folder"
