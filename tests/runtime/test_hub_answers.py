"""A hub that answers what no hub does: one line, no token for others, no endless wait, nothing outside the
cache.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from click.testing import CliRunner
from huggingface_hub.utils import get_session, http_backoff
from support.fake_hub import TOKEN, Answering, FakeHub
from support.hub_bundles import folder_like_a_bundle

from edgekit.export.checkpoint import locate
from edgekit.runtime.hub import client, repository
from edgekit.runtime.hub.errors import (
    DownloadFailed,
    GatedModel,
    HubBusy,
    HubError,
    HubUnavailable,
    ModelNotFound,
    NotLoggedIn,
    UnexpectedAnswer,
)
from edgekit.runtime.hub.repository import Repository
from edgekit.tools.cli import main

INFO, TREE, FILES = "/api/models/[^/]*/[^/]*", "/api/models/.*/tree/.*", "/.*/resolve/.*"
CONFIG = b'{"model_type": "llada"}' + b" " * 800
COMMIT = "ab" * 20
Answer = Callable[[Answering], None]


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the test's own thread has slept, in seconds: it does not sleep, servers of tests before it do."""
    slept: list[float] = []
    own, sleep = threading.current_thread(), time.sleep

    def nap(seconds: float) -> None:
        if threading.current_thread() is own:
            slept.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", nap)
    return slept


@pytest.fixture
def model(hub: FakeHub) -> FakeHub:
    hub.add("owner/it", {"config.json": CONFIG, "model.safetensors": b"x" * 5000})
    return hub


def says(value: Any, status: int = 200, **headers: Any) -> Answer:
    body = value if isinstance(value, str) else json.dumps(value)
    return lambda answering: answering.says(body, status, **headers)


def refused(kind: type[HubError] = UnexpectedAnswer) -> str:
    """The one line."""
    with pytest.raises(kind) as error:
        locate("owner/it")
    assert type(error.value) is kind
    line = str(error.value)
    assert line.startswith("owner/it") and "\n" not in line and len(line) < 400
    return line


# --- the token ----------------------------------------------------------------------------------------------


def test_the_token_stays_with_the_hub(model: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with FakeHub() as other:
        other.instead[".*"] = says([])
        model.instead[TREE] = says([], Link=f'<{other.url}/api/models/owner/it/tree/x>; rel="next"')
        assert "goes on at" in refused()
        model.instead[TREE] = says([], Link='<http://[>; rel="next"')
        assert "goes on at" in refused()
        assert other.log == []
        # Of whatever is asked of another address, the library's own requests too.
        with client.terms("it"):
            http_backoff("GET", f"{other.url}/api", headers={"authorization": f"Bearer {TOKEN}"})
            http_backoff("GET", f"{model.url}/x", headers={"authorization": f"Bearer {TOKEN}"})
    assert [r.authorized for r in other.log] == [False]
    assert model.log[-1].authorized


def test_the_token_is_not_for_other_servers_of_xet(model: FakeHub) -> None:
    commit = model.repos["owner/it"].branches["main"]
    facts = {"ETag": '"abc"', "X_Repo_Commit": commit, "X_Xet_Hash": "ab" * 32}
    for header in ("X_Xet_Refresh_Route", "Link"):
        for address in ("http://127.0.0.2:1/key", "http://127.0.0.1:99999999/"):
            value = address if header != "Link" else f'<{address}>; rel="xet-auth"'
            model.instead[FILES] = says(CONFIG.decode(), **facts, **{header: value})
            assert "a key for Xet at" in refused()
    route = f"{model.url}/api/models/owner/it/xet-read-token/{commit}"
    model.instead[FILES] = says(CONFIG.decode(), **facts, X_Xet_Refresh_Route=route)
    assert Repository.open("owner/it").get("config.json").read_bytes() == CONFIG


def test_pages_of_the_list(model: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"f{i}" for i in range(3)]

    def page(answering: Answering) -> None:
        number = int(answering.path.partition("cursor=")[2] or 0)
        rows = [{"type": "file", "path": names[number], "size": number, "oid": "0" * 40}]
        # As a mirror that passes on the addresses of the hub that it mirrors.
        url = answering.path.partition("?")[0].join(("https://huggingface.co", f"?cursor={number + 1}"))
        link = {"Link": f'<{url}>; rel="next"'} if number < 2 else {}
        answering.says(json.dumps(rows), **link)

    model.instead[TREE] = page
    assert {n: f.size for n, f in Repository.open("owner/it").files.items()} == {"f0": 0, "f1": 1, "f2": 2}
    model.instead[TREE] = lambda answering: answering.says("[]", Link=f'<{answering.path}>; rel="next"')
    monkeypatch.setattr("edgekit.runtime.hub.answers.MAX_PAGES", 5, raising=False)
    del model.log[:]
    assert "does not end" in refused()
    assert len(model.log) == 6


def test_programs_have_the_librarys_client_to_themselves(
    model: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def factory() -> httpx2.Client:
        made.append(httpx2.Client(headers={"x-mine": "1"}, follow_redirects=True))
        return made[-1]

    huggingface_hub.set_client_factory(factory)
    try:
        assert Repository.open("owner/it").files
        assert get_session() is made[-1] and len(made) == 1
        model.instead[INFO] = says("x" * 100, Retry_After=1000, status=429)
        with FakeHub() as other:
            other.instead[".*"] = says([])
            get_session().get(other.url, headers={"authorization": f"Bearer {TOKEN}"})
            assert other.log[0].authorized
        assert get_session().get(f"{model.url}/api/models/owner/it").status_code == 429
    finally:
        huggingface_hub.set_client_factory(huggingface_hub.utils._http.default_client_factory)


# --- what it costs ------------------------------------------------------------------------------------------


def endless() -> Iterator[bytes]:
    return repeat(b" " * (1 << 16), 1 << 9)  # 32 MiB, lest the disk fills where nobody stops it


def test_a_file_that_does_not_end(model: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = model.repos["owner/it"].branches["main"]
    facts = {"ETag": '"abc"', "X_Repo_Commit": commit}

    def answer(answering: Answering) -> None:
        if answering.command == "HEAD":
            answering.says(CONFIG, **facts)
        else:
            answering.goes_on(endless(), **facts)

    model.instead["/.*/config.json"] = answer
    assert f"more than the {len(CONFIG)} bytes" in refused()
    packed = gzip.compress(b" " * (32 << 20))
    model.instead["/.*/config.json"] = lambda answering: answering.says(
        CONFIG if answering.command == "HEAD" else packed,
        **facts,
        **({} if answering.command == "HEAD" else {"Content_Encoding": "gzip"}),
    )
    assert f"more than the {len(CONFIG)} bytes" in refused()
    assert not list((tmp_path / "hub-cache").rglob("config.json"))
    assert not [p for p in (tmp_path / "hub-cache").rglob("blobs/*") if p.stat().st_size]
    # As the real hub does with small files.
    elsewhere = "/api/resolve-cache/models/owner/it/config.json"
    model.instead = {
        elsewhere: answer,
        "/.*/config.json": says("", 307, Location=elsewhere, X_Repo_Commit=commit),
    }
    assert f"more than the {len(CONFIG)} bytes" in refused()
    # Packed text of the right size is what the real hub sends.
    packed = gzip.compress(CONFIG)
    model.instead = {
        elsewhere: lambda answering: answering.says(
            CONFIG if answering.command == "HEAD" else packed,
            **facts,
            **({} if answering.command == "HEAD" else {"Content_Encoding": "gzip"}),
        ),
        "/.*/config.json": says("", 307, Location=elsewhere, X_Repo_Commit=commit),
    }
    found = Repository.open("owner/it")
    assert found.get("config.json").read_bytes() == CONFIG
    # Weights in pieces, of a server that knows no ranges, and where a download goes on.
    model.instead["/content/.*"] = lambda answering: answering.goes_on(endless())
    with pytest.raises(UnexpectedAnswer, match="more than the 5000 bytes"):
        found.fetch(["model.safetensors"])
    with pytest.raises(UnexpectedAnswer, match="more than the 5000 bytes"):
        found.read_range("model.safetensors", 10, 20)
    monkeypatch.setattr(repository, "RESUMED_FROM_BYTES", 100)
    with pytest.raises(UnexpectedAnswer, match="more than the 5000 bytes"):
        found.fetch(["model.safetensors"])


def test_a_file_that_ends_early(model: FakeHub, tmp_path: Path) -> None:
    """The library compares the file with its own answer's length, if there is one."""
    model.served_as |= {"config.json": CONFIG[:-1], "model.safetensors": b"x" * 4999}
    assert f"found {len(CONFIG) - 1} bytes, and {len(CONFIG)} in its list" in refused()
    with pytest.raises(DownloadFailed, match="size 5000 but has size 4999"):
        Repository.open("owner/it").fetch(["model.safetensors"])
    assert not [p for p in (tmp_path / "hub-cache").rglob("*") if p.name == "config.json"]
    assert not [p for p in (tmp_path / "hub-cache").rglob("blobs/*")]
    model.served_as.clear()
    assert Repository.open("owner/it").get("config.json").read_bytes() == CONFIG


@pytest.mark.parametrize("where", [INFO, TREE])
def test_an_answer_that_does_not_end(model: FakeHub, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 2 << 20)
    model.instead[where] = lambda answering: answering.goes_on(endless())
    assert "without end" in refused()
    packed = gzip.compress(b"[" + b" " * (32 << 20) + b"]")
    model.instead[where] = lambda answering: answering.says(packed, Content_Encoding="gzip")
    assert "without end" in refused()
    # A packing that is longer than its content.
    empty = b"\x00\x00\x00\xff\xff" * 4096
    model.instead[where] = lambda answering: answering.goes_on(
        (packed[:10] if i == 0 else empty for i in range(1 << 10)), Content_Encoding="gzip"
    )
    assert "without end" in refused()
    model.instead[where] = says("[" + "[]," * 600_000 + "[]]")
    assert "values at once" in refused()
    # An error says what it has to say in less.
    model.instead[where] = lambda answering: answering.says(b" " * (4 << 20), 418)
    assert "418" in refused(DownloadFailed)


def dripping(pause: float) -> Iterator[bytes]:
    for _ in range(200):
        time.sleep(pause)
        yield b" "


@pytest.mark.parametrize("where", [INFO, TREE])
def test_an_answer_that_comes_by_the_byte(
    model: FakeHub, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_S", 0.3)
    model.instead[where] = lambda answering: answering.goes_on(dripping(0.05))
    begun = time.monotonic()
    assert "the hub takes longer than 0 s for an answer" in refused(HubUnavailable)
    assert time.monotonic() - begun < 5


def test_a_file_that_comes_by_the_byte(model: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SPEED_WINDOW_S", 0.3)
    found = Repository.open("owner/it")
    model.instead["/content/.*"] = lambda answering: answering.goes_on(dripping(0.05))
    begun = time.monotonic()
    with pytest.raises(DownloadFailed, match="the server sends less than 1024 bytes per second"):
        found.fetch(["model.safetensors"])
    assert time.monotonic() - begun < 5
    monkeypatch.setattr(client, "MIN_SPEED", 1)
    model.instead.clear()
    found.fetch(["model.safetensors"])


def test_packed_answers_end_with_their_first_member(model: FakeHub) -> None:
    """What follows it takes no time: zlib would keep it all, and copy it for every block."""
    packed = gzip.compress(CONFIG)
    sent = []

    def members() -> Iterator[bytes]:
        for _ in range(1 << 10):
            sent.append(len(packed))
            yield packed

    text = b"".join(client._unpacked(members()))
    assert text == CONFIG and len(sent) == 1
    cut = b"".join(client._unpacked(packed[i : i + 1] for i in range(len(packed))))
    assert cut == CONFIG
    model.instead[INFO] = lambda answering: answering.says(b"x", Content_Encoding="deflate")
    assert "a packing that was not asked for, 'deflate'" in refused()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_waits_are_bounded(model: FakeHub, naps: list[float], status: int) -> None:
    asks = {"RateLimit": '"api";r=0;t=100000', "Retry_After": 100000}
    found = Repository.open("owner/it")
    model.instead[FILES] = says("{}", status, **asks)
    for ask in (
        lambda: found.read_range("model.safetensors", 0, 100),
        lambda: found.get("config.json"),
    ):
        with pytest.raises(HubBusy, match=r"asks to wait 28 hours") as error:
            ask()
        assert str(error.value).startswith("owner/it@") and "\n" not in str(error.value)
    model.instead = {TREE: says("{}", status, Retry_After="9" * 5000)}
    assert "asks to wait years" in refused(HubBusy)
    assert sum(naps) == 0
    # A short one is slept, and then it goes on.
    answers = iter([says("{}", status, Retry_After=5)])

    def once(answering: Answering) -> None:
        model.instead.pop(TREE)
        next(answers)(answering)

    model.instead = {TREE: once}
    assert Repository.open("owner/it").files and naps == [6]


def test_a_hub_that_is_being_mended_leaves_the_cache(model: FakeHub) -> None:
    Repository.open("owner/it").get("config.json")
    model.instead["/.*"] = says("{}", 503, Retry_After=3600)
    found = Repository.open("owner/it")
    assert not found.online and "asks to wait 60 minutes" in found.remark
    with pytest.raises(HubBusy, match="60 minutes"):
        Repository.open("owner/other")


# --- what it says -------------------------------------------------------------------------------------------

PAGE = "<!DOCTYPE html><html><body>Welcome to Hotel Wifi, please sign in</body></html>"
ROW = {"type": "file", "path": "a.json", "size": 1, "oid": "0" * 40}


@pytest.mark.parametrize(
    ("where", "value", "found"),
    [
        *((where, PAGE, "a web page") for where in (INFO, TREE)),
        *((where, "", "no JSON") for where in (INFO, TREE)),
        *((where, "[" * 200_000, "no JSON") for where in (INFO, TREE)),
        *((where, "5" * 5000, "no JSON") for where in (INFO, TREE)),
        *((where, None, "JSON of null") for where in (INFO, TREE)),
        (INFO, [], "JSON of a list"),
        *((INFO, {"sha": sha}, "the commit") for sha in (None, 5, "..", "main", "../../../evil")),
        (INFO, {}, "the commit"),
        (TREE, {}, "JSON of an object"),
        *((TREE, rows, "something else than files") for rows in ([None], ["a"], [{}], [{"type": None}])),
        *(
            (TREE, [ROW | {"path": path}], "a file named")
            for path in (None, 5, "", "..", "../a", "a/../b", "/etc/x", "..\\x.js", "C:x", "a\0b", "\ud800")
        ),
        (TREE, [{"type": "file"}], "a file named"),
        *((TREE, [ROW | {"size": size}], "bytes") for size in (None, "1", -1, 1.5, True, 1 << 70)),
        *((TREE, [ROW | {"lfs": lfs}], "SHA-256") for lfs in (5, {}, {"oid": "x"}, {"oid": "../" * 21})),
    ],
)  # fmt: skip
def test_answers_of_no_hub(model: FakeHub, where: str, value: Any, found: str) -> None:
    model.instead[where] = says(value)
    line = refused()
    assert "does not answer as a hub" in line and found in line
    assert "check HF_ENDPOINT, or sign in to the network" in line


def test_the_page_of_a_network_that_wants_a_login(model: FakeHub) -> None:
    model.instead["/login"] = says(PAGE)
    model.instead[INFO] = says("", 302, Location=f"{model.url}/login")
    assert "a web page" in refused()
    result = CliRunner().invoke(main, ["export", "owner/it", "-o", "nowhere"])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "body", ["[]", "null", '{"error": {}, "errors": 5}', '{"errors": [5]}', "[" * 200_000]
)
def test_errors_of_any_shape(model: FakeHub, body: str) -> None:
    model.instead[INFO] = says(body, 418)
    assert "418" in refused(DownloadFailed)


@pytest.mark.parametrize(
    "facts",
    [
        {"ETag": '"abc"', "X_Repo_Commit": COMMIT},
        {"ETag": '"abc"', "X_Repo_Commit": "main"},
        {"ETag": '"abc"'},
        {"X_Repo_Commit": ""},
        *({"ETag": f'"{name}"', "X_Repo_Commit": ""} for name in ("../../../../evil", "..", "a b", "/etc/x")),
    ],
)
def test_a_file_that_is_not_the_commits(model: FakeHub, tmp_path: Path, facts: dict[str, str]) -> None:
    if facts.get("X_Repo_Commit") == "":
        facts = facts | {"X_Repo_Commit": model.repos["owner/it"].branches["main"]}
    model.instead[FILES] = says(CONFIG.decode(), **facts)
    line = refused()
    assert "config.json: does not answer as a hub" in line
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.read_bytes() == CONFIG]


def test_a_cache_that_a_branch_is_wrong_in(
    model: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository.open("owner/it").get("config.json")
    [note] = (tmp_path / "hub-cache").rglob("refs/main")
    assert note.read_text() == model.repos["owner/it"].branches["main"]
    note.write_text("main")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "which is no commit" in refused(HubUnavailable)


def test_a_revision_that_git_does_not_have(model: FakeHub) -> None:
    for revision in ("../../x", "/x", "a\\b", "a\0b", "-x"):
        with pytest.raises(ModelNotFound, match="is no name of a branch"):
            locate("owner/it", revision)
    assert model.log == []


# --- what it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [
        (401, NotLoggedIn, r"\(401\).*hf auth login"),
        (403, GatedModel, r"\(403\); accept its licence at https://huggingface.co/owner/it"),
        (404, DownloadFailed, r"\(404\); choose another revision"),
        (418, DownloadFailed, "418.*check HF_ENDPOINT"),
        (429, HubBusy, r"\(429\); run this again in some minutes"),
    ],
)
def test_a_file_that_is_refused(
    model: FakeHub, naps: list[float], status: int, kind: type[HubError], advice: str
) -> None:
    found = Repository.open("owner/it")
    model.instead[FILES] = says("", status)
    for ask in (
        lambda: found.get("config.json"),
        lambda: found.read_range("config.json", 0, 10),
    ):
        with pytest.raises(kind, match=advice) as error:
            ask()
        line = str(error.value)
        assert type(error.value) is kind and line.startswith(f"owner/it@{found.commit}: config.json: ")
        assert "\n" not in line and len(line) < 400 and "None" not in line and "firewall" not in line


@pytest.mark.parametrize("path", ["/api/whoami-v2", "/api/repos/create", ".*/preupload/.*", ".*/commit/.*"])
@pytest.mark.parametrize(
    "body", [PAGE, "null", "5", "[" * 200_000, "{}"], ids=["page", "null", "5", "deep", "{}"]
)
def test_an_upload_to_no_hub(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, body: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    bundle = folder_like_a_bundle(tmp_path / "bundle")
    hub.instead[path] = says(body)
    result = CliRunner().invoke(main, ["push", str(bundle), "owner/it"])
    if result.exit_code:
        *_, line = result.stderr.splitlines()
        assert result.exit_code == 2 and line.startswith("edgekit: error: owner/it: "), result.stderr
        assert "does not answer as a hub" in line or "the upload failed" in line
    else:
        assert path == "/api/whoami-v2"  # nobody looks at what it says
