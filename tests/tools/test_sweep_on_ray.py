"""`edgekit sweep --ray` on two nodes, one of which is lost in the middle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.checkpoints import write_checkpoint

from edgekit.tools.cli import main
from edgekit.tools.sweep.grid import grid_of
from edgekit.tools.sweep.on_ray import NodeWorker, Where
from edgekit.tools.sweep.store import BEGUN, DONE, FAILED, UNITS, Outcome, Store, left
from edgekit.tools.sweep.units import jobs_of

pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs, which is this machine's node."""
    from ray.cluster_utils import Cluster

    # Names of sockets have at most 107 bytes.
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", short)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield found
    finally:
        found.shutdown()
        shutil.rmtree(short, ignore_errors=True)


def test_a_node_with_a_folder_of_its_own_is_told_what_is_known(tmp_path: Path) -> None:
    (job,) = jobs_of(grid_of({"model": "tiny-gemma", "memory": ["100MB", "all"]}))
    there = Store(tmp_path / "there")
    known: list[Outcome | None] = [
        {"state": DONE, "manifest": "here"},
        {"state": DONE},
        {"state": DONE},
        None,
    ]
    where = Where(str(there.folder), str(tmp_path), "token")
    assert NodeWorker().begin(where, job, known) is False
    assert left(job, there) == [job.export, job.verify, job.benches[1]], "the bundle lies elsewhere"
    there.put(job.export, {"state": BEGUN})
    there.put(job.benches[0], {"state": FAILED, "error": "before"})
    (there.folder / UNITS / "shared").write_text("token")
    assert NodeWorker().begin(where, job, known) is True
    assert there.outcome(job.export)["state"] == BEGUN and there.is_done(job.benches[0])


def done_in(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_bytes()) for path in (folder / UNITS).glob("*-*.json")]
    return [each for each in found if each["state"] == DONE]


def test_what_a_lost_node_had_is_done_by_another(cluster: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "llada", n_layers=1)
    file, folder = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(
        f'model = "{tmp_path / "model"}"\nquant = ["int8", "bf16"]\nforwards = 1\nruns = 1\n'
        "probe = false\nwarmups = 0\n"
    )
    _, lost = (cluster.add_node(num_cpus=1) for _ in range(2))
    words = ["sweep", str(file), "-o", str(folder), "--table", "jsonl", "--ray", cluster.address]
    begun = [sys.executable, "-m", "edgekit", *words]
    with subprocess.Popen(begun, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end = time.monotonic() + 90  # both nodes have begun
        while len(list(folder.glob(f"{UNITS}/export-*"))) < 2:
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.05)
        cluster.remove_node(lost, allow_graceful=False)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    rows = [json.loads(line) for line in stdout.splitlines()]
    assert [row["preset"] for row in rows] == ["int8", "bf16"]
    assert all(row["forward_ms"] > 0 and row["error"] is None for row in rows)
    assert len(done_in(folder)) == 6 and all(each["node"] for each in done_in(folder))
    assert "goes on at another one" in stderr and "of its own" not in stderr, "the folder is shared"
    # The names of two nodes on one machine are told apart.
    assert all("(" in each["node"] for each in done_in(folder))
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 0 and again.stdout == stdout, "all is there; nobody is asked"
