"""Bundles of programs that TVM has compiled: the core runs them, with its own kernels and with those that
GPUs take, and what is wrong with one is one line.
"""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import sealing
from support.bundles import make_bundle
from support.exported_elsewhere import export_elsewhere
from support.provider_cases import main as case
from support.providers import PROVIDERS
from support.watched import run_watched

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.pipeline import ExportOptions
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded, ChecksumMismatch, EdgekitError, MalformedFile, OpenFailed
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.errors import UnsupportedBundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Segment, Session, SessionOptions, open_session

pytest.importorskip("tvm", reason="tvm is not installed")
DEVICES = {name: PROVIDERS[name].device for name in ("tvm", "tvm compiled")}
LIBRARY = "programs/programs.so"


@pytest.fixture(scope="module", params=DEVICES)
def bundle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Two layers, a causal prefix, windows and experts."""
    folder = tmp_path_factory.mktemp("tvm")
    sizes = {"num_hidden_layers": 2, "moe_intermediate_size": 32}
    return make_bundle(
        folder, "diffusion_gemma", Scheme("mixed4", 32), program_format="tvm",
        device=DEVICES[request.param], **sizes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with the core's kernels, for all tests that edit a copy."""
    sizes = {"num_hidden_layers": 1, "moe_intermediate_size": 32}
    return make_bundle(
        tmp_path_factory.mktemp("core"),
        "diffusion_gemma",
        Scheme("mixed4", 32),
        program_format="tvm",
        **sizes,
    )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(
        tmp_path_factory.mktemp("compiled"), "llada", Scheme("int8"), program_format="tvm",
        device=DEVICES["tvm compiled"], n_layers=1, d_model=64, n_heads=4, mlp_hidden_size=160,
    )  # fmt: skip


# The other one takes minutes: python -m support.provider_matrix has it.
@pytest.mark.parametrize(
    ("name", "provider"), [("tiny-gemma", "tvm"), ("tiny-llada", "tvm"), ("tiny-gemma", "tvm compiled")]
)
def test_the_shipped_models_generate_what_the_reference_generates(
    tmp_path: Path, name: str, provider: str
) -> None:
    how = ExportOptions("tvm", scheme=Scheme("mixed4", 32), device=DEVICES[provider])
    export_elsewhere(resolve(name), tmp_path / "bundle", how)
    assert case("generation", str(tmp_path), provider, name)["differences"] == 0


def test_weights_may_stream(bundle: Path) -> None:
    """Bit for bit what weights that stay give, behind a prefix."""
    found = []
    for resident in (None, 0):
        with Session(bundle, SessionOptions(resident_bytes=resident), engine="tvm") as session:
            session.prefill(np.arange(9))
            out = session.denoise(np.arange(7), HeadRequest(logits=True, soft=True))
            found.append((out.logits, out.soft, session.statistics()["bytes_read"]))
    (kept, kept_soft, read_once), (streamed, streamed_soft, read) = found
    np.testing.assert_array_equal(streamed, kept)
    np.testing.assert_array_equal(streamed_soft, kept_soft)
    assert read > read_once


def test_segments_of_a_pass_are_as_if_alone(bundle: Path) -> None:
    """Text that is encoded, a canvas behind it that sees a prefix, and another text's canvas."""
    request = HeadRequest(logits=True)

    def run(together: bool) -> list[np.ndarray]:
        with Session(bundle, SessionOptions(sequences=3), engine="tvm") as session:
            texts = [session.sequence, session.open_sequence(), session.open_sequence()]
            texts[1].prefill(np.arange(5))
            texts[2].prefill(np.arange(3, 15))
            segments = [
                Segment(texts[0], np.arange(4), causal=True, keep_at=0),
                Segment(texts[1], np.arange(7), request),
                Segment(texts[2], np.arange(6), request),
            ]
            passes = [segments] if together else [[each] for each in segments]
            answers = [answer for each in passes for answer in session.run_pass(each)]
            answers += session.run_pass([Segment(texts[0], np.arange(3), request)])
            return [answer.logits for answer in answers if answer is not None and answer.logits is not None]

    alone, company = run(False), run(True)
    assert len(alone) == 3
    for a, b in zip(alone, company, strict=True):
        np.testing.assert_array_equal(a, b)


def test_compiled_kernels_take_matrices_in_16_bits(tmp_path: Path) -> None:
    """As the core's do, whose sums are in another order."""
    found = []
    for device in ("x86-64", "x86-64-compiled"):
        folder = make_bundle(
            tmp_path / device, "llada", Scheme("bf16"), program_format="tvm", device=device, n_layers=1
        )
        with Session(folder, engine="tvm") as session:
            found.append(session.denoise(np.arange(9), HeadRequest(logits=True)).logits)
    core, compiled = found
    assert core is not None and compiled is not None
    np.testing.assert_allclose(compiled, core, rtol=0, atol=1e-5 * float(np.abs(core).max()))


RUN = """
import json, sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions
options = SessionOptions(int(sys.argv[2]) or None, positions=0, canvas=128)
with Session(sys.argv[1], options, engine="tvm") as session:
    found = [float(session.denoise((np.arange(128) + i) % 50, HeadRequest()).log_z.sum()) for i in range(6)]
    print(json.dumps({"found": found, "engine": session.statistics()}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_budget_is_kept(tmp_path: Path) -> None:
    """Measured from outside: 120 MB of weights in 8 bits."""
    bundle = make_bundle(
        tmp_path, "llada", Scheme("int8"), program_format="tvm", dtype="bfloat16",
        d_model=1024, n_heads=8, mlp_hidden_size=2816, n_layers=10, vocab_size=2048,
    )  # fmt: skip
    resident, resident_peak = run_watched(RUN, bundle, 0)
    with pytest.raises(BudgetExceeded) as refused:
        Session(bundle, SessionOptions(memory_bytes=1, positions=0, canvas=128), engine="tvm")
    with Session(bundle, SessionOptions(positions=0, canvas=128), engine="tvm") as session:
        plan = session.plan
    fresh = resident["engine"]["process_bytes"]
    budget = refused.value.needed_bytes - plan.process + fresh + (10 << 20)
    assert budget < resident_peak, "the budget must be one that the resident run does not keep"
    streamed, peak = run_watched(RUN, bundle, budget)
    assert streamed["found"] == resident["found"]
    assert streamed["engine"]["bytes_read"] > resident["engine"]["bytes_read"]
    assert peak <= budget, f"{peak / 1e6:.0f} MB used of {budget / 1e6:.0f} MB"


def test_a_failure_within_a_program_is_told_as_it_is(core: Path, edited: Callable[..., Path]) -> None:
    """An expert that is read while its layer runs."""
    folder = edited()
    with Bundle.open(folder).open_weights() as file:
        spoiled = next(run for run in file.layout.runs if run.name == "layers.0.experts.1")
        path = file.path
    with open(path, "r+b") as weights:
        weights.seek(spoiled.offset)
        byte = weights.read(1)
        weights.seek(spoiled.offset)
        weights.write(bytes([byte[0] ^ 1]))
    with open_session(folder, SessionOptions(resident_bytes=0), engine="tvm") as session:
        for _ in range(2):
            with pytest.raises(ChecksumMismatch, match="layers.0.experts.1"):
                session.prefill(np.arange(12))


def test_sessions_over_one_bundle_do_not_mind_each_other(bundle: Path) -> None:
    """One that closes while the other computes, in whichever order they were opened."""

    def answer(session: Session) -> np.ndarray:
        logits = session.denoise(np.arange(5), HeadRequest(logits=True)).logits
        assert logits is not None
        return logits

    with Session(bundle, engine="tvm") as alone:
        expected = answer(alone)
    for closed_first in (0, 1):
        both = [Session(bundle, engine="tvm") for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(answer, both):
                np.testing.assert_array_equal(found, expected)
        both[closed_first].close()
        gc.collect()
        np.testing.assert_array_equal(answer(both[1 - closed_first]), expected)
        both[1 - closed_first].close()


BESIDE_TVM = """
import sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

def run():
    with Session(sys.argv[1], engine="tvm") as session:
        return session.denoise(np.arange(4), HeadRequest(logits=True)).logits

def of_tvm():
    import tvm
    from tvm import te
    x = te.placeholder((8,), "float32")
    code = tvm.compile(te.create_prim_func([x, te.compute((8,), lambda i: x[i] * 2)]), "llvm")
    out = tvm.runtime.tensor(np.zeros(8, "float32"))
    code(tvm.runtime.tensor(np.ones(8, "float32")), out)
    assert out.numpy().tolist() == [2] * 8

if sys.argv[2] == "before":
    of_tvm()
first = run()
of_tvm()
assert np.array_equal(run(), first)
print("fine")
"""


@pytest.mark.parametrize("imported", ["before", "after"])
def test_python_may_use_tvm_as_well(core: Path, imported: str) -> None:
    """Before and after a session, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_TVM, core, imported], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


# --- who is trusted -----------------------------------------------------------------------------------------


def test_machine_code_runs_where_the_engine_is_asked_for_by_name(core: Path) -> None:
    with pytest.raises(UnsupportedBundle, match="its programs are machine code.*--engine tvm"):
        open_session(core)


def test_the_core_runs_none_before_it_is_told_to(core: Path) -> None:
    """In a process of its own: `ek_tvm_load` is for good."""
    code = """
import sys
from ctypes import byref, c_char_p, c_void_p, POINTER
from edgekit.flashload import _native
library = _native.functions({"ek_session_open": (c_char_p, c_void_p, POINTER(c_void_p))})
try:
    _native.check(library.ek_session_open(sys.argv[1].encode(), None, byref(c_void_p())))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code, core], capture_output=True, text=True, check=True)
    said = "UnsupportedBundle its programs are machine code.*: open a bundle of the format native"
    assert re.match(said, done.stdout), done.stdout + done.stderr


def test_a_library_that_is_not_the_listed_one_is_not_loaded(core: Path, edited: Callable[..., Path]) -> None:
    folder = edited()
    library = bytearray((folder / LIBRARY).read_bytes())
    library[-1] ^= 1
    (folder / LIBRARY).write_bytes(library)
    with pytest.raises(ChecksumMismatch, match=LIBRARY):
        open_session(folder, engine="tvm")


@pytest.fixture
def edited(core: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a copy of the bundle, its manifest edited."""

    def make(change: Callable[[dict[str, Any]], Any] | None = None) -> Path:
        folder = tmp_path / "edited"
        folder.mkdir()
        for path in core.rglob("*"):
            if path.is_file():
                to = folder / path.relative_to(core)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(path.read_bytes())
        if change is not None:
            sealing.edit(folder, change)
        return folder

    return make


def layer(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = table["programs"]["entries"]["full"]
    return found


def entry(table: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = table["programs"]["entries"][name]
    return found


def argument(table: dict[str, Any], name: str) -> dict[str, Any]:
    return next(a for a in layer(table)["inputs"] if a["name"] == name)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "kernels": (lambda t: t["programs"].update(kernels="other"), "takes kernels that this library does not"),
    "layout": (lambda t: t["programs"].update(layout="tvm-9"), "its programs are not tvm/tvm-1"),
    "no device": (lambda t: t["programs"].pop("device"), "device"),
    "a GPU": (lambda t: t["programs"].update(device="opencl"), "processor's kernels do not run on opencl"),
    "kernels of another device": (lambda t: t["programs"].update(kernels="compiled"), "attention"),
    "a file of nobody": (lambda t: t["programs"].update(library="programs/x.so"), "programs/x.so"),
    "a path that leaves": (lambda t: t["programs"].update(library="../x.so"), "x.so"),
    "weights as a library": (
        lambda t: t["programs"].update(library="weights.safetensors"), "is not among the files",
    ),
    "no function": (lambda t: layer(t).update(function="p99"), "has no function p99"),
    "another function": (lambda t: layer(t).update(function="p1"), "TVM failed"),
    "no inputs": (lambda t: layer(t).update(inputs=[]), "TVM failed"),
    "a length": (lambda t: argument(t, "x").update(shape=[1, "q", 64]), "has the length q"),
    "a size": (lambda t: argument(t, "x").update(shape=[1, 0, 64]), "has the size 0"),
    "a type": (lambda t: argument(t, "x").update(dtype="F64"), "is of the type F64"),
    "an input": (lambda t: argument(t, "x").update(name="z"), "takes z, which is no input"),
    "a weight": (lambda t: argument(t, "w.router.scale").update(name="w.no"), "has no tensor no"),
    "a shape": (lambda t: argument(t, "w.router.scale").update(shape=[65]), "its program wants .65."),
    "a result": (lambda t: layer(t)["outputs"][0].update(shape=[1, "t", 32]), r"\[1, t, 32\], not F32"),
    "memory": (lambda t: layer(t).update(live=[-1, 0]), "does not say what memory it takes"),
    "experts": (lambda t: layer(t)["experts"].update(count=3), "mixes 3 experts"),
    "too many chosen": (lambda t: layer(t)["experts"]["route"].update(k=5), "k is 5"),
    "a score": (lambda t: layer(t)["experts"]["route"].update(score="max"), "does not know the score max"),
    "factors": (
        lambda t: layer(t)["experts"]["route"].update(expert_scale="router.scale"),
        "has no 4 values router.scale",
    ),
    "a width": (lambda t: layer(t)["experts"].update(width=16), "its program wants"),
    "no mask": (lambda t: layer(t).update(mask=False), "takes no mask"),
    "nothing of a mask": (lambda t: layer(t).pop("mask"), "does not say whether its attention has a mask"),
    "rows of another size": (
        lambda t: entry(t, "final")["inputs"][0].update(shape=[1, "t", 1 << 20]),
        r"x is \[1, t, 1048576\], not F32 \[1, t, 64\]",
    ),
    "rows without a length": (
        lambda t: entry(t, "self_conditioning")["inputs"][0].update(shape=[1, 1 << 20, 64]),
        r"is \[1, 1048576, 64\], not F32 \[1, t, 64\]",
    ),
    "no entry": (lambda t: t["programs"]["entries"].pop("final"), "final"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_manifest_is_one_line(edited: Callable[..., Path], wrong: str) -> None:
    change, said = WRONG[wrong]
    folder = edited(change)
    with pytest.raises(EdgekitError, match=said) as refused, open_session(folder, engine="tvm") as session:
        session.prefill(np.arange(3))
        session.denoise(np.arange(4), HeadRequest())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e["attention"]["inputs"][1].update(shape=[1, 4, 512, 16]), "k is .1, 4, 512, 16., not"),
        (lambda e: e["attention"]["inputs"][0].update(shape=[1, 3, "t", 16]), "has 3 heads of queries for 4"),
        (lambda e: e["prefix_attention"]["inputs"][3].update(shape=[1, 4, "t", 16]), "is .1, 4, t, 16., not"),
        (lambda e: e["attention"].update(inputs=[]), "has attention without queries"),
        (lambda e: e.pop("mask"), "does not say whether its attention has a mask"),
    ],
)
def test_what_is_wrong_with_compiled_attention_is_one_line(
    compiled: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    folder = Path(shutil.copytree(compiled, tmp_path / "edited"))
    sealing.edit(folder, lambda table: change(entry(table, "dense")))
    with pytest.raises(MalformedFile, match=said):
        open_session(folder, engine="tvm")


# --- the library is the one that was compared ---------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles with the same shapes and other programs."""
    folder = tmp_path_factory.mktemp("two")
    return [
        make_bundle(
            folder / str(eps), "llada", Scheme("int8"), program_format="tvm", n_layers=1, rms_norm_eps=eps
        )
        for eps in (1e-5, 0.5)
    ]


def scores(session: Session) -> np.ndarray:
    found = session.denoise(np.arange(5), HeadRequest(logits=True)).logits
    assert found is not None
    return found


def test_another_bundle_at_the_path_of_an_open_one_runs_its_own_programs(
    two: list[Path], tmp_path: Path
) -> None:
    expected = []
    for folder in two:
        with open_session(folder, engine="tvm") as session:
            expected.append(scores(session))
    assert not np.array_equal(*expected)
    link = tmp_path / "current"
    link.symlink_to(two[0])
    with open_session(link, engine="tvm") as first:
        link.unlink()
        link.symlink_to(two[1])
        with open_session(link, engine="tvm") as second:
            for session, wanted in ((first, expected[0]), (second, expected[1])):
                np.testing.assert_array_equal(scores(session), wanted)


@pytest.mark.parametrize("how", ["overwritten", "emptied"])
def test_a_library_that_changes_while_it_is_open_changes_nothing(
    two: list[Path], tmp_path: Path, how: str
) -> None:
    folder = Path(shutil.copytree(two[0], tmp_path / "bundle"))
    with open_session(folder, engine="tvm") as session:
        expected = scores(session)
        other = (two[1] / LIBRARY).read_bytes() if how == "overwritten" else b""
        with open(folder / LIBRARY, "r+b") as library:
            library.write(other)
            library.truncate()
        np.testing.assert_array_equal(scores(session), expected)


def test_nothing_is_left_in_the_folder_for_temporary_files(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(OpenFailed, match="library cannot be made in the folder .*No such file.* TMPDIR"):
        open_session(two[0], engine="tvm")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with open_session(two[0], engine="tvm") as session:
        scores(session)
        assert not list(tmp_path.iterdir())


# --- other machines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("aarch64", "is compiled for aarch64 and cannot be loaded here .*export it for this machine"),
        ("opencl", "are for opencl, and TVM's runtime here has no opencl"),
        ("ios", "are an archive of objects for ios, which an application links"),
    ],
)
def test_programs_of_another_machine_are_refused(tmp_path: Path, device: str, said: str) -> None:
    folder = make_bundle(tmp_path, "llada", Scheme("int8"), program_format="tvm", device=device, n_layers=1)
    with pytest.raises(UnsupportedBundle, match=said):
        open_session(folder, engine="tvm")
