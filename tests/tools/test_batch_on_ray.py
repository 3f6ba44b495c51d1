"""`edgekit batch --ray`: the lines of a local run, whatever happens to the nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.api.batch import BatchCosts
from edgekit.tools.batch.answers import Answered, Room
from edgekit.tools.batch.lines import Line
from edgekit.tools.batch.node_worker import Exchanged, Opening, Refusal
from edgekit.tools.batch.on_cluster import NodeWorkers, WorkersLost
from edgekit.tools.cli import main
from edgekit.tools.cluster.connection import Call, ClusterUnusable, Node, WorkerLost
from edgekit.tools.console import Steps
from edgekit.tools.options import Size
from edgekit.tools.request import Request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are told apart by their folders")

TASKS = ("What is 23 + 45?", "Copy this: red 7", "Sort: 9 4 7 1", "Repeat: red cat 42", "What is 7 + 8?")
#: A node that is killed is missed by its head within seconds.
SOON_NOTICED = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
                "health_check_failure_threshold": 3}  # fmt: skip
#: Passes that take some time, so that there is some to be interrupted in.
SLOW = ("--resident", "0", "--sequences", "2", "--threads", "1", "--set", "stability_threshold=null")


def command(*words: object, code: str = "") -> list[str]:
    return [
        sys.executable,
        "-c",
        code + "from edgekit.__main__ import main; main()",
        "batch",
        *map(str, words),
    ]


def batch(*words: object, cwd: Path | None = None, code: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words, code=code), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


def refused(*words: object, cwd: Path | None = None, code: str = "") -> str:
    """The last line on stderr, the only one of an error."""
    done = batch(*words, cwd=cwd, code=code)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and not done.stdout and last.startswith("edgekit: error: "), done
    return last


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of an output without seconds."""
    found = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    for each in found:
        each.get("statistics", {}).pop("seconds", None)
    return found


@pytest.fixture(scope="module")
def bundle(shipped_bundle: Callable[..., Path]) -> Path:
    return shipped_bundle("tiny-gemma", "native")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines that take different times, of several kinds, one of them wrong."""
    lines: list[Any] = [{"prompt": TASKS[i % 5], "seed": i, "steps": 4 + 7 * i % 23} for i in range(24)]
    lines[3] = "wrong"
    lines[5] = {"custom_id": "x", "body": {"messages": [{"role": "user", "content": TASKS[4]}], "seed": 5}}
    lines[7] = {"prompt": [5, 6, 7, 8], "id": 7, "max_new_tokens": 16}
    path = tmp_path_factory.mktemp("many") / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(bundle: Path, source: Path) -> list[dict[str, Any]]:
    """What a local run writes."""
    out = source.with_name("whole.jsonl")
    assert CliRunner().invoke(main, ["batch", *map(str, (bundle, source, out, *SLOW))]).exit_code == 1
    return read(out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine. Their processes end with this one, whatever ends it."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    # Names of sockets are short, and these are below.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        made = cluster_utils.Cluster()
        try:
            with patch.context() as started_in:
                started_in.chdir(folder)
                node(made, include_dashboard=False, _system_config=SOON_NOTICED)
                node(made)
            yield made
        finally:
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def node(cluster: Any, **given: object) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=80 << 20, **given)


def worker_processes() -> list[int]:
    """Processes that answer lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            named = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if named.startswith(b"ray::NodeWorker"):
            found.append(int(folder.name))
    return found


def test_the_lines_are_those_of_a_local_run(
    cluster: Any, bundle: Path, source: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = batch(bundle, source, out, *SLOW, "--memory", "4GB", "--ray", cluster.address)
    note, _, summary, errors = done.stderr.splitlines()
    assert done.returncode == 1 and not done.stdout and note.startswith("note: 1 line cannot be used")
    assert "23 answers in " in summary and ", 4 at a time on 2 nodes: " in summary
    assert "read per answer" in summary and errors.startswith("1 of 24 lines has an error")
    assert read(out) == whole and os.listdir(tmp_path) == ["out"]


def test_the_command_of_the_page_answers_there(cluster: Any, bundle: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"^\$ edgekit batch (.* --ray FIRST:6379.*?)(?: +#.*)?$", page, re.MULTILINE)
    (lines,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "prompts.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "tiny").symlink_to(bundle)
    done = batch(*words.replace("FIRST:6379", cluster.address).split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each["text"] for each in read(tmp_path / "answers.jsonl")] == ["68", "red 7", "blue 9"]


def wait_for(out: Path, lines: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not out.exists() or out.read_bytes().count(b"\n") < lines:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


def test_ctrl_c_leaves_no_worker_and_the_same_command_goes_on(
    cluster: Any, bundle: Path, source: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command(bundle, source, out, *SLOW, "--ray", "auto"), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        wait_for(out, 2, process)
        assert worker_processes()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and not stdout
    said = f"edgekit: interrupted; the same command goes on behind what is in {out}"
    assert stderr.splitlines()[-1] == said
    end = time.monotonic() + 60
    while worker_processes():
        assert time.monotonic() < end
        time.sleep(0.05)
    there = len(read(out))
    assert 2 <= there < len(whole) and read(out) == whole[:there]
    done = CliRunner().invoke(main, ["batch", *map(str, (bundle, source, out, *SLOW))])
    assert done.exit_code == 1 and read(out) == whole  # here again, without the cluster


def test_a_node_that_is_killed_loses_and_doubles_nothing(
    cluster: Any, bundle: Path, source: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    third = node(cluster)
    words = command(bundle, source, out, *SLOW, "--ray", cluster.address, "--json")
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(out, 3, process)
        cluster.remove_node(third, allow_graceful=False)
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 1, stderr
    told = json.loads(stdout)
    assert (told["workers"], told["sequences"], told["answers"], told["errors"]) == (3, 6, 23, 1)
    assert told["passes"] and told["bytes_read"] and not stderr
    assert read(out) == whole and os.listdir(tmp_path) == ["out"]


def test_a_node_with_another_bundle_or_none_is_named(
    cluster: Any, bundle: Path, shipped_bundle: Callable[..., Path], source: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each process has a folder of its own at /proc/self/cwd; workers have that of their node."""
    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    for folder, made in ((here, bundle), (there, shipped_bundle("tiny-llada", "native"))):
        folder.mkdir()
        (folder / "tiny").symlink_to(made)
    words = ("/proc/self/cwd/tiny", source, out, "--ray", cluster.address)
    assert "error: node " in (said := refused(*words, cwd=here)) and "/proc/self/cwd/tiny" in said
    Path(os.environ["RAY_TMPDIR"], "tiny").symlink_to(bundle)  # where the nodes were started
    monkeypatch.chdir(there)
    other = node(cluster, node_name="other")
    said = refused(*words, cwd=here)
    assert "error: node other: /proc/self/cwd/tiny is another bundle there (digest " in said
    cluster.remove_node(other)
    assert not out.exists()


def test_addresses_that_cannot_be(bundle: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    begun = time.monotonic()
    said = refused(bundle, source, out, "--ray", "127.0.0.1:1")
    assert "127.0.0.1:1: no Ray cluster can be reached there (Connection refused); ray start" in said
    assert "'ray://head:10001' is no address of a Ray cluster" in refused(
        bundle, source, out, "--ray", "ray://head:10001"
    )
    assert time.monotonic() < begun + 60 and not out.exists()


def test_another_edgekit_is_refused(cluster: Any, bundle: Path, source: Path, tmp_path: Path) -> None:
    code = "from edgekit.tools.cluster import connection as c; c.installed_version = lambda: '9.9'; "
    said = refused(bundle, source, tmp_path / "out", "--ray", cluster.address, code=code)
    assert "error: node " in said and ", and this is 9.9; install the same on all nodes" in said


def in_process(*words: object) -> Result:
    return CliRunner().invoke(main, ["batch", *map(str, words)])


def test_without_ray_its_extra_is_named_and_nothing_to_answer_needs_none(
    bundle: Path, source: Path, whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = in_process(bundle, source, tmp_path / "out", "--ray", "auto")
    assert done.exit_code == 2 and "pip install 'edgekit[ray]'" in done.stderr
    out = source.with_name("whole.jsonl")
    done = in_process(bundle, source, out, *SLOW, "--ray", "auto")
    assert done.exit_code == 1 and "nothing to answer: 24 of 24" in done.stderr


# --- lines dealt out to workers that do as they are told ----------------------------------------------------


class FakeCluster:
    """Nodes whose workers answer a line of each sequence with every call; `dies` says which calls do not come
    back: by name of the node and the numbers of the lines that are there.
    """

    def __init__(self, *names: str, dies: Callable[[str, Sequence[int]], bool] = lambda name, lines: False):
        self.alive = [Node(name, name, 2, 0) for name in names]
        self.dies = dies
        self.started = list[str]()
        self.most = dict[str, int]()
        self.answered = list[tuple[str, int]]()
        self.refusal: Mapping[str, Refusal] = {}

    def nodes(self) -> list[Node]:
        return self.alive

    def start(self, kind: type, node: Node, *, cpus: int, gpus: int) -> FakeWorker:
        self.started.append(node.name)
        return FakeWorker(self, node)

    def end(self, worker: FakeWorker) -> None:
        worker.held.clear()

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        return list(calls)

    def result(self, call: Call) -> Any:
        return call.reference()


class FakeWorker:
    def __init__(self, cluster: FakeCluster, node: Node) -> None:
        self.cluster, self.node, self.held, self.passes = cluster, node, list[Line](), 0

    def call(self, method: str, *arguments: Any) -> Call:
        return Call(lambda: getattr(self, method)(*arguments), self.node)

    def open(self, opening: Opening) -> int | Refusal:
        return self.cluster.refusal.get(self.node.name, 3)

    def exchange(self, lines: Sequence[Line]) -> Exchanged:
        name, cluster = self.node.name, self.cluster
        self.held += lines
        cluster.most[name] = max(cluster.most.get(name, 0), len(self.held))
        if cluster.dies(name, [each.number for each in self.held]):
            raise WorkerLost(f"the worker on node {name} has ended: killed")
        done, self.held = self.held[:3], self.held[3:]
        cluster.answered += [(name, each.number) for each in done]
        self.passes += 1
        costs = BatchCosts(self.passes, 10 * self.passes, 5 * self.passes, 0.0)
        return Exchanged([Answered(each.number, 0, {}, 1) for each in done], costs)


def dealt(cluster: FakeCluster, lines: int) -> tuple[list[int], NodeWorkers]:
    """Numbers of the lines that were answered."""
    request = Request(None, False, None, None, None, None, {})
    opening = Opening("tiny", "", request, False, Room(frozenset(), lines, None))
    found = list[int]()
    with Steps("", quiet=True) as steps:
        workers = NodeWorkers(cluster, opening, steps, lines, gpus=False)  # type: ignore[arg-type]
        workers.open(cluster.nodes())
        given = (Line(number, 0, b"{}") for number in range(1, lines + 1))
        workers.run(given, lambda answered: found.append(answered.number), lambda: None)
    return found, workers


def test_workers_are_kept_busy_and_end_together() -> None:
    cluster = FakeCluster("a", "b")
    found, workers = dealt(cluster, 60)
    assert sorted(found) == list(range(1, 61)) and (workers.workers, workers.sequences) == (2, 6)
    assert cluster.most == {"a": 6, "b": 6}  # as many wait as are at work
    assert {name for name, _ in cluster.answered[-6:]} == {"a", "b"}
    shares = [sum(name == each for name, _ in cluster.answered) for each in "ab"]
    assert abs(shares[0] - shares[1]) <= 3
    assert workers.costs.rows == 10 * workers.costs.passes == 2 * workers.costs.bytes_read
    assert 20 <= workers.costs.passes <= 22


def test_lines_of_a_lost_worker_are_done_by_others_and_on_its_node_again() -> None:
    once = [True]

    def dies(name: str, lines: Sequence[int]) -> bool:
        return name == "b" and len(cluster.answered) > 12 and bool(once) and once.pop()

    cluster = FakeCluster("a", "b", dies=dies)
    found, workers = dealt(cluster, 60)
    assert sorted(found) == list(range(1, 61)) and cluster.started == ["a", "b", "b"]
    assert 20 <= workers.costs.passes <= 22


def test_a_line_that_ends_every_worker_is_named() -> None:
    cluster = FakeCluster("a", "b", dies=lambda name, lines: 7 in lines)
    with pytest.raises(WorkersLost, match="^line 7: 3 workers ended while they had it; .* killed; look at"):
        dealt(cluster, 60)


def test_without_any_worker_left_one_line_says_why() -> None:
    def dies(name: str, lines: Sequence[int]) -> bool:
        if len(cluster.answered) > 12:
            cluster.alive.clear()
        return not cluster.alive

    cluster = FakeCluster("a", "b", dies=dies)
    with pytest.raises(WorkersLost, match="no worker is left .*killed.*; the same command goes on"):
        dealt(cluster, 60)


def test_a_node_that_cannot_open_the_bundle_ends_the_batch_with_its_name() -> None:
    cluster = FakeCluster("a", "b")
    cluster.refusal = {"b": Refusal("tiny is another bundle there")}
    with pytest.raises(EdgekitError, match="^node b: tiny is another bundle there"):
        dealt(cluster, 6)
    cluster.refusal = {"a": Refusal("too small", 77)}
    with pytest.raises(BudgetExceeded, match="^node a: too small") as caught:
        dealt(cluster, 6)
    assert caught.value.needed_bytes == 77


def test_nodes_that_join_are_used_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgekit.tools.batch.on_cluster._JOINED_S", 0.0)
    cluster = FakeCluster("a")
    cluster.refusal = {"c": Refusal("has no such bundle")}

    def dies(name: str, lines: Sequence[int]) -> bool:
        cluster.alive = [Node(each, each, 2, 0) for each in "abc"]
        return False

    cluster.dies = dies
    found, workers = dealt(cluster, 60)
    assert sorted(found) == list(range(1, 61)) and workers.workers == 2
    assert {name for name, _ in cluster.answered} == {"a", "b"} and cluster.started == ["a", "b", "c"]


def test_a_version_that_differs_is_told_from_what_ray_says() -> None:
    from edgekit.tools.cluster.connection import _connect

    pytest.importorskip("ray")

    def connect() -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\n"
            "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
        )

    with pytest.raises(ClusterUnusable, match="^h:1: the cluster has Ray 2.50.0 and Python 3.12.1, this pro"):
        _connect(connect, "h:1")


def test_a_size_reaches_another_process_as_it_is() -> None:
    import pickle

    found = pickle.loads(pickle.dumps(SimpleNamespace(memory=Size(5, "5B")))).memory
    assert (found, found.text) == (5, "5B")
