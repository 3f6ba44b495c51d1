"""`edgekit selftest`, and the golden results that the tiny models bring."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from support import sealing
from support.golden_reference import SCHEMES, golden_of

from edgekit.export.bundle_files import golden_name
from edgekit.export.checkpoint.hub import SHIPPED_MODELS, resolve
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import bundle_set, files
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import DiskFull, MalformedFile
from edgekit.runtime import engine_registry
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.golden import GOLDEN_FILE, Golden, Pass, loads
from edgekit.runtime.session import open_session
from edgekit.tools import golden
from edgekit.tools.cli import main
from edgekit.tools.commands.selftest import report_name


def selftest(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["selftest", *map(str, words)])


@pytest.fixture(scope="module", params=SHIPPED_MODELS)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "bundle"
    export(resolve(request.param), folder, ExportOptions("native", scheme=SCHEMES[0], source=request.param))
    return request.param, folder


@pytest.fixture
def bundle(shipped: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, beside an empty current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path(shutil.copytree(shipped[1], tmp_path / "model"))


def test_what_the_tiny_models_bring_is_the_references(shipped: tuple[str, Path]) -> None:
    name, folder = shipped
    for scheme in SCHEMES:
        made = golden_of(name, scheme, folder)
        brought = loads((resolve(name) / golden_name(scheme)).read_bytes(), name)
        compared = golden.compare(made, brought)
        assert compared.decibels > 60 and compared.verdict == "equal"
    assert (folder / GOLDEN_FILE).read_bytes() == (resolve(name) / golden_name(SCHEMES[0])).read_bytes()


@pytest.mark.parametrize(
    ("given", "engine", "named"),
    [
        ("model", None, "selftest-model.json"),
        ("model", "torch", "selftest-model-torch.json"),
        ("some-set", "native", "selftest-some-set-native.json"),
        ("some-set/native", None, "selftest-some-set-native.json"),
        ("some-set/native", "native", "selftest-some-set-native.json"),
        ("some-set/native", "torch", "selftest-some-set-native-torch.json"),
    ],
)
def test_reports_of_different_bundles_and_engines_have_different_names(
    given: str, engine: str | None, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("model", "some-set/native"):
        (tmp_path / folder).mkdir(parents=True)
    bundle_set.save(BundleSet((Member("native", "native", {}),)), tmp_path / "some-set")
    monkeypatch.chdir(tmp_path)
    assert report_name(given, Path(given), engine) == named
    monkeypatch.chdir(given)
    assert report_name(".", Path("."), engine) == named


def test_a_report_says_what_was_compared_and_how_long_it_took(bundle: Path) -> None:
    done = selftest(bundle, "--passes", "2")
    assert done.exit_code == 0, done.output
    assert "golden results" in done.stdout and done.stdout.endswith("report: selftest-model.json\n")
    text = Path("selftest-model.json").read_text()
    report = json.loads(text)
    assert report["golden"]["verdict"] in ("equal", "close") and report["golden"]["same_tokens"]
    assert report["golden"]["decibels"] > 14 and "reference" in report["golden"]["by"]["engine"]
    assert len(report["timing"]["pass_seconds"]) == 2 and report["memory"]["peak_bytes"] > 0
    assert report["engine"]["name"] == "native" and report["engine"]["threads"] > 0
    assert report["engine"]["libraries"]["torch"] == torch.__version__
    assert report["machine"]["architecture"] == platform.machine()
    assert str(bundle.parent) not in text and not re.search(rf"\b{re.escape(platform.node())}\b", text)


def test_one_object_where_it_is_asked_for_and_a_budget(bundle: Path) -> None:
    done = selftest(bundle, "--json", "--passes", "1", "--memory", "8GB")
    assert json.loads(done.stdout)["memory"]["budget_bytes"] == 8_000_000_000
    assert not list(Path().iterdir()) and done.stderr == ""
    refused = selftest(bundle, "--memory", "1MB")
    assert refused.exit_code == 2 and refused.stderr.splitlines()[-1].startswith(
        "edgekit: error: --memory 1MB:"
    )


def test_results_that_are_unrelated_are_different(bundle: Path) -> None:
    known = golden.read(Bundle.open(bundle))
    assert known is not None
    wrong = [replace(each, log_z=each.log_z[::-1]) for each in known.passes]
    golden.record(bundle, replace(known, passes=wrong))
    done = selftest(bundle, "--passes", "1")
    assert done.exit_code == 1 and "golden results  different: " in done.stdout


def test_results_that_are_not_numbers_or_other_tokens_are_different() -> None:
    known = Golden([Pass([], [1, 2], False, [7, 8], [1.0, 2.0], [0.5, 1.0])], [4], [5])
    for change in (
        {"log_z": [math.nan, 2.0]}, {"log_z": [math.nan] * 2, "entropy": [math.nan] * 2},
        {"entropy": [math.inf, 1.0]}, {"log_z": [1e300, 2.0]}, {"argmax": [8, 9]},
    ):  # fmt: skip
        found = golden.compare(replace(known, passes=[replace(known.passes[0], **change)]), known)
        assert found.verdict == "different", change


def test_a_disk_that_fills_while_results_are_recorded_leaves_the_bundle_as_it_was(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = golden.read(Bundle.open(bundle))
    assert known is not None
    before = {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()}

    def full(path: Path, data: bytes) -> None:
        if path.name == "manifest":
            raise files.write_failed(f"{path}: cannot write", OSError(errno.ENOSPC, "full"))
        files.write_atomic(path, data)

    monkeypatch.setattr(golden, "write_atomic", full)
    with pytest.raises(DiskFull):
        golden.record(bundle, replace(known, tokens=[1]))
    assert {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()} == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_report_does_not_take_the_place_of_what_is_no_file(bundle: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused = selftest(bundle, "-o", tmp_path / "fifo")
    assert refused.exit_code == 2 and "fifo: is there, and is no regular file" in refused.stderr
    assert (tmp_path / "fifo").is_fifo()


def test_a_report_is_no_file_of_the_bundle(bundle: Path) -> None:
    for path, said in ((bundle / "edgekit.json", "lies in the bundle"), (bundle / "x" / "y", "is no folder")):
        refused = selftest(bundle, "-o", path)
        assert refused.exit_code == 2 and said in refused.stderr


def test_all_that_a_step_does_is_in_the_golden_passes(shipped: tuple[str, Path]) -> None:
    """They say different tokens, and an answer; self-conditioning changes them."""
    name, folder = shipped
    known = golden.read(Bundle.open(folder))
    assert known is not None and len(set(known.passes[-1].argmax)) > 9 and len(set(known.tokens)) > 9
    assert [each.soft for each in known.passes] == (
        [False, False, True] if name == "tiny-gemma" else [False] * 2
    )
    if name == "tiny-gemma":
        with open_session(folder) as session:
            without = golden.passes([replace(each, soft=False) for each in known.passes], session)
        assert golden.compare(replace(known, passes=without), known).verdict == "different"


def test_the_engine_is_that_of_the_target(shipped: tuple[str, Path], tmp_path: Path) -> None:
    """On a GPU where it has one; else it is said what was tested."""
    export(resolve(shipped[0]), tmp_path / "bundle", ExportOptions("native", "rtx", SCHEMES[0]))
    done = selftest(tmp_path / "bundle", "--json", "--passes", "1")
    report = json.loads(done.stdout)
    assert report["engine"]["name"] == "torch" and report["engine"]["device"] == "cpu"
    assert f"note: PyTorch {torch.__version__} finds no CUDA GPU" in done.stderr
    assert report["bundle"]["target"] == "rtx" and report["golden"]["verdict"] in ("equal", "close")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_registry, "_installed", lambda module: module != "torch")
        refused = selftest(tmp_path / "bundle", "--json")
    assert refused.exit_code == 2 and "--engine native tests the processor instead" in refused.stderr


def test_what_is_recorded_here_is_equal_here(bundle: Path) -> None:
    sealing.edit(bundle, lambda manifest: manifest["files"].pop(GOLDEN_FILE))
    (bundle / GOLDEN_FILE).unlink()
    done = selftest(bundle, "--passes", "1")
    assert done.exit_code == 0 and "golden results  none in this bundle; --record" in done.stdout
    done = selftest(bundle, "--passes", "1", "--record")
    assert done.exit_code == 0 and "golden results recorded in" in done.stderr
    again = selftest(bundle, "--passes", "1", "--record")
    assert again.exit_code == 2 and "golden results already, by native; --overwrite" in again.stderr
    assert selftest(bundle, "--passes", "1", "--record", "--overwrite").exit_code == 0
    done = selftest(bundle, "--passes", "1", "--json")
    report = json.loads(done.stdout)
    assert report["golden"]["verdict"] == "equal" and report["golden"]["decibels"] is None
    assert report["golden"]["by"]["engine"] == "native"
    assert CliRunner().invoke(main, ["verify", str(bundle)]).exit_code == 0


@pytest.mark.parametrize("scheme", [Scheme("int8"), Scheme("mixed4", 16)], ids=str)
def test_bundles_of_other_schemes_bring_none(tmp_path: Path, scheme: Scheme) -> None:
    export(resolve("tiny-llada"), tmp_path / "bundle", ExportOptions("native", scheme=scheme))
    assert golden.read(Bundle.open(tmp_path / "bundle")) is None


def test_how_far_results_are_from_golden_ones() -> None:
    def results(argmax: list[int], log_z: list[float], tokens: list[int]) -> Golden:
        return Golden([Pass([], [1, 2, 3], False, argmax, log_z, [0.5, 1.0, 1.5])], [4], tokens)

    known = results([7, 8, 9], [1.0, 2.0, 4.0], [5, 6])
    same = golden.compare(known, known)
    assert (same.verdict, same.same_argmax, same.decibels) == ("equal", 1.0, math.inf)
    near = golden.compare(results([7, 8, 0], [1.0, 2.0, 4.1], [5, 6]), known)
    variance, error = 14 / 9, 0.1**2 / 3
    assert near.decibels == pytest.approx(10 * math.log10(variance / error)) and near.verdict == "close"
    assert near.same_argmax == pytest.approx(2 / 3)
    assert golden.compare(results([7, 8, 9], [1.0, 2.0, 4.1], [5, 5]), known).verdict == "close"
    assert golden.compare(results([7, 8, 9], [4.0, 2.0, 1.0], [5, 6]), known).verdict == "different"


def test_the_worst_pass_counts_beside_the_spread_of_all() -> None:
    def results(*log_z: list[float]) -> Golden:
        return Golden([Pass([], [1, 2], False, [7, 8], each, [0.5, 1.0]) for each in log_z], [4], [5])

    known = results([1.0, 1.001], [3.0, 5.0])  # rows of the first hardly differ
    near = golden.compare(results([1.0, 1.003], [3.0, 5.0]), known)
    variance, error = statistics.pvariance([1.0, 1.001, 3.0, 5.0]), 0.002**2 / 2
    assert near.decibels == pytest.approx(10 * math.log10(variance / error))
    worse = golden.compare(results([1.0, 1.003], [3.0, 5.1]), known)
    assert worse.decibels == pytest.approx(10 * math.log10(variance / (0.1**2 / 2)))
    for wrong in ([5.0, 1.0], [-1.0, 1.001]):
        assert golden.compare(results(wrong, [3.0, 5.0]), known).verdict == "different"


def one(**changes: Any) -> dict[str, Any]:
    made = {"prefix": [], "canvas": [1], "soft": False, "argmax": [2], "log_z": [1.0], "entropy": [0.5]}
    return made | changes


def content(**changes: Any) -> bytes:
    table = {"version": 2, "by": {}, "passes": [one()], "generation": {"prompt": [1], "tokens": []}}
    return json.dumps(table | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 100_000, content(version=1), content(by=3),
        content(passes=3), content(generation=None), content(generation={"prompt": ["a"], "tokens": []}),
        content(generation={"prompt": [1.5], "tokens": []}), content(passes=[{}]),
        content(passes=[one(argmax=[])]), content(passes=[one(canvas=[], argmax=[], log_z=[], entropy=[])]),
        content(passes=[one(log_z=["x"])]),
        content(passes=[one(log_z=[math.nan])]), content(passes=[one(entropy=[1e200])]),
        content(passes=[one(log_z=[10**400])]), content(passes=[one(soft=1)]),
        content(passes=[one(soft=True)]),
        content(passes=[one(), one(prefix=[1], soft=True)]),
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)  # fmt: skip
def test_files_that_are_none_are_refused_in_one_line(data: bytes) -> None:
    assert loads(content(), "golden.json").tokens == []
    with pytest.raises(MalformedFile, match=r"^there/golden\.json: ") as refused:
        loads(data, "there/golden.json")
    assert "\n" not in str(refused.value)
