"""`edgekit sweep`: grids, what is left of them, and a sweep that is killed, goes on, and is changed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.checkpoints import write_checkpoint

from edgekit.tools.cli import main
from edgekit.tools.sweep import units
from edgekit.tools.sweep.grid import WrongValue, grid_of
from edgekit.tools.sweep.store import BEGUN, DONE, REPORTS, UNITS, Store, left, manifest_digest
from edgekit.tools.sweep.units import Job, jobs_of

#: Measurements of moments.
QUICK = "runs = 1\nwarmups = 0\nforwards = 1\nprobe = false\n"


def sweep(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["sweep", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def planned(**given: Any) -> list[Job]:
    return jobs_of(grid_of({"model": "tiny-gemma", **given}))


# --- plans --------------------------------------------------------------------------------------------------


def test_lists_are_combined_in_the_order_of_the_file() -> None:
    grid = grid_of(
        {
            "quant": ["int8", "mixed4"],
            "memory": ["100MB", "all"],
            "model": "tiny-gemma",
            "cold": True,
            "probe": False,
            "override": [[], ["layers.0.*=8", "layers.1.*=8"]],
            "procedure": {
                "default": {},
                "fast": {"steps": [4, 8], "remasking": "entropy", "eos_token_ids": [[1, 2]]},
            },
        }
    )
    both = ("--override", "layers.0.*=8", "--override", "layers.1.*=8")
    assert [line.words for line in grid.exports] == [
        ("--quant", quant, *override, "--", "tiny-gemma")
        for quant in ("int8", "mixed4")
        for override in ((), both)
    ]
    set_ = "--set", "remasking=entropy", "--set", "eos_token_ids=[1, 2]"
    assert [line.words for line in grid.benches] == [
        ("--memory", memory, "--cold", "--no-probe", *words)
        for memory in ("100MB", "all")
        for words in ((), ("--set", "steps=4", *set_), ("--set", "steps=8", *set_))
    ]
    assert [line.title for line in grid.benches][:2] == [
        "memory 100MB, default",
        "memory 100MB, steps 4, fast",
    ]


def test_bundles_are_named_as_export_names_them() -> None:
    (plain,) = planned()
    assert plain.export.bundle == "tiny-gemma-host-mixed4"
    many = planned(target=["host", "mac"], quant="int8", **{"group-size": 64, "override": "layers.0.*=8"})
    names = [job.export.bundle for job in many]
    for name, target in zip(names, ("host", "mac"), strict=True):
        assert re.fullmatch(rf"tiny-gemma-{target}-int8-overrides-[0-9a-f]{{8}}-group-size-64", name)


def test_a_unit_is_known_by_all_that_its_result_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is 1 + 2?", "answer": 3}\n')
    write_checkpoint(tmp_path / "model", "llada", n_layers=1)

    def digests(**given: Any) -> Mapping[str, str]:
        (job,) = planned(**{"model": str(tmp_path / "model"), "prompts": str(prompts), **given})
        assert len(job.benches) == 1
        return {unit.kind: unit.digest for unit in job.units}

    first = digests()
    assert digests() == first == digests(memory="all", procedure={"another name": {}})

    def changed(**given: Any) -> set[str]:
        now = digests(**given)
        return {kind for kind in now if now[kind] != first[kind]}

    assert changed(memory="100MB") == changed(procedure={"fast": {"steps": 4}}) == {"bench"}
    assert changed(evaluate=True) == {"verify"}
    assert changed(quant="int8") == {"export", "verify", "bench"}
    prompts.write_text('{"prompt": "What is 1 + 2?", "answer": 4}\n')
    assert changed() == {"bench"}
    prompts.write_text('{"prompt": "What is 1 + 2?", "answer": 3}\n')
    assert not changed()
    with monkeypatch.context() as patch:
        patch.setattr(units, "installed_version", lambda: "0.0.1")
        assert changed() == {"export", "verify", "bench"}
    (tmp_path / "model" / "config.json").touch()
    assert changed() == {"export", "verify", "bench"}


def test_what_is_left_follows_from_what_is_there(tmp_path: Path) -> None:
    (job,) = planned(memory=["100MB", "all"])
    store = Store(tmp_path / "sweep")
    with store.claimed():
        assert left(job, store) == list(job.units)
        store.put(job.export, {"state": BEGUN})
        assert left(job, store) == list(job.units)
        bundle = store.bundle(job.export)
        bundle.mkdir()
        (bundle / "edgekit.json").write_text("{}")
        store.put(job.export, {"state": DONE, "manifest": manifest_digest(bundle)})
        store.put(job.benches[0], {"state": DONE})
        assert left(job, store) == [job.verify, job.benches[1]]
        (bundle / "edgekit.json").write_text("{} ")  # another one came there
        assert left(job, store) == [job.export, job.verify, job.benches[1]]
        assert store.begin(job.export) == []  # which is none of ours: the export refuses
        for unit in (job.verify, job.benches[1]):
            store.put(unit, {"state": DONE})
        store.put(job.export, {"state": DONE, "manifest": "gone"})
        assert left(job, store) == [], "nothing needs the bundle"


def test_what_holds_a_number_past_a_float_is_done_again(tmp_path: Path) -> None:
    (job,) = planned()
    store = Store(tmp_path / "sweep")
    with store.claimed():
        store.put(job.verify, {})
        (file,) = (store.folder / UNITS).glob("verify-*.json")
        for number, outcome in (("1.5", {"checks": 1.5}), ("1e999", None)):
            file.write_text(f'{{"checks": {number}}}')
            assert store.outcome(job.verify) == outcome


def test_an_export_begins_as_its_folder_asks_for(tmp_path: Path) -> None:
    (old,), (new,) = planned(), planned(model=str(Path("tiny-gemma")), decoding="mdlm")
    new = Job(units.Unit("export", new.export.words, old.export.bundle, new.export.digest), new.verify, ())
    store = Store(tmp_path / "sweep")
    folder = store.bundle(old.export)
    with store.claimed():
        assert store.begin(old.export) == []
        folder.mkdir()
        (folder / "weights.partial").touch()
        assert store.begin(old.export) == ["--resume"]
        assert store.begin(new.export) == ["--overwrite"], "half a bundle of what the file said before"
        assert store.begin(old.export) == ["--overwrite"], "and back"
        (folder / "edgekit.json").write_text("{}")
        assert store.begin(old.export) == ["--resume"], "it was killed when the bundle was whole"
        store.put(old.export, {"state": DONE, "manifest": manifest_digest(folder)})
        assert store.begin(new.export) == ["--overwrite"]
        assert store.begin(new.export) == ["--overwrite"], "killed before it had replaced anything"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('quant = "int8"', "there is no model"),
        ('model = "tiny-gemma"\nmemry = "1GB"', "unknown key 'memry'; did you mean memory?"),
        ('model = "tiny-gemma"\nquant = []', "quant is an empty list"),
        ('model = "tiny-gemma"\nquant = ["int8", "int7"]', "quant: unknown preset 'int7'; did you mean"),
        ('model = "tiny-gemma"\nengine = "warp"', "engine: unknown engine 'warp'"),
        ('model = "tiny-gemma"\nlengths = "a"', "lengths"),
        ('model = "tiny-gemma"\nsoc = "sm8650,sm9999"', "soc: unknown chip 'sm9999'"),
        ('model = "tiny-gemma"\nsoc = "sm7550"', "soc: chip 'sm7550' is not supported: its NPU"),
        ('model = "tiny-gemma"\noverride = "x"', "override"),
        ('model = "tiny-gema"', "model: tiny-gema: no such directory"),
        ('model = "tiny-gemma"\n[procedure.a]\nstps = 4', "procedure.a.stps: stps is not a sampling option"),
        ('model = "tiny-gemma"\ntarget = "isos"', "target: unknown target 'isos'; did you mean ios"),
        ('model = "tiny-gemma"\nformat = "nativ"', "format: unknown format 'nativ'; did you mean native"),
        ('model = "tiny-gemma"\nmemory = "12 bananas"', "memory: size '12 bananas' is not understood"),
        ('model = "tiny-gemma"\nmemory = "1GB,2GB"', "memory is '1GB,2GB'; write several values as a list"),
        ('model = "tiny-gemma"\nmemory = ["1GB", "1GB"]', "a value is there twice"),
        ('model = "tiny-gemma"\nruns = 0', "runs is 0; use an integer from 1 to 10000"),
        ('model = "tiny-gemma"\nruns = true', "runs is True; give text or a number"),
        ('model = "tiny-gemma"\ncold = "yes"', "cold is 'yes'; use true or false"),
        ('model = "tiny-gemma"\nset = "steps=4"', "[procedure.fast]"),
        ('model = "tiny-gemma"\nprocedure = 3', "procedure is 3; write a table"),
        ('model = "tiny-gemma"\n[procedure.a]\nsteps = []', "procedure.a.steps is an empty list"),
        ('model = "tiny-gemma"\n[procedure.a]\nsteps = "4,8"', "write several values as a list"),
        ('model = "tiny-gemma"\n[procedure.a]\nsteps = nan', "procedure.a.steps is nan"),
        ('model = "tiny-gemma"\nscore = "a.py:b"', "--score is for prompts of your own"),
        ('model = "tiny-gemma"\nprompts = "x"\nruns = 2', "--prompts and --runs exclude each other"),
        ('model = "tiny-gemma"\nprompts = "no-such-file"', "no-such-file: cannot open"),
        (f'model = "tiny-gemma"\nthreads = {[*range(1, 99)]}\nruns = {[*range(1, 199)]}', "at most 10000"),
        ('model = ["a/tiny", "b/tiny"]', "two exports of the sweep have the folder"),
        ("model = ", "is no TOML"),
        (f"model = {'9' * 5000}", "is no TOML"),
        (
            'model = "tiny-gemma"\n[procedure.a]\n'
            + "".join(f"{n} = {[*range(1, 40)]}\n" for n in ("steps", "canvas_length", "entropy_bound")),
            "procedure.a makes too many settings; a sweep measures at most 10000",
        ),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    done = sweep(file, "-o", tmp_path / "out", code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
    assert not (tmp_path / "out").exists()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model = "tiny-gemma"\n')
    assert "holds other things" in sweep(tmp_path / "a.toml", "-o", tmp_path, code=2).stderr
    store = Store(tmp_path / "out")
    with store.claimed():
        done = sweep(tmp_path / "a.toml", "-o", tmp_path / "out", code=2)
        assert "another sweep writes to it" in done.stderr
    (tmp_path / "out" / "reports.jsonl").write_text("precious")
    assert "is no file of reports" in sweep(tmp_path / "a.toml", "-o", tmp_path / "out", code=2).stderr
    (tmp_path / "theirs" / UNITS).mkdir(parents=True)
    assert "holds other things" in sweep(tmp_path / "a.toml", "-o", tmp_path / "theirs", code=2).stderr
    with pytest.raises(WrongValue, match="no model"):
        grid_of({})


@pytest.mark.parametrize(
    "change",
    [{"report": {}}, {"report": "x"}, {"report": None}, {"mean_error": "x"}, {"checks": []}, {"error": 3}],
)
def test_an_outcome_that_no_table_can_show_is_done_again(tmp_path: Path, change: dict[str, Any]) -> None:
    store, (job, *_) = Store(tmp_path / "out"), jobs_of(grid_of({"model": "tiny-gemma"}))
    with store.claimed():
        store.put(job.verify, {"state": DONE, "mean_error": 0.1, "checks": 3, "preset": "int8"})
        assert store.is_done(job.verify)
        store.put(job.verify, {"state": DONE, **change})
        assert not store.is_done(job.verify) and store.outcome(job.verify) is None


def test_an_export_is_another_one_when_its_texts_are(tmp_path: Path) -> None:
    file, digests = tmp_path / "texts.txt", []
    for text in ("The sky is blue.", "The sea is salt.", "The sky is blue."):
        file.write_text(text)
        (job,) = jobs_of(grid_of({"model": "tiny-llada", "target": "android", "calibrate": str(file)}))
        digests.append(job.export.digest)
    assert digests[0] == digests[2] != digests[1]


# --- a sweep ------------------------------------------------------------------------------------------------


def states(folder: Path) -> dict[Path, Any]:
    return {path: json.loads(path.read_bytes()) for path in sorted((folder / UNITS).glob("*-*.json"))}


def done_in(folder: Path, kind: str) -> int:
    return sum(each["kind"] == kind and each["state"] == DONE for each in states(folder).values())


def test_who_is_killed_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    file, folder = tmp_path / "tiny.toml", tmp_path / "out"
    text = 'model = "tiny-gemma"\nquant = ["mixed4", "int8"]\nmemory = ["100MB", "all"]\n'
    file.write_text(text + QUICK)
    assert "8 of 8 steps left" in sweep(file, "-o", folder, "--dry-run").stdout and not folder.exists()
    begun = [sys.executable, "-m", "edgekit", "sweep", str(file), "-o", str(folder)]
    with subprocess.Popen(begun, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end = time.monotonic() + 120  # the second export is under way
        while not list(folder.glob("*-int8/*")):
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.02)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = {path: each for path, each in states(folder).items() if each["state"] == DONE}
    assert len(before) == 4
    times = {path: path.stat().st_mtime_ns for path in before}
    assert "4 of 8 steps left" in sweep(file, "-o", folder, "--dry-run").stdout
    done = sweep(file, "-o", folder)
    assert times == {path: path.stat().st_mtime_ns for path in before}
    names = [f"tiny-gemma-host-{quant}" for quant in ("mixed4", "int8") for _ in range(2)]
    cells = [
        [c.strip() for c in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line
    ]
    assert [row[0] for row in cells] == ["bundle", *["-" * len(cells[1][0])], *names]
    head = cells[0]
    assert {"preset", "size", "memory", "verified", "largest error", "ms/forward"} <= set(head)
    assert not {"failed", "procedure", "machine"} & set(head)
    assert [row[head.index("memory")] for row in cells[2:]] == ["100 MB", "all"] * 2
    merged = CliRunner().invoke(main, ["bench", "--merge", str(folder / REPORTS), "-o", "json"])
    reports = json.loads(merged.stdout)
    rows = json.loads(sweep(file, "-o", folder, "--table", "json").stdout)
    assert [row["forward_ms"] for row in rows] == [row["forward_ms"] for row in reports]
    assert [row["preset"] for row in rows] == ["mixed4", "mixed4", "int8", "int8"]
    assert rows[0]["largest_error"] > rows[2]["largest_error"] > 0 and rows[0]["checks"] > 10

    # Another budget, which is too small, and prompts in place of runs: the bundles stay.
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(
        '{"prompt": "What is 23 + 45?", "answer": 68}\n{"prompt": "What is 2 + 3?", "answer": 6}\n'
    )
    file.write_text(
        f'{text}prompts = "{prompts}"\nprobe = false\n'.replace('"all"', '"1MB"').replace('["mixed4", ', "[")
    )
    done = sweep(file, "-o", folder, "--table", "jsonl", code=1)
    good, bad = map(json.loads, done.stdout.splitlines())
    assert good["score"] == 0.5 and good["memory_bytes"] == 100_000_000 and good["tokens_per_second"] > 0
    assert bad["told"] == {"memory": "1MB"} and "too small" in bad["error"]
    assert "1 step failed" in done.stderr and done_in(folder, "export") == 2
    assert "--html draws runs" in sweep(file, "-o", folder, "--html", tmp_path / "page.html", code=2).stderr
    done = sweep(file, "-o", folder, code=1)
    assert "50.0 %" in done.stdout and "memory 1MB: a memory budget" in done.stdout
    assert "1 of 1: bench tiny-gemma-host-int8, memory 1MB" in done.stderr, "what failed is tried again"


def test_what_is_refused_or_damaged_has_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "llada", n_layers=1)
    file, folder = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(f'model = "{tmp_path / "model"}"\nprecision = ["float32", "float16"]\n{QUICK}')
    done = sweep(file, "-o", folder, "--table", "jsonl", code=1)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 and all("precision" in row["error"] for row in found), "the native format has one"
    file.write_text(f'model = "{tmp_path / "model"}"\n{QUICK}')
    sweep(file, "-o", folder)
    (bundle,) = folder.glob("*-mixed4")
    weights = bundle / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5000] + bytes([whole[-5000] ^ 255]) + whole[-4999:])
    (verified,) = [
        path for path, each in states(folder).items() if each["kind"] == "verify" and "checks" in each
    ]
    verified.unlink()
    done = sweep(file, "-o", folder, code=1)
    assert "damaged: " in done.stderr and "exports it again" in done.stderr
    assert "made again" in sweep(file, "-o", folder, "--dry-run").stdout
    assert "failed" not in sweep(file, "-o", folder).stdout
    assert weights.read_bytes() == whole


def test_ctrl_c_ends_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "llada", n_layers=1)
    file, folder = tmp_path / "one.toml", tmp_path / "out"
    file.write_text(f'model = "{tmp_path / "model"}"\n')
    begun = [sys.executable, "-m", "edgekit", "sweep", str(file), "-o", str(folder)]
    with subprocess.Popen(begun, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while not list(folder.glob(f"{UNITS}/export-*")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130 and not stdout
    last = stderr.splitlines()[-1]
    assert last == f"edgekit: interrupted; the same command goes on with what is left in {folder}"
