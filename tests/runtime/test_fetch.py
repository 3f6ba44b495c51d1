"""Bundles that arrive, from a server that fails in every way: they are whole, or they are not there."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import arriving, sealing
from support.arriving import WEIGHTS, contents
from support.range_server import EARLY_HINTS, NOTHING_OF_USE, Asked, Fault, RangeServer

import edgekit
from edgekit.flashload.errors import (
    ChecksumMismatch,
    EdgekitError,
    FetchFailed,
    InvalidRequest,
    MalformedFile,
    OpenFailed,
    UnsupportedBundle,
    WriteFailed,
)
from edgekit.flashload.fetch import Fetch, Progress, Request, Step
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.sizes import size
from edgekit.runtime.fetch import fetch
from edgekit.runtime.fetch.download import Arrived
from edgekit.tools.cli import main
from edgekit.tools.commands.fetch import beside


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arriving.make(tmp_path_factory.mktemp("served") / "bundle")


@pytest.fixture
def server(bundle: Path) -> Iterator[RangeServer]:
    with RangeServer(bundle) as serving:
        yield serving


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed sources are asked again at once."""
    monkeypatch.setattr("edgekit.runtime.fetch.download.WAIT_SHARE", 0.0)


#: What is asked for of the weights first.
HEADER = "bytes=0-16383"


def seal_of(bundle: Path) -> str:
    return (bundle / MANIFEST_NAME).read_bytes()[15:79].decode()


def asked_bytes(bundle: Path, request: Request) -> bytes:
    """What a request asks for."""
    data = (bundle / request.name).read_bytes()
    return data[request.offset :][: request.nbytes or len(data)]


# --- whole ----------------------------------------------------------------------------------------------


def test_a_bundle_arrives_as_it_was_served(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    done = fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)
    manifest = (bundle / MANIFEST_NAME).stat().st_size
    assert done.fetched == done.nbytes + manifest == server.sent
    assert not done.current and done.damaged == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]
    sealing.check_all(tmp_path / "here")


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-llada"])
@pytest.mark.parametrize("form", ["native", "mlx"])
def test_real_bundles_arrive_and_run(name, form, shipped_bundle, tmp_path: Path) -> None:
    served = shipped_bundle(name, form)
    with RangeServer(served) as server:
        fetch(server.url, tmp_path / "here", sha256=seal_of(served))
    assert contents(tmp_path / "here") == contents(served)


def test_from_a_folder(bundle: Path, tmp_path: Path) -> None:
    fetch(str(bundle), tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no FIFOs")
def test_a_source_that_has_no_file_there(bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")
    (served / WEIGHTS).unlink()
    os.mkfifo(served / WEIGHTS)
    fetch([str(served), str(bundle)], tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)
    with pytest.raises(FetchFailed, match="weights.safetensors is no file"):
        fetch(str(served), tmp_path / "alone")


def test_a_bundle_that_is_there_is_not_fetched_again(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    fetch(server.url, tmp_path / "here")
    before = server.sent
    assert fetch(server.url, tmp_path / "here").current
    assert server.sent - before == (bundle / MANIFEST_NAME).stat().st_size
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]


def test_a_server_without_ranges_is_read_from_the_start(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    server.without_ranges = True
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


@pytest.mark.parametrize("connections", [1, 4, 16])
@pytest.mark.parametrize("there", ["nothing", "holes", "bundle"])
def test_a_server_without_ranges_gives_a_file_once(connections: int, there: str, tmp_path: Path) -> None:
    """Of what is here already, too: it goes by once, and nothing is asked for beside it."""
    sizes = 30_000_000, 30_000_000, 16384, 30_000_000, 30_000_000
    served = arriving.make(tmp_path / "served", sizes)
    here = tmp_path / "here"
    if there == "bundle":
        arriving.make(here, sizes, others={1: 9, 4: 9})
    if there == "holes":  # a run that is whole, two with holes, one with other bytes; the last is not here
        left = tmp_path / "here.arriving"
        left.mkdir()
        (left / ".edgekit-arriving").write_text("arriving\n")
        data = (served / WEIGHTS).read_bytes()
        with open(left / WEIGHTS, "wb") as file:
            for begin, end in [(0, 40 << 20), (48 << 20, 90 << 20)]:
                file.seek(begin)
                file.write(data[begin:end])
            file.seek(70_000_000)
            file.write(bytes(range(256)) * 4000)
            file.truncate(len(data))
    with RangeServer(served, without_ranges=True) as server:
        done = fetch(server.url, here, connections=connections)
    assert contents(here) == contents(served)
    assert done.found > 30_000_000 if there == "holes" else done.found == 0
    assert done.copied > 60_000_000 if there == "bundle" else done.copied == 0
    nbytes = sum(path.stat().st_size for path in served.rglob("*") if path.is_file())
    # What a connection holds that is given up before anything was read from it.
    assert server.sent <= nbytes + (connections - 1) * 6_000_000
    assert done.fetched <= nbytes
    assert sum(asked.sent == (served / WEIGHTS).stat().st_size for asked in server.log) <= 1
    assert server.paths().count(WEIGHTS) <= connections + 1


def test_one_answer_without_ranges_ends_the_others(tmp_path: Path) -> None:
    """The core takes of it what is wanted, in whatever order answers come."""
    served = arriving.make(tmp_path / "served", (400_000, 400_000))
    data = (served / WEIGHTS).read_bytes()
    fetching = Fetch(tmp_path / "here", ["there"], request_bytes=64 << 10)
    open_ones = []
    while len(open_ones) < 4:
        step, request = fetching.next()
        if request is None:
            assert step is Step.WORKING
        elif request.name == WEIGHTS and request.offset:
            open_ones.append(request)
        else:
            fetching.write(request, asked_bytes(served, request))
            fetching.end(request)
    part, first, second, third = open_ones
    fetching.answer(part, 206, f"bytes {part.offset}-{part.offset + part.nbytes - 1}/{len(data)}")
    fetching.answer(second, 200, None)
    assert fetching.next()[0] is Step.WAIT  # nothing is asked for beside it
    for other in (first, third):
        fetching.answer(other, 200, None)  # is over, and no mistake of the transport
        assert not fetching.write(other, data[:1000])
        fetching.end(other)
    assert not fetching.write(part, asked_bytes(served, part))  # one that knows ranges is left alone
    parts = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]
    assert [fetching.write(second, part) for part in parts] == [True] * (len(parts) - 1) + [False]
    while (step := fetching.next())[0] is not Step.READY:
        assert step[0] is Step.WORKING
    fetching.finish()
    assert contents(tmp_path / "here") == contents(served)


def test_connections_share_the_work(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    fetching = Fetch(tmp_path / "here", [server.url], request_bytes=64 << 10)
    steps = [fetching.next()]
    assert steps[0][0] is Step.ASK and fetching.next()[0] is Step.WAIT  # nothing is known before the manifest
    request = steps[0][1]
    assert request is not None and (request.name, request.nbytes) == (MANIFEST_NAME, 0)
    assert fetching.write(request, (bundle / MANIFEST_NAME).read_bytes())
    fetching.end(request)
    asked = []
    while (step := fetching.next())[0] is Step.ASK:
        assert step[1] is not None
        asked.append(step[1])
    assert {each.name for each in asked} == {WEIGHTS, "tokenizer/tokenizer.json", "README.md"}
    for each in reversed(asked):  # in any order
        data = (bundle / each.name).read_bytes()[each.offset : each.offset + each.nbytes]
        assert not fetching.write(each, data)  # it is over with its last byte
        fetching.end(each)
    while (step := fetching.next())[0] is not Step.READY:
        if step[0] is Step.ASK:
            assert step[1] is not None and step[1].nbytes <= 64 << 10
            data = (bundle / WEIGHTS).read_bytes()[step[1].offset : step[1].offset + step[1].nbytes]
            fetching.write(step[1], data)
    fetching.finish()
    assert contents(tmp_path / "here") == contents(bundle)
    with pytest.raises(InvalidRequest, match="in its place already"):
        fetching.finish()


def test_requests_that_are_given_back_are_no_failures(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    fetching = Fetch(tmp_path / "here", [server.url])
    for _ in range(20):
        request = fetching.next()[1]
        assert request is not None and request.wait_s == 0
        fetching.give_back(request)
        fetching.give_back(request)
    assert (tmp_path / "here.arriving").exists()
    fetching.close()
    assert list(tmp_path.iterdir()) == []  # nothing has arrived
    fetching = Fetch(tmp_path / "here", [server.url])
    fetching.discard()
    with pytest.raises(InvalidRequest, match="was removed"):
        fetching.next()


# --- servers that fail ----------------------------------------------------------------------------------

FAULTS = {
    "cut": Fault(cut=1000),
    "cut at once": Fault(cut=0),
    "silent": Fault(silent=True),
    "a flipped bit": Fault(flip=77),
    "other bytes under right headers": Fault(shift=1),
    "another range": Fault(said="bytes 5-99/*"),
    "a range that is none": Fault(said="bytes twelve"),
    "another unit": Fault(said="rows 0-99/100"),
    "no range": Fault(whole=True),
    "too much": Fault(surplus=b"x" * 70_000),
    "compressed": Fault(coding="gzip"),
    "more than was asked for": Fault(longer=True),
    "overloaded": Fault(status=503),
    "too many": Fault(status=429),
    "a page": Fault(status=200),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("place", [0, 1, 4, 6])
def test_one_failure_is_made_good(
    fault: Fault, place: int, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    server.faults = iter([None] * place + [fault])
    fetch(server.url, tmp_path / "here", connections=1)
    assert contents(tmp_path / "here") == contents(bundle)
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), connections=st.integers(1, 6), sources=st.integers(1, 3))
def test_any_failures_leave_a_whole_bundle_or_none(
    data: st.DataObject,
    connections: int,
    sources: int,
    bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kinds = st.sampled_from([None, *FAULTS.values()])
    plan = data.draw(st.lists(kinds, max_size=30))
    folder = tmp_path_factory.mktemp("any") / "here"
    with RangeServer(bundle) as server:
        server.faults = iter(plan)
        for _ in range(12):  # three failures end an attempt at the soonest
            try:
                fetch([server.url] * sources, folder, connections=connections)
                break
            except EdgekitError:
                assert not folder.exists()
        else:
            pytest.fail("not whole though the server has stopped failing")
    assert contents(folder) == contents(bundle)
    shutil.rmtree(folder.parent)


def test_a_damaged_run_comes_again(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    def first_of_weights(asked: Asked) -> Fault | None:
        begins = asked.path == WEIGHTS and sum(each.path == WEIGHTS for each in server.log) == 2
        return Fault(flip=200_000) if begins else None

    server.fault_of = first_of_weights
    done = fetch(server.url, tmp_path / "here", connections=1)
    assert done.damaged == 1
    assert contents(tmp_path / "here") == contents(bundle)
    again = server.log[-1].range
    assert again is not None
    first, last = (int(part) for part in again.removeprefix("bytes=").split("-"))
    assert last - first + 1 == 3_014_656  # that run, and no more


def test_a_run_that_stays_damaged_is_never_used(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    server.fault_of = lambda asked: (
        Fault(flip=100_000) if asked.path == WEIGHTS and asked.range != HEADER else None
    )
    with pytest.raises(
        ChecksumMismatch, match=r"came 3 times with other bytes than the manifest lists \(http://127"
    ):
        fetch(server.url, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "here.arriving" / MANIFEST_NAME).exists()
    server.fault_of = None
    before = server.sent
    done = fetch(server.url, tmp_path / "here")  # the others need not come again
    assert contents(tmp_path / "here") == contents(bundle)
    assert done.found > 0 and server.sent - before < done.nbytes


def test_a_source_that_serves_damage_is_left(bundle: Path, tmp_path: Path) -> None:
    with RangeServer(bundle) as bad, RangeServer(bundle) as good:
        bad.fault_of = lambda asked: Fault(flip=5) if asked.path == WEIGHTS else None
        served = threading.Event()
        bad.after_part = lambda _: served.set() if any(asked.path == WEIGHTS for asked in bad.log) else None

        def late(asked: Asked) -> None:  # or it may give everything before the bad one gave a run
            if asked.path == WEIGHTS and asked.range != HEADER:
                assert served.wait(30)

        good.fault_of = late
        done = fetch([bad.url, good.url], tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)
    assert 1 <= done.damaged <= 8


def test_a_source_without_a_file_is_left(bundle: Path, tmp_path: Path) -> None:
    with RangeServer(bundle) as lacking, RangeServer(bundle) as whole:
        lacking.fault_of = lambda asked: Fault(status=404) if asked.path == WEIGHTS else None
        fetch([lacking.url, whole.url], tmp_path / "here")
        assert contents(tmp_path / "here") == contents(bundle)
        with pytest.raises(FetchFailed, match="lacks weights.safetensors, which its manifest lists"):
            fetch(lacking.url, tmp_path / "other")


@pytest.mark.parametrize(
    ("status", "said"),
    [(403, "does not allow it"), (401, "does not allow it"), (418, "HTTP status 418"), (500, "not ready")],
)
def test_a_server_that_refuses(status: int, said: str, server: RangeServer, tmp_path: Path) -> None:
    server.fault_of = lambda asked: Fault(status=status)
    with pytest.raises(FetchFailed, match=said):
        fetch(server.url, tmp_path / "here")
    assert len(server.log) == (3 if status == 500 else 1)


def test_what_is_no_bundle(server: RangeServer, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"has neither edgekit.json nor bundles.json; give the address"):
        fetch(server.url + "/tokenizer", tmp_path / "here")
    with pytest.raises(FetchFailed, match="cannot be reached"):
        fetch("http://127.0.0.1:9", tmp_path / "here")
    server.fault_of = lambda asked: Fault(status=200)  # a page for everything, as hotels have
    with pytest.raises(MalformedFile, match="is not an edgekit manifest"):
        fetch(server.url, tmp_path / "here")


@pytest.mark.parametrize("name", [MANIFEST_NAME, WEIGHTS])
@pytest.mark.parametrize(
    "fault", [Fault(drips=True), *NOTHING_OF_USE.values()], ids=["drips", *NOTHING_OF_USE]
)
def test_a_source_that_gives_nearly_nothing_is_left(
    name: str, fault: Fault, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgekit.runtime.fetch.transport.PATIENCE_SHARE", 0.4 / 30)
    with RangeServer(bundle) as slow, RangeServer(bundle) as good:
        slow.fault_of = lambda asked: fault if asked.path == name else None
        fetch([slow.url, good.url], tmp_path / "here")
        assert contents(tmp_path / "here") == contents(bundle)
        with pytest.raises(FetchFailed, match=r"gave (\d+|no) bytes in|gave no answer in"):
            fetch(slow.url, tmp_path / "alone")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            Fault(said="bytes 0-16383/50000000"),
            r"has 50000000 bytes, and not \d+, in weights.safetensors: the bundle there was replaced",
        ),
        (
            Fault(said="bytes 0-16383/100"),
            r"has 100 bytes, and not \d+, in weights.safetensors: the bundle there was replaced",
        ),
        (Fault(status=416), r"has no bytes 0-16383 \(HTTP status 416\) in weights.safetensors: the bundle"),
    ],
    ids=["another size", "a size within the range", "416"],
)
def test_a_file_of_another_size_is_not_asked_for_again(
    fault: Fault, said: str, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    with RangeServer(bundle) as stale:
        stale.fault_of = lambda asked: fault if asked.path == WEIGHTS else None
        with pytest.raises(FetchFailed, match=said):
            fetch(stale.url, tmp_path / "alone", connections=1)
        assert stale.paths().count(WEIGHTS) == 1
        fetch([stale.url, server.url], tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


def test_a_server_that_once_gave_a_page_is_asked_for_parts_again(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    server.fault_of = lambda asked: Fault(status=200) if len(server.log) == 3 else None
    fetching = Fetch(tmp_path / "here", [server.url], request_bytes=64 << 10)
    fetching.close()
    fetch(server.url, tmp_path / "here", connections=1)
    assert contents(tmp_path / "here") == contents(bundle)
    assert server.sent < 1.1 * sum(path.stat().st_size for path in bundle.rglob("*"))


def test_what_is_no_http_is_told_in_words(bundle: Path, tmp_path: Path) -> None:
    """Not by what it sent."""

    def answer(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with listening.accept()[0] as each:
                    each.recv(1000)
                    each.sendall(bytes(range(256)) * 20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        with pytest.raises(FetchFailed, match=r"\(it answered with something else than HTTP\)$"):
            fetch(f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path / "here", connections=1)
        listening.shutdown(socket.SHUT_RDWR)


def test_redirects_with_a_page_that_has_no_end(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    with RangeServer(bundle) as front:
        front.fault_of = lambda asked: Fault(redirect=server.url + "{path}", endless=True)
        fetch(front.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


def test_a_server_that_says_nothing_in_tls(
    bundle: Path, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a connection, and gives a part of its first record now and then."""
    monkeypatch.setattr("edgekit.runtime.fetch.transport.PATIENCE_SHARE", 0.4 / 30)
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        open_ones = list[socket.socket]()
        while not ended.wait(0.05):
            with suppress(OSError):
                open_ones.append(listening.accept()[0])
            for each in open_ones:
                with suppress(OSError):
                    each.send(b"\x16\x03\x03\x3f\xff" if each is open_ones[-1] else b"\0")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.01)
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            address = f"https://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(FetchFailed, match="gave no answer in|cannot be reached"):
                fetch(address, tmp_path / "alone", connections=1)
            fetch([address, server.url], tmp_path / "here")
        finally:
            ended.set()
            thread.join()
    assert contents(tmp_path / "here") == contents(bundle)


def test_a_manifest_without_end_is_not_waited_for(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    server.fault_of = lambda asked: Fault(endless=True)
    with pytest.raises(FetchFailed, match="gave more than 16777216 bytes for edgekit.json"):
        fetch(server.url, tmp_path / "here")
    assert len(server.log) == 1


def test_cuts_behind_much_cost_no_waiting(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    fetching = Fetch(tmp_path / "here", [server.url])
    for _ in range(40):
        step, request = fetching.next()
        if step is not Step.ASK:
            break
        assert request is not None and request.wait_s == 0
        data = (bundle / request.name).read_bytes()[request.offset :]
        fetching.write(request, data[: 256 << 10])
        fetching.end(request)
    while fetching.next()[0] is Step.WORKING:
        pass
    assert fetching.next()[0] is Step.READY


@pytest.mark.parametrize(
    "address", ["http://[::1", "ftp://127.0.0.1/x", f"http://{'a' * 70}.test/x", "file:///etc"]
)
def test_redirects_to_what_is_no_address(
    address: str, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    with RangeServer(bundle) as odd:
        odd.fault_of = lambda asked: Fault(redirect=address)
        fetch([odd.url, server.url], tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


@pytest.mark.parametrize("port", ["99999", "-1", "0", "+80", "modulo"])
def test_redirects_to_a_port_that_is_none(
    port: str, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    host, _, own = server.url.rpartition(":")
    to = f"{host}:{int(own) + 65536 if port == 'modulo' else port}{{path}}"
    with RangeServer(bundle) as odd:
        odd.fault_of = lambda asked: Fault(redirect=to)
        with pytest.raises(FetchFailed, match="leads to what is no address of the web, 'http://127"):
            fetch(odd.url, tmp_path / "here")
    assert server.log == []


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        f"http://{'a' * 70}.test/x",
        "http://.test/x",
        "http://[::1",
        "https://a b/",
        "http://a:0/",
        "http://a:65616/",
    ],
)
def test_what_is_no_address(address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no address"):
        fetch(address, tmp_path / "here")


@pytest.mark.parametrize("fault", [Fault(longer=True), Fault(coding="Identity"), Fault(coding="")])
def test_odd_answers_that_are_of_use(fault: Fault, bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    server.fault_of = lambda asked: fault
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (("many",), "answered with Content-Length 'many', which is no number of bytes"),
        (("-5",), "answered with Content-Length '-5', which is no number of bytes"),
        (("1_0",), "answered with Content-Length '1_0', which is no number of bytes"),
        (("5", "70000"), "answered with different lengths, Content-Length '5' and '70000'"),
    ],
)
@pytest.mark.parametrize("name", [MANIFEST_NAME, WEIGHTS])
def test_lengths_that_are_none(
    name: str, lengths: tuple[str, ...], said: str, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    told: list[str] = []
    faulty = Fault(lengths=lengths)
    with RangeServer(bundle, fault_of=lambda asked: faulty if asked.path == name else None) as odd:
        fetch([odd.url, server.url], tmp_path / "here", trouble=told.append)
        assert contents(tmp_path / "here") == contents(bundle)
        assert f"{odd.url}: {said}" in told
        with pytest.raises(FetchFailed, match=rf": {re.escape(said)}$"):
            fetch(odd.url, tmp_path / "alone", connections=1)


def test_a_length_that_is_said_twice(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    nbytes = str((bundle / MANIFEST_NAME).stat().st_size)
    server.fault_of = lambda asked: Fault(lengths=(nbytes, nbytes)) if asked.path == MANIFEST_NAME else None
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


@pytest.mark.parametrize("many", [1, 20])
def test_hints_before_an_answer(many: int, bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    told: list[str] = []
    processing = b"HTTP/1.1 102 Processing\r\n\r\n"
    server.fault_of = lambda asked: Fault(before=(EARLY_HINTS + processing) * many)
    fetch(server.url, tmp_path / "here", trouble=told.append)
    assert contents(tmp_path / "here") == contents(bundle) and told == []


def test_redirects_are_followed(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    with RangeServer(bundle) as front:
        front.fault_of = lambda asked: Fault(redirect=server.url + "{path}")
        fetch(front.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)
    server.fault_of = lambda asked: Fault(redirect=server.url + "{path}")
    with pytest.raises(FetchFailed, match="leads in a circle, or to what is no address"):
        fetch(server.url, tmp_path / "round")


def test_names_with_odd_letters(tmp_path: Path) -> None:
    files = {"a folder/one more name #1 & ~'+;=@.txt": b"x", "100%25/[a]{b}": b"y"}
    served = arriving.make(tmp_path / "sérved #2", (1000,), files)
    with RangeServer(served) as server:
        fetch(server.url, tmp_path / "here")
    with RangeServer(tmp_path) as server:
        fetch(f"{server.url}/s%C3%A9rved%20%232/", tmp_path / "below")
        fetch(f"{server.url}/sérved%20%232", tmp_path / "written")
    assert contents(tmp_path / "here") == contents(served) == contents(tmp_path / "below")
    assert contents(tmp_path / "written") == contents(served)


# --- which bundle ---------------------------------------------------------------------------------------


def test_only_the_bundle_that_was_asked_for(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    fetch(server.url, tmp_path / "here", sha256=seal_of(bundle))
    with pytest.raises(ChecksumMismatch, match="it is another bundle than was asked for"):
        fetch(server.url, tmp_path / "other", sha256="0" * 64)
    with pytest.raises(InvalidRequest, match="64 hex digits: those that its manifest begins"):
        fetch(server.url, tmp_path / "other", sha256="0" * 63)
    assert not (tmp_path / "other").exists()
    fetching = Fetch(tmp_path / "capital", [server.url], sha256=seal_of(bundle).upper())
    request = fetching.next()[1]
    assert request is not None and fetching.write(request, (bundle / MANIFEST_NAME).read_bytes())
    fetching.end(request)
    assert fetching.next()[0] is Step.ASK


def test_a_mirror_with_another_bundle_is_left(bundle: Path, tmp_path: Path) -> None:
    old = arriving.make(tmp_path / "old", seed=5)
    with RangeServer(old) as stale, RangeServer(bundle) as server:
        fetch([stale.url, server.url], tmp_path / "here", sha256=seal_of(bundle))
        assert contents(tmp_path / "here") == contents(bundle)
        fetch([server.url, stale.url], tmp_path / "first")
        assert contents(tmp_path / "first") == contents(bundle)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = {"coreai": ("coreai", "27.0"), "coreml": ("coreml", "18.0"), "cpu": ("native", "13.0")}
    return arriving.make_set(tmp_path_factory.mktemp("served") / "several", members)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, "coreai"),
        ({"formats": ["native"]}, "cpu"),
        ({"formats": ["native", "coreml"]}, "coreml"),
        ({"system": ("ios", "27.1")}, "coreai"),
        ({"system": ("ios", "26.4.1")}, "coreml"),
        ({"system": ("ios", "26.4"), "formats": ["native"]}, "cpu"),
        ({"system": ("android", "16"), "formats": ["native"]}, "cpu"),
    ],
)
def test_of_several_the_one_that_the_device_runs(options, chosen, several: Path, tmp_path: Path) -> None:
    with RangeServer(several) as server:
        done = fetch(server.url, tmp_path / "here", **options)
        below = {path.partition("/")[0] for path in server.paths()}
    assert contents(tmp_path / "here") == contents(several / chosen)
    assert below == {MANIFEST_NAME, "bundles.json", chosen}
    assert done.nbytes < 120_000


@pytest.mark.parametrize(
    ("options", "chosen"), [({}, "cpu"), ({"formats": []}, "npu"), ({"formats": ["native", "qnn"]}, "npu")]
)
def test_of_several_what_this_computer_emulates_is_asked_for(
    options, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = arriving.make_set(tmp_path / "set", {"npu": ("qnn", ""), "cpu": ("native", "")})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    fetch(str(folder), tmp_path / "here", **options)
    assert contents(tmp_path / "here") == contents(folder / chosen)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"formats": ["onnx"]}, "'coreml' and 'native', not for onnx; its owner has to export one for that"),
        ({"system": ("ios", "12.0")}, "is for ios 13.0 and later; this is ios 12.0; its owner has to export"),
    ],
)
def test_of_several_none(options, said, several: Path, tmp_path: Path) -> None:
    with RangeServer(several) as server, pytest.raises(UnsupportedBundle, match=said):
        fetch(server.url, tmp_path / "here", **options)


def test_a_bundle_that_is_alone_has_the_format_that_was_asked_for(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    said = r"edgekit.json: is for 'native', not qnn, and the only bundle there; ask for that, or give another"
    for _ in range(2):  # also where it is here already
        with pytest.raises(UnsupportedBundle, match=said):
            fetch(server.url, tmp_path / "here", formats=["qnn"])
        assert server.paths()[-1] == MANIFEST_NAME
        fetch(server.url, tmp_path / "here", formats=["coreml", "native"])
    fetch(server.url, tmp_path / "any", formats=[])
    served = arriving.make(tmp_path / "served", (1000,), form="coreml")
    fetch(str(served), tmp_path / "other")  # on any device, where nothing was asked for
    assert contents(tmp_path / "other") == contents(served)


def test_a_folder_keeps_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    members = {"npu": ("qnn", ""), "cpu": ("native", "")}
    old = arriving.make_set(tmp_path / "old", members)
    new = arriving.make_set(tmp_path / "new", dict(reversed(members.items())))
    here = tmp_path / "here"
    assert fetch(str(old), here, formats=["qnn"]).chosen == "npu"
    assert fetch(str(old), here).current
    assert fetch(str(new), here).chosen == "npu" and contents(here) == contents(new / "npu")
    assert fetch(str(new), here, formats=["native"]).chosen == "cpu"
    assert fetch(str(old), here).chosen == "cpu" and contents(here) == contents(old / "cpu")
    # One that the set has no more, or that this system does not run, is kept by nothing.
    only = arriving.make_set(tmp_path / "only", {"cpu": ("native", "")})
    later = arriving.make_set(tmp_path / "later", {"npu": ("qnn", "99.0"), "cpu": ("native", "")})
    for source in (only, later):
        fetch(str(old), here, formats=["qnn"])
        assert fetch(str(source), here, system=("ios", "26.0")).chosen == "cpu"


def test_the_command_says_which_bundle_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    folder = arriving.make_set(tmp_path / "set", {"npu": ("qnn", ""), "cpu": ("native", "")})
    here = tmp_path / "here"
    taking = f"{folder} has bundles for several formats; taking"
    assert f"{taking} cpu\n" in command(folder, tmp_path / "first").stderr
    assert f"{taking} npu\n" in command(folder, here, "--format", "qnn").stderr
    again = command(folder, here)
    kept = f"of the format of the one in {here}; --format takes another"
    assert f"{taking} npu, {kept}\n" in again.stderr and "has this bundle already" in again.stdout
    assert json.loads(command(folder, here, "--json").stdout)["chosen"] == "npu"
    single = command(folder / "cpu", here, "--format", "qnn")
    assert single.exit_code == 2 and "is for 'native', not qnn" in single.output
    assert "several formats" not in command(folder / "cpu", here).stderr
    nonsense = command(folder, here, "--format", "foo")
    assert nonsense.exit_code == 2 and "unknown format 'foo'; supported: native, onnx" in nonsense.output


def test_a_manifest_that_the_set_does_not_list(several: Path, tmp_path: Path) -> None:
    mixed = shutil.copytree(several, tmp_path / "mixed")
    shutil.rmtree(mixed / "cpu")
    arriving.make(mixed / "cpu", (1000, 60_000), form="native")
    with (
        RangeServer(mixed) as server,
        pytest.raises(ChecksumMismatch, match=r"is not the manifest that bundles.json lists"),
    ):
        fetch(server.url, tmp_path / "here", formats=["native"])


# --- a folder that is there -----------------------------------------------------------------------------


def test_an_update_fetches_what_has_changed(tmp_path: Path) -> None:
    old = arriving.make(tmp_path / "old")
    new = arriving.make(
        tmp_path / "new", files={**arriving.FILES, "README.md": b"# another\n"}, others={3: 9}
    )
    shutil.copytree(old, tmp_path / "here")
    with RangeServer(new) as server:
        done = fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(new)
    changed = 704_512 + len(b"# another\n")  # the run with its padding, and the file
    header = 16384
    assert done.fetched == changed + header + (new / MANIFEST_NAME).stat().st_size
    assert done.copied + changed + header == done.nbytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "new", "old"]


def test_runs_that_have_moved_are_found(tmp_path: Path) -> None:
    arriving.make(tmp_path / "here", (50_000, 700_000), others={1: 7})
    new = arriving.make(tmp_path / "new", (50_000, 700_000, 20_000), others={0: 3, 1: 7})
    with RangeServer(new) as server:
        done = fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(new)
    assert done.copied >= 700_000


def test_the_bundle_before_stays_until_the_end(bundle: Path, tmp_path: Path) -> None:
    old = arriving.make(tmp_path / "here", seed=3)
    before = contents(old)
    with RangeServer(bundle) as server:
        seen = list[bool]()
        server.after_part = lambda sent: seen.append(contents(tmp_path / "here") == before)
        server.fault_of = lambda asked: Fault(status=403) if len(server.log) > 2 else None
        with pytest.raises(FetchFailed):
            fetch(server.url, tmp_path / "here")
        assert contents(tmp_path / "here") == before and all(seen) and seen
        server.fault_of = None
        fetch(server.url, tmp_path / "here")
    assert all(seen[:-1]) and contents(tmp_path / "here") == contents(bundle)


def test_a_damaged_bundle_is_mended(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    here = shutil.copytree(bundle, tmp_path / "here")
    with open(here / WEIGHTS, "r+b") as file:
        file.seek(100_000)
        file.write(b"other bytes")
    assert fetch(server.url, here).current  # its files have their sizes
    before = server.sent
    done = fetch(server.url, here, compare=True)
    assert contents(here) == contents(bundle)
    assert server.sent - before < 3_014_656 + 50_000 < done.nbytes


def test_a_bundle_that_lacks_a_file_is_mended(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    here = shutil.copytree(bundle, tmp_path / "here")
    (here / "README.md").unlink()
    assert not fetch(server.url, here).current
    assert contents(here) == contents(bundle)


def test_files_of_others_stay(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    here = shutil.copytree(bundle, tmp_path / "here")
    arriving.make(tmp_path / "new", seed=4)
    (here / "tokenizer" / "notes.txt").write_text("mine")
    with (
        RangeServer(tmp_path / "new") as other,
        pytest.raises(InvalidRequest, match=r"'tokenizer/notes.txt', which is no file of its bundle"),
    ):
        fetch(other.url, here)
    assert (here / "tokenizer" / "notes.txt").read_text() == "mine"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"has 'README.md', and is no bundle; move that away"):
        fetch(server.url, tmp_path / "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OpenFailed, match="is there, and is no folder"):
        fetch(server.url, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    fetch(server.url, tmp_path / "empty")
    assert contents(tmp_path / "empty") == contents(bundle)


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini"])
def test_files_of_the_system_keep_nothing_from_being_replaced(
    name: str, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    """Some systems put them into every folder that somebody looks at, also while a bundle arrives."""
    here = arriving.make(tmp_path / "here", seed=4)
    for folder in (here, here / "tokenizer"):
        (folder / name).write_bytes(b"of the system")

    def put(sent: int) -> None:
        for folder in (tmp_path / "here.arriving", tmp_path / "here.arriving" / "tokenizer"):
            if folder.is_dir():
                (folder / name).write_bytes(b"of the system")

    server.after_part = put
    fetch(server.url, here)
    assert contents(here) == contents(bundle)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / name).write_bytes(b"of the system")
    fetch(server.url, tmp_path / "empty")
    assert contents(tmp_path / "empty") == contents(bundle)


def test_files_that_come_meanwhile_stay(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    here = arriving.make(tmp_path / "here", seed=4)
    before = contents(here)

    def put(sent: int) -> None:
        if sent > 500_000:  # when it has looked at the folder
            (here / "mine.txt").write_text("mine")

    server.after_part = put
    with pytest.raises(InvalidRequest, match=r"'mine.txt', which is no file of its bundle"):
        fetch(server.url, here)
    assert (here / "mine.txt").read_text() == "mine"
    server.after_part = None
    (here / "mine.txt").rename(tmp_path / "mine.txt")
    assert contents(here) == before
    done = fetch(server.url, here)
    assert contents(here) == contents(bundle) and done.found > 0


def test_what_the_new_bundle_lists_may_be_a_file_of_others(tmp_path: Path) -> None:
    here = arriving.make(tmp_path / "here")
    new = arriving.make(tmp_path / "new", files={**arriving.FILES, "notes.txt": b"theirs"}, seed=1)
    (here / "notes.txt").write_text("mine")
    with RangeServer(new) as server, pytest.raises(InvalidRequest, match="'notes.txt', which is no file"):
        fetch(server.url, here)
    assert (here / "notes.txt").read_text() == "mine"


def test_another_file_of_that_name_makes_no_bundle(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / MANIFEST_NAME).write_text('{"my": "settings"}')
    with pytest.raises(InvalidRequest, match=r"has an edgekit.json that is no bundle's"):
        fetch(server.url, tmp_path / "here")
    assert (tmp_path / "here" / MANIFEST_NAME).read_text() == '{"my": "settings"}'


@pytest.mark.parametrize(
    ("folder", "mark", "kept"),
    [
        ("here.arriving", "", []),  # the mark was being written
        ("here.arriving", "replaced\n", [WEIGHTS, MANIFEST_NAME]),  # the bundle before was being removed
        ("here.arriving", "replaced\n", [MANIFEST_NAME]),
        ("here.arriving", "replaced\n", []),
        ("here.replaced", "replaced\n", [WEIGHTS, MANIFEST_NAME]),
        ("here.replaced", "replaced\n", []),
        ("here", "replaced\n", None),  # before the exchange
        ("here", "arriving\n", None),  # behind it
    ],
)
def test_a_fetch_that_was_ended_in_its_last_steps_is_gone_on_with(
    folder: str, mark: str, kept: list[str] | None, bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    arriving.make(tmp_path / "here", seed=6)
    place = tmp_path / folder
    if kept is not None:
        shutil.copytree(tmp_path / "here", place)
        for path in list(place.rglob("*")):
            if path.is_file() and path.name not in kept:
                path.unlink()
    (place / ".edgekit-arriving").write_text(mark)
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_bundle_with_other_links_is_not_written_into(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    other = tmp_path / "backup"
    other.write_text("mine")
    (tmp_path / "here.arriving" / "tokenizer").mkdir(parents=True)
    (tmp_path / "here.arriving" / ".edgekit-arriving").touch()
    os.link(other, tmp_path / "here.arriving" / "README.md")
    fetch(server.url, tmp_path / "here")
    assert other.read_text() == "mine" and contents(tmp_path / "here") == contents(bundle)


def test_a_linked_folder_among_what_has_arrived(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "here.arriving").mkdir()
    (tmp_path / "here.arriving" / ".edgekit-arriving").touch()
    (tmp_path / "here.arriving" / "tokenizer").symlink_to("../mine")
    fetching = Fetch(tmp_path / "here", [server.url])
    request = fetching.next()[1]
    assert request is not None
    fetching.write(request, (bundle / MANIFEST_NAME).read_bytes())
    fetching.end(request)
    assert not (tmp_path / "here.arriving" / "tokenizer").exists()  # one from before is removed
    (tmp_path / "here.arriving" / "tokenizer").symlink_to("../mine")
    with pytest.raises(OpenFailed, match="tokenizer: is a link; remove it"):
        while fetching.next()[0] is Step.ASK:
            pass
    fetching.close()
    assert not list((tmp_path / "mine").iterdir())
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle) and not list((tmp_path / "mine").iterdir())


def test_a_link_stays_one(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    arriving.make(tmp_path / "disk" / "model", seed=8)
    (tmp_path / "model").symlink_to("disk/model")
    fetch(server.url, tmp_path / "model")
    assert (tmp_path / "model").is_symlink()
    assert contents(tmp_path / "disk" / "model") == contents(bundle)


def test_a_link_among_what_has_arrived_is_not_followed(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "here.arriving").mkdir()
    (tmp_path / "here.arriving" / ".edgekit-arriving").touch()
    (tmp_path / "here.arriving" / "README.md").symlink_to(tmp_path / "mine")
    with pytest.raises(
        OpenFailed, match=r"README.md: is a link, where a file of the bundle is to lie; remove"
    ):
        fetch(server.url, tmp_path / "here")
    assert (tmp_path / "mine").read_text() == "mine"


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


OTHERS = {"folder": a_folder, "FIFO": getattr(os, "mkfifo", None)}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("when", ["before", "at the end"])
@pytest.mark.parametrize("name", ["README.md", WEIGHTS, MANIFEST_NAME])
def test_what_is_no_file_where_one_arrives(
    name: str, when: str, kind: str, bundle: Path, tmp_path: Path
) -> None:
    """It is named, as to fetch again does not mend it; where that does, it is removed."""
    if (make := OTHERS[kind]) is None:
        pytest.skip("has no FIFOs")
    arrives = tmp_path / "here.arriving"
    made: list[str] = []

    def put(progress: Progress | None = None) -> None:
        at_end = progress is None or (progress.total and progress.whole == progress.total)
        if at_end and not made:
            made.append(name)
            (arrives / name).unlink(missing_ok=True)
            make(arrives / name)

    if when == "before":
        arrives.mkdir()
        (arrives / ".edgekit-arriving").touch()
        put()
        if (name == MANIFEST_NAME) == (kind == "FIFO"):
            fetch(str(bundle), tmp_path / "here")
            assert contents(tmp_path / "here") == contents(bundle)
            return
    said = f"{arrives / name}: is a {kind}, where a file of the bundle is to lie; remove it or move it away"
    with pytest.raises(OpenFailed, match=f"^{re.escape(said)}$"):
        fetch(str(bundle), tmp_path / "here", progress=None if when == "before" else put)
    if when == "before":
        failed = command(bundle, tmp_path / "here")
        assert failed.exit_code == 2 and failed.stderr.endswith(f"{said}\n")


def test_what_is_no_folder_where_a_bundle_arrives(bundle: Path, tmp_path: Path) -> None:
    for kind, make in {"file": Path.touch, "FIFO": OTHERS["FIFO"]}.items():
        if make is None:
            continue
        make(tmp_path / f"{kind}.arriving")
        with pytest.raises(
            OpenFailed, match=rf"{kind}.arriving: is there, and is no folder; .* move it away"
        ):
            fetch(str(bundle), tmp_path / kind)


def test_a_mark_that_is_a_link_is_not_written_through(server: RangeServer, tmp_path: Path) -> None:
    for link in (Path.symlink_to, Path.hardlink_to):
        (tmp_path / "mine").write_text("arriving\n and more of mine")
        (tmp_path / "here.arriving").mkdir()
        link(tmp_path / "here.arriving" / ".edgekit-arriving", tmp_path / "mine")
        with pytest.raises(OpenFailed, match=r".edgekit-arriving: is a link, or no file; remove it"):
            fetch(server.url, tmp_path / "here")
        assert (tmp_path / "mine").read_text() == "arriving\n and more of mine"
        shutil.rmtree(tmp_path / "here.arriving")


def test_a_folder_of_somebody_else_that_is_named_so(server: RangeServer, tmp_path: Path) -> None:
    for name in ("here.arriving", "here.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    with pytest.raises(OpenFailed, match=r"here.arriving: is there, and is not of a fetch"):
        fetch(server.url, tmp_path / "here")
    (tmp_path / "here.arriving").rename(tmp_path / "elsewhere")
    fetch(server.url, tmp_path / "here")
    (tmp_path / "elsewhere").rename(tmp_path / "other.arriving")
    (tmp_path / "linked.arriving").symlink_to("other.arriving")
    with pytest.raises(OpenFailed, match=r"linked.arriving: is a link"):
        fetch(server.url, tmp_path / "linked")
    assert (tmp_path / "other.arriving" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "here.replaced" / "notes.txt").read_text() == "mine"


def test_the_current_folder(
    bundle: Path, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OpenFailed, match="is the current folder"):
        fetch(server.url, ".")
    fetch(server.url, "here/")
    assert contents(tmp_path / "here") == contents(bundle)


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    files = {f"many/{i}.txt": str(i).encode() for i in range(1500)}
    old = arriving.make(tmp_path / "here", (1000,), files)
    new = arriving.make(tmp_path / "new", (1000,), files | {"many/0.txt": b"another"})
    program = (
        "import resource, sys, edgekit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "edgekit.fetch(sys.argv[1], sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", program, new, old], check=True)
    assert contents(old) == contents(new)


def test_one_at_a_time(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    first = Fetch(tmp_path / "here", [server.url])
    with pytest.raises(InvalidRequest, match="another one fetches this bundle now"):
        Fetch(tmp_path / "here", [server.url])
    first.close()
    fetch(server.url, tmp_path / "here")


def test_a_fetch_that_ended_between_its_last_steps(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    """Where folders cannot be exchanged in one step."""
    arriving.make(tmp_path / "here.replaced", seed=2)
    before = contents(tmp_path / "here.replaced")
    (tmp_path / "here.replaced" / ".edgekit-arriving").write_text("replaced\n")
    fetching = Fetch(tmp_path / "here", [server.url])
    assert contents(tmp_path / "here") == before
    fetching.close()
    fetch(server.url, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(bundle)


# --- the disk -------------------------------------------------------------------------------------------


def test_the_room_is_asked_for_first(bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")

    def far_more(table) -> None:
        table["weights"]["size"] = 1 << 60

    sealing.edit(served, far_more)
    with RangeServer(served) as server:
        with pytest.raises(
            WriteFailed,
            match=r"1.15e\+09 GB of the bundle have to come, and its disk has room for .*: .* are free, and "
            "34 MB have to stay so; delete",
        ):
            fetch(server.url, tmp_path / "here")
        assert server.paths() == [MANIFEST_NAME]


def test_sizes_whose_sum_no_number_holds(bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")

    def far_more(table) -> None:
        table["weights"]["size"] = 2**63 - 1
        for entry in table["files"].values():
            entry["size"] = 2**63 - 1

    sealing.edit(served, far_more)
    with RangeServer(served) as server, pytest.raises(MalformedFile, match="more bytes than any disk has"):
        fetch(server.url, tmp_path / "here")


def test_what_an_earlier_fetch_of_another_bundle_left_makes_room(
    bundle: Path, server: RangeServer, tmp_path: Path
) -> None:
    left = tmp_path / "here.arriving"
    (left / "other").mkdir(parents=True)
    (left / ".edgekit-arriving").write_text("arriving\n")
    (left / "other" / "model.bin").write_bytes(bytes(1000))
    seen = list[bool]()
    server.after_part = lambda sent: seen.append((left / "other").exists())
    fetch(server.url, tmp_path / "here")
    assert not any(seen[1:]) and contents(tmp_path / "here") == contents(bundle)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="a full disk is mounted by root alone"
)
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    served = arriving.make(tmp_path / "served", (20_000_000,))
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60m", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with RangeServer(served) as server:
            filler = disk / "filler"
            server.after_part = lambda sent: (
                sent < 5_000_000 or filler.exists() or filler.write_bytes(bytes(50_000_000))
            )
            with pytest.raises(WriteFailed, match="the disk is full; delete or move other files"):
                fetch(server.url, disk / "here")
            server.after_part = None
            filler.unlink()
            done = fetch(server.url, disk / "here")
        assert contents(disk / "here") == contents(served)
        assert done.found > 0
    finally:
        subprocess.run(["umount", disk], check=True)


# --- files that lie -------------------------------------------------------------------------------------


def test_a_file_whose_digests_disagree(bundle: Path, tmp_path: Path) -> None:
    for name in ("README.md", WEIGHTS):
        served = shutil.copytree(bundle, tmp_path / f"served-{name}")

        def change(table, name=name) -> None:
            entry = table["weights"] if name == WEIGHTS else table["files"][name]
            entry["sha256"] = "1" * 64

        sealing.edit(served, change)
        with (
            RangeServer(served) as server,
            pytest.raises(ChecksumMismatch, match="though its other digests agree"),
        ):
            fetch(server.url, tmp_path / "here")
        assert not (tmp_path / "here").exists()
        shutil.rmtree(tmp_path / "here.arriving")


def test_a_header_that_is_none(bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")
    data = bytearray((served / WEIGHTS).read_bytes())
    data[8:100] = b"x" * 92
    (served / WEIGHTS).write_bytes(data)

    import xxhash

    sealing.edit(served, lambda t: t["weights"].update(header_xxh3=xxhash.xxh3_64_hexdigest(data[:16384])))
    with RangeServer(served) as server, pytest.raises(MalformedFile):
        fetch(server.url, tmp_path / "here")


@pytest.mark.parametrize("name", [".edgekit-arriving", ".edgekit-1.tmp"])
def test_names_of_edgekits_own(name: str, tmp_path: Path) -> None:
    served = arriving.make(tmp_path / "served", files={name: b"x"})
    with RangeServer(served) as server, pytest.raises(MalformedFile, match="a name of edgekit's own"):
        fetch(server.url, tmp_path / "here")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aux.txt", "Windows takes it for a device"),
        ("tokenizer/CON", "Windows takes it for a device"),
        ("a./b", "ends with a dot or a blank"),
        ("blank ", "ends with a dot or a blank"),
        ("what?", "other letters than those of ASCII"),
        ("nai\u0308ve", "other letters than those of ASCII"),
        ("readme.MD", "'readme.MD' and 'README.md' cannot both lie where capital letters do not count"),
        ("Tokenizer/a", "'Tokenizer/a' and 'tokenizer/tokenizer.json' cannot both lie"),
        ("README.md/a", "'README.md/a' and 'README.md' cannot both lie"),
        (".Edgekit-arriving", "a name of edgekit's own"),
    ],
)
def test_names_that_other_systems_refuse(name: str, said: str, bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")
    sealing.edit(served, lambda t: t["files"].update({name: t["files"]["README.md"]}))
    with RangeServer(served) as server, pytest.raises(MalformedFile, match=said):
        fetch(server.url, tmp_path / "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "c:\\out"])
def test_names_that_leave_the_folder(name: str, bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")
    sealing.edit(served, lambda t: t["files"].update({name: t["files"]["README.md"]}))
    with (
        RangeServer(served) as server,
        pytest.raises(MalformedFile, match="is not a plain relative path inside"),
    ):
        fetch(server.url, tmp_path / "deep" / "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "served"]


# --- interruptions --------------------------------------------------------------------------------------

_SIZES = tuple(1_000_000 + 37 * i for i in range(24))


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals")
def test_killed_thirty_times_it_goes_on(tmp_path: Path) -> None:
    """A process that is killed while bytes come, again and again, at any place."""
    served = arriving.make(tmp_path / "served", _SIZES)
    here, kills = tmp_path / "here", 30
    total = (served / WEIGHTS).stat().st_size
    rng = random.Random(5)
    with RangeServer(served) as server:
        running: list[subprocess.Popen[bytes]] = []
        limit = [0]

        def kill(sent: int) -> None:
            if running and sent > limit[0]:
                running[-1].send_signal(signal.SIGKILL)
                limit[0] = 1 << 62

        server.after_part = kill
        server.part_s = 0.001
        for _ in range(kills):
            limit[0] = server.sent + rng.randrange(50_000, 2 * total // kills)
            running.append(subprocess.Popen([sys.executable, "-m", "edgekit", "fetch", server.url, here]))
            assert running[-1].wait(60) == -signal.SIGKILL
            assert not here.exists()
        server.after_part, server.part_s = None, 0.0
        before = server.sent
        done = fetch(server.url, here)
    assert contents(here) == contents(served)
    assert done.damaged == 0 or done.found > 0
    assert done.found > total // 3  # what was there is not fetched again
    assert server.sent - before < total - done.found + 3_000_000
    # Each kill costs what was on its way, and no more.
    assert server.sent < 2 * total


@pytest.mark.skipif(sys.platform == "win32", reason="a signal is sent")
def test_an_interrupt_says_how_to_go_on(bundle: Path, tmp_path: Path) -> None:
    with RangeServer(bundle) as server:
        started = threading.Event()
        server.after_part = lambda sent: started.set() if sent > 100_000 else None
        server.part_s = 0.05
        command = [sys.executable, "-m", "edgekit", "fetch", server.url, str(tmp_path / "here")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert started.wait(60)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "the same command goes on" in said
        server.after_part, server.part_s = None, 0.0
        assert fetch(server.url, tmp_path / "here").found > 0
    assert contents(tmp_path / "here") == contents(bundle)


# --- giving up ------------------------------------------------------------------------------------------


def test_discarding_removes_what_has_arrived(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    here = arriving.make(tmp_path / "here", seed=3)
    before = contents(here)
    server.fault_of = lambda asked: Fault(status=403) if len(server.log) > 2 else None
    with pytest.raises(FetchFailed):
        fetch(server.url, here)
    assert (tmp_path / "here.arriving").is_dir()
    (tmp_path / "link").symlink_to("here")
    edgekit.discard(tmp_path / "link")
    assert contents(here) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link"]
    edgekit.discard(str(here))
    edgekit.discard(tmp_path / "deep" / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link"]
    server.fault_of = None
    assert fetch(server.url, here).found == 0


def test_discarding_leaves_what_is_not_of_a_fetch(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    a_folder(tmp_path / "here.arriving")
    with pytest.raises(OpenFailed, match=r"here.arriving: is there, and is not of a fetch"):
        edgekit.discard(tmp_path / "here")
    (tmp_path / "link.arriving").symlink_to("here.arriving")
    with pytest.raises(OpenFailed, match=r"link.arriving: is a link"):
        edgekit.discard(tmp_path / "link")
    (tmp_path / "file.arriving").write_text("mine")
    with pytest.raises(OpenFailed, match=r"file.arriving: is there, and is no folder"):
        edgekit.discard(tmp_path / "file")
    assert (tmp_path / "here.arriving" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "file.arriving").read_text() == "mine"
    under_way = Fetch(tmp_path / "other", [server.url])
    with pytest.raises(InvalidRequest, match="another one fetches this bundle now"):
        edgekit.discard(tmp_path / "other")
    under_way.close()
    with pytest.raises(OpenFailed, match="null byte"):
        edgekit.discard("a\0b")


# --- the command ----------------------------------------------------------------------------------------


def command(*words: object) -> Result:
    return CliRunner().invoke(main, ["fetch", *map(str, words)])


def test_what_came_beside_the_bundle_is_told_apart(bundle: Path, server: RangeServer, tmp_path: Path) -> None:
    done = command(server.url, tmp_path / "here")
    nbytes = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    manifest = (bundle / MANIFEST_NAME).stat().st_size
    parts = f"{size(nbytes)} fetched, {size(manifest)} of that manifests"
    assert f"{size(nbytes - manifest)}, every checksum is right: {parts}\n" in done.stdout
    told = json.loads(command(server.url, tmp_path / "other", "--json").stdout)
    assert told == {
        "folder": str(tmp_path / "other"),
        "nbytes": nbytes - manifest,
        "fetched": nbytes,
        "copied": 0,
        "found": 0,
        "damaged": 0,
        "current": False,
        "chosen": "",
    }
    page = (Path(__file__).parents[2] / "docs" / "fetch.md").read_text(encoding="utf-8")
    told_there = page[page.index("With `--json`") :].partition("\n\n")[0]
    assert all(f"`{name}`" in told_there for name in told)


@pytest.mark.parametrize(
    ("fetched", "found", "chosen", "told"),
    [
        (1200, 0, "", (200, 0)),
        (1200, 600, "", (200, 600)),
        (1000 + 270, 0, "native", (270, 0)),
        (1200 + (1 << 16) + 5, 0, "native", (200 + (1 << 16), 5)),
        (0, 1000, "", (0, 0)),
    ],
)
def test_what_came_twice_is_told_apart_from_manifests(
    fetched: int, found: int, chosen: str, told: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(bytes(200))
    done = Arrived(tmp_path, 1000, fetched, 0, found, 0, False, chosen)
    assert beside(done) == told


def test_a_failure_says_which_file_and_what_stays(bundle: Path, tmp_path: Path) -> None:
    served = shutil.copytree(bundle, tmp_path / "served")
    (served / WEIGHTS).unlink()
    with RangeServer(served) as server:
        failed = command(server.url, tmp_path / "here")
        assert f"note: {server.url}/{WEIGHTS}: has no such file (HTTP status 404)\n" in failed.stderr
    assert failed.exit_code == 2
    stays = f"what has arrived stays in {tmp_path / 'here.arriving'}, and the same command goes on with it"
    assert failed.stderr.splitlines()[-1].endswith(f"; {stays}")


def test_a_long_wait_is_told(bundle: Path, tmp_path: Path) -> None:
    """Where there is no bar that stands still, too."""
    told: list[str] = []

    def later(asked: Asked) -> Fault | None:
        return Fault(status=503) if asked.path == WEIGHTS else None

    with RangeServer(bundle, fault_of=later) as server, pytest.raises(FetchFailed):
        fetch(server.url, tmp_path / "here", trouble=told.append)
    assert f"{server.url}: is not ready (HTTP status 503); is asked again in 4 seconds" in told


@pytest.mark.parametrize("whole", [False, True])
def test_a_short_answer_is_told_when_it_comes(whole: bool, bundle: Path, tmp_path: Path) -> None:
    """Also one that is as long as it says."""
    told: list[str] = []

    def short(asked: Asked) -> Fault | None:
        of_weights = asked.path == WEIGHTS and asked.range != HEADER
        return Fault(cut=1000, lengths=("1000",), whole=whole) if of_weights else None

    nbytes = (bundle / WEIGHTS).stat().st_size
    of = nbytes if whole else nbytes - 16384
    with RangeServer(bundle, fault_of=short) as server, pytest.raises(FetchFailed) as failed:
        fetch(server.url, tmp_path / "here", connections=1, trouble=told.append)
    said = f"{server.url}: gave 1000 of {of} bytes of {WEIGHTS}"
    assert told[0] == said and str(failed.value).startswith(f"{server.url}: gave 1000 of ")
    assert f"{said}; is asked again in 4 seconds" in told or not whole


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(status=403), "does not allow it (HTTP status 403)"),
        (Fault(status=503), "is not ready (HTTP status 503)"),
        (Fault(redirect="{path}"), "leads in a circle, or to what is no address (HTTP status 302)"),
        (None, "cannot be reached"),
    ],
)
def test_a_failure_is_told_once(fault: Fault | None, said: str, bundle: Path, tmp_path: Path) -> None:
    """By the error; what the fetch goes on in spite of, by a note."""
    with RangeServer(bundle, fault_of=lambda asked: fault) as bad, RangeServer(bundle) as good:
        url = "http://127.0.0.1:9" if fault is None else bad.url
        failed = command(url, tmp_path / "here")
        assert failed.exit_code == 2 and failed.stderr.count(said) == 1 and "note:" not in failed.stderr
        done = command(url, tmp_path / "here", "--mirror", good.url)
        assert done.exit_code == 0 and done.stderr.count(f"note: {url}: {said}") == 1


def test_a_server_that_is_waited_for_is_told_with_the_reason(bundle: Path, tmp_path: Path) -> None:
    def later(asked: Asked) -> Fault | None:
        return Fault(status=503) if asked.path == WEIGHTS else None

    with RangeServer(bundle, fault_of=later) as server:
        failed = command(server.url, tmp_path / "here", "--connections", "1")
        again = f"note: {server.url}: is not ready (HTTP status 503); is asked again in 4 seconds\n"
        assert again in failed.stderr
        assert f"note: {server.url}: is not ready (HTTP status 503)\n" not in failed.stderr


def test_what_is_on_the_hub_has_an_address(tmp_path: Path) -> None:
    hub = "on the hub that is 'https://huggingface.co/owner/name/resolve"
    assert f"{hub}/main'\n" in command("hf:owner/name", tmp_path / "here").stderr
    assert f"{hub}/v1'\n" in command("hf:owner/name@v1", tmp_path / "here").stderr


def test_a_folder_that_looks_like_an_option(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "next: edgekit run ./-x " in command(bundle, "--", "-x").stderr
