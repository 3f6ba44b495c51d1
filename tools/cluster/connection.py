"""A Ray cluster that a command works on. Ray is imported here alone, and where a cluster is asked for.

Ray reports to its makers from the head of a cluster, as whoever started that wants it. A program that
connects to one reports nothing by itself (2.60), and is told not to all the same.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import EdgekitError, cut, one_line, quoted
from edgekit.runtime import telemetry
from edgekit.tools.stuck import restored
from edgekit.tools.versions import installed_version

#: Seconds for a connection to the address, and for Ray to find the node that this process is on.
_CONNECT_S, _FIND_NODE_S = 5.0, 10
#: Seconds for all nodes to say what is installed there: each starts a process for it.
_EXAMINE_S = 120.0
#: Read by Ray when it is imported. What the user has said otherwise stays.
_SETTINGS = {
    "RAY_gcs_server_request_timeout_seconds": str(_FIND_NODE_S),
    "RAY_gcs_server_port_wait_time_s": "1",  # the number of attempts
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of calls that nobody waits for any more
}


class ClusterUnusable(EdgekitError):
    """There is no cluster at the address, or one that cannot do the work."""


class WorkerLost(EdgekitError):
    """A worker has ended, or its node has."""


@dataclass(frozen=True)
class Node:
    """A machine as Ray counts them; `name` is for people. Ray gives out its CPUs and GPUs."""

    id: str
    name: str
    cpus: int
    gpus: int


class Call:
    """What a worker was asked, under way or answered."""

    def __init__(self, reference: Any, node: Node) -> None:
        self.reference, self.node = reference, node


class Worker:
    """An object in a process of its own on a node. Its methods run one after the other."""

    def __init__(self, handle: Any, node: Node) -> None:
        self.handle, self.node = handle, node

    def call(self, method: str, *arguments: Any) -> Call:
        """Ask it; see `Cluster.wait` and `Cluster.result`."""
        return Call(getattr(self.handle, method).remote(*arguments), self.node)


class Cluster:
    """A cluster that this process is connected to; `connected` makes it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._workers = list[Worker]()

    def nodes(self) -> list[Node]:
        """The nodes that are alive and have CPUs to give, by name. Raises ClusterUnusable where the head of
        the cluster is gone.
        """
        import ray

        # Ray asks one that is gone for a minute, and ends the process then.
        try:
            _reach(ray.get_runtime_context().gcs_address)
        except OSError as error:
            raise ClusterUnusable(
                f"the head of the Ray cluster at {self.address} is gone; once it is back the same command "
                "goes on"
            ) from error
        alive = [each for each in ray.nodes() if each["Alive"]]
        names = [each["NodeName"] for each in alive]
        found = list[Node]()
        for each in alive:
            name = cut(each["NodeName"])
            if names.count(each["NodeName"]) > 1:
                name += f" ({each['NodeID'][:8]})"
            has = each["Resources"]
            if cpus := int(has.get("CPU", 0)):
                found.append(Node(each["NodeID"], name, cpus, int(has.get("GPU", 0))))
        return sorted(found, key=lambda node: (node.name, node.id))

    def examine(self, told: Callable[[], object] = lambda: None) -> list[Node]:
        """The nodes that have this edgekit: all, but for some that are gone by then. `told` is called now and
        then. Raises ClusterUnusable for a node that lacks it, names it and says what it has.
        """
        import ray

        # Nothing of edgekit can be named in it: it is sent as it is written, to nodes that may have none.
        def has() -> str | None:
            import importlib.metadata

            try:
                import edgekit  # noqa: F401
            except ImportError:
                return None
            try:
                return importlib.metadata.version("edgekit")
            except importlib.metadata.PackageNotFoundError:
                return ""

        remote = ray.remote(num_cpus=0, max_retries=0)(has)
        calls = [Call(remote.options(**_on(node)).remote(), node) for node in self.nodes()]
        used = list[Node]()
        own, end = installed_version(), time.monotonic() + _EXAMINE_S
        for call in calls:
            while not self.wait([call], min(1.0, max(0.0, end - time.monotonic()))):
                told()
                if time.monotonic() > end:
                    raise ClusterUnusable(
                        f"node {call.node.name} did not start a Python process in {_EXAMINE_S:.0f} s; "
                        "look at Ray's logs there, or take the node out of the cluster"
                    )
            try:
                found = self.result(call)
            except WorkerLost as error:
                if any(each.id == call.node.id for each in self.nodes()):
                    raise ClusterUnusable(f"node {call.node.name} cannot be used: {error}") from error
                continue  # Ray counts a node for some seconds after its end
            if found is None:
                raise ClusterUnusable(
                    f"node {call.node.name} has no edgekit; install {own} where Ray is installed there"
                )
            if found and found != own:
                raise ClusterUnusable(
                    f"node {call.node.name} has edgekit {found}, and this is {own}; install the same on all "
                    "nodes"
                )
            used.append(call.node)
        if not used:
            raise ClusterUnusable(
                f"no node of the Ray cluster at {self.address} has CPUs; start one on a machine that has: "
                f"ray start --address={ray.get_runtime_context().gcs_address}"
            )
        return used

    def start(self, kind: type, node: Node, *, cpus: int, gpus: int = 0) -> Worker:
        """An object of a class on a node, which has so many of its CPUs and GPUs from when they are free.
        There is no second attempt: whoever starts it knows what it was doing.
        """
        import ray

        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0, **_on(node)}
        handle: Any = ray.remote(kind).options(**options).remote()
        worker = Worker(handle, node)
        self._workers.append(worker)
        return worker

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Those that are answered, or have failed, as soon as there is one; none behind so many seconds."""
        import ray

        if not calls:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(
            [call.reference for call in calls],
            num_returns=1,
            timeout=timeout_s,
            fetch_local=False,
        )
        if ready:  # the first; all others that are, too
            ready, _ = ray.wait([call.reference for call in calls], num_returns=len(calls), timeout=0)
        done = set(ready)
        return [call for call in calls if call.reference in done]

    def result(self, call: Call) -> Any:
        """The answer of a call that is done. Raises WorkerLost where it, its worker or its node has ended,
        RuntimeError for an error of the program there.
        """
        import ray
        from ray import exceptions

        try:
            return ray.get(call.reference)
        except exceptions.RayTaskError as error:
            raise RuntimeError(f"on node {call.node.name}: {_last_line(error)}") from error
        except exceptions.RayError as error:
            raise WorkerLost(
                f"the worker on node {call.node.name} has ended: {_first_line(error)}"
            ) from error

    def end(self, worker: Worker) -> None:
        """End it at once, if it has not ended."""
        import ray

        if worker in self._workers:
            self._workers.remove(worker)
        with suppress(Exception):
            ray.kill(worker.handle)

    def close(self) -> None:
        """End all workers, at once."""
        for worker in self._workers[:]:
            self.end(worker)


def _on(node: Node) -> Mapping[str, Any]:
    """Options for there and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)}


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """A cluster at `HOST:PORT` of its head, or `auto`, the one that this machine is a node of. At the end of
    the block its workers are ended and the connection is.

    Raises ClusterUnusable within a minute where there is none, or one with another Ray or Python;
    ModuleNotFoundError without Ray.
    """
    _check_address(address)
    telemetry.switch_off()
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    if address != "auto":
        _try(address)
    loggers = logging.getLogger("ray")
    loggers.setLevel(logging.CRITICAL)  # before it connects, too
    cluster = Cluster(address)
    try:
        with _as_before(), _quiet():
            _mute()
            _connect(lambda: ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL), address)
        yield cluster
    finally:
        cluster.close()
        with suppress(Exception):
            ray.shutdown()


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if address == "auto" or (host and port.isdecimal() and "/" not in address):
        return
    raise ClusterUnusable(
        f"{quoted(address)} is no address of a Ray cluster; give HOST:PORT of its head, or auto for the one "
        "that this machine is a node of"
    )


def _try(address: str) -> None:
    """Raises ClusterUnusable where nobody listens: Ray itself would ask for most of a minute."""
    try:
        _reach(address)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or one_line(error)
        raise ClusterUnusable(
            f"{address}: no Ray cluster can be reached there ({said}); ray start --head starts one, and "
            "says its address"
        ) from error


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


def _connect(connect: Callable[[], object], address: str) -> None:
    try:
        connect()
    except (ConnectionError, ValueError) as error:
        reason = one_line(error.__cause__ or error)
        if address == "auto":
            said = "this machine is no node of a running Ray cluster; give HOST:PORT of its head"
        elif "node info" in reason:
            said = (
                f"{address}: this machine is no node of that Ray cluster; make it one: "
                f"ray start --address={address} --num-cpus=0"
            )
        else:
            said = f"{address}: what listens there is no Ray cluster, or one that does not answer"
        raise ClusterUnusable(said) from error
    except Exception as error:
        if not isinstance(error, RuntimeError) or "mismatch" not in str(error):
            raise ClusterUnusable(f"{address}: cannot connect to Ray: {one_line(error)}") from error
        there = dict(
            line.strip().split(": ", 1)
            for line in str(error).partition("This process")[0].splitlines()
            if ": " in line and not line.startswith(("Version", "The"))
        )
        import ray

        raise ClusterUnusable(
            f"{address}: the cluster has Ray {there.get('Ray')} and Python {there.get('Python')}, this "
            f"process Ray {ray.__version__} and Python {platform.python_version()}; they must be the same"
        ) from error


def _mute() -> None:
    """Ray prints what happens to nodes to stdout, whether it was asked to or not."""
    import ray._private.worker

    ray._private.worker._worker_logs_enabled = False


@contextmanager
def _as_before() -> Iterator[None]:
    """Keeps this process's answer to SIGTERM, which Ray puts its own in the place of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the block nothing that is written to stderr appears: Ray's core has no other place yet."""
    sys.stderr.flush()
    kept = os.dup(2)

    def restore() -> None:
        os.dup2(kept, 2)

    with restored(restore):
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 2)
            os.close(nothing)
            yield
        finally:
            restore()
            os.close(kept)


def _first_line(error: Exception) -> str:
    """What Ray says first, without what it says about itself."""
    return one_line(Exception(str(error).strip().partition("\n")[0] or type(error).__name__)).rstrip(".")


def _last_line(error: Exception) -> str:
    """Of the traceback of another process: what was raised there."""
    return one_line(Exception(str(error).strip().rpartition("\n")[2] or type(error).__name__))
