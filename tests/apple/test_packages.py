"""Bundles whose weights lie in packages: lengths, padding, chunks of layers and residency, over an executor
that computes the packages with the reference layers.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import bundles, sealing
from support.head_oracle import check_saturated
from support.loop_parity import prompt_loop
from support.reference_denoiser import ReferenceDenoiser
from support.reference_packages import (
    ReferenceExecutor,
    ReferencePackage,
    packaged,
    random_packages,
    stored_bytes,
)

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.flashload.errors import BudgetExceeded, FileChanged, InvalidRequest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import Package
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, PromptTooLong, UnsupportedBundle
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed, Done, HeadRequest
from edgekit.runtime.session import Session, SessionOptions, open_session

#: Family, scheme, checkpoint and package options, lengths: odd sizes, windows shorter and longer than the
#: prefix, chunks across kinds of layers, one tile and many.
CASES: dict[str, tuple[str, Scheme, dict[str, Any], list[tuple[int, int]]]] = {
    "gemma": ("diffusion_gemma", Scheme("mixed4"), {"num_hidden_layers": 3, "moe_intermediate_size": 32},
              [(16, 0), (16, 32), (16, 64)]),
    "gemma one by one": ("diffusion_gemma", Scheme("int8"),
                         {"num_hidden_layers": 2, "layers_per_package": 1, "tile_rows": 10_000},
                         [(19, 0), (19, 21), (40, 64), (40, 0)]),
    "gemma all in one": ("diffusion_gemma", Scheme("bf16"), {"num_hidden_layers": 4, "layers_per_package": 9,
                         "tile_rows": 33, "sliding_window": 20}, [(17, 0), (17, 96)]),
    "llada": ("llada", Scheme("int4"), {"n_layers": 3, "mlp_hidden_size": 160}, [(16, 0), (64, 0), (128, 0)]),
    "llada_moe": ("llada_moe", Scheme("mixed4"), {"num_hidden_layers": 2}, [(23, 0)]),
    "dream": ("dream", Scheme("mixed4", 16), {"num_hidden_layers": 2, "hidden_size": 112,
              "num_attention_heads": 7, "num_key_value_heads": 1, "vocab_size": 391}, [(128, 0)]),
}  # fmt: skip
Case = tuple[Path, ReferenceModel]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, scheme, options, lengths = CASES[request.param]
    return random_packages(tmp_path_factory.mktemp("packages"), family, lengths, scheme, **options)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny: threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, scheme, options, lengths = CASES["gemma"]
    return random_packages(tmp_path_factory.mktemp("gemma"), family, lengths, scheme, **options)


def session_of(case: Case, options: SessionOptions | None = None) -> tuple[Session, ReferenceExecutor]:
    bundle, model = case
    executor = ReferenceExecutor(model, bundle)
    return Session(bundle, options, executor), executor


@pytest.mark.parametrize("seed", [0, 1])
def test_padding_and_chunks_do_not_change_what_the_model_says(case: Case, seed: int) -> None:
    session, executor = session_of(case)
    with session:
        out, expected = bundles.passes(session, case[1], seed)
    assert out.logits is not None
    np.testing.assert_allclose(out.logits, expected.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(out.argmax, expected.argmax(-1).numpy())
    np.testing.assert_allclose(out.log_z, expected.logsumexp(-1).numpy(), rtol=1e-5)
    if out.soft is not None:
        wanted = torch.softmax(expected, -1) @ case[1].embedding
        np.testing.assert_allclose(out.soft, wanted.detach().numpy(), rtol=1e-3, atol=1e-5)
    assert not executor.open_now


def test_statistics_hold_where_probabilities_round_to_one(case: Case) -> None:
    canvas = np.random.default_rng(2).integers(0, case[1].architecture.vocab_size, 16)
    session, _ = session_of(case)
    with session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_every_length_of_text_gives_what_the_reference_gives(gemma: Case) -> None:
    """Prefixes from one position to several chunks, canvases of one position to a whole one."""
    session, executor = session_of(gemma)
    model, rng = gemma[1], np.random.default_rng(3)
    reference = ReferenceDenoiser(model)
    with session:
        for prompt, canvas in ((1, 16), (7, 1), (16, 16), (17, 3), (31, 15), (33, 16), (64, 9)):
            ids = rng.integers(0, model.architecture.vocab_size, prompt + canvas)
            request = HeadRequest(temperature=0.6, logits=True)
            for denoiser in (session, reference):
                denoiser.reset()
                denoiser.prefill(ids[:prompt])
            found = session.denoise(ids[prompt:], request).logits
            expected = reference.denoise(ids[prompt:], request).logits
            assert found is not None and expected is not None
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4)
    # The smallest function that fits, for each chunk of the prompt and each canvas.
    used = {(f.t, f.p) for name, f in executor.calls if name.startswith("layers")}
    assert used == {(16, 0), (16, 32), (16, 64)}


def test_the_smallest_function_that_fits_is_called(tmp_path: Path) -> None:
    lengths = [(16, 0), (8, 0), (24, 32), (8, 48), (8, 16)]
    case = random_packages(tmp_path, "diffusion_gemma", lengths, num_hidden_layers=2, canvas_length=8)
    session, executor = session_of(case)
    taken = []

    def calls() -> list[tuple[int, int]]:
        found = [(f.t, f.p) for name, f in executor.calls if name.startswith("layers")]
        executor.calls.clear()
        return found

    with session:
        session.denoise(np.arange(5), HeadRequest())
        taken += calls()
        session.denoise(np.arange(9), HeadRequest())
        taken += calls()
        session.prefill(np.arange(20))  # in chunks of 8, 8 and 4
        taken += calls()
        session.denoise(np.arange(8), HeadRequest())
        taken += calls()
        session.denoise(np.arange(9), HeadRequest())
        assert calls() == [(24, 32)]
        with pytest.raises(PromptTooLong, match="25 positions are more than package self_cond"):
            session.denoise(np.arange(25), HeadRequest())
    assert taken == [(8, 0), (16, 0), (8, 0), (8, 16), (8, 16), (8, 48)]


def test_what_goes_into_a_package_is_its_own_and_can_be_written_to(gemma: Case) -> None:
    """Core ML's bindings refuse arrays that are read-only. Writing over them changes nothing elsewhere."""
    session, executor = session_of(gemma)
    with session:
        expected = bundles.passes(session, gemma[1], 5)[0].logits
    executor.overwrites = True
    with Session(gemma[0], None, executor) as session:
        found = bundles.passes(session, gemma[1], 5)[0].logits
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("resident", [None, 0])
def test_a_bundle_that_was_replaced_is_computed_with_by_nobody(
    gemma: tuple[Path, ReferenceModel], resident: int | None, tmp_path: Path
) -> None:
    """Executors open files by their paths, functions as late as the first call of them."""
    bundle = Path(shutil.copytree(gemma[0], tmp_path / "bundle"))
    executor = ReferenceExecutor(gemma[1], bundle)
    with Session(bundle, SessionOptions(resident_bytes=resident), executor) as session:
        if resident == 0:
            bundles.passes(session, gemma[1], 5)
        shutil.copytree(bundle, tmp_path / "newer")
        os.rename(bundle, tmp_path / "older")
        os.rename(tmp_path / "newer", bundle)
        for _ in range(5):
            with pytest.raises(FileChanged, match=r"is not the file that was compared: .*; open it again$"):
                session.denoise(np.arange(5), HeadRequest())
    with Session(bundle, None, ReferenceExecutor(gemma[1], bundle)) as session:
        session.denoise(np.arange(5), HeadRequest())


class EchoExecutor:
    """Layers give `rows`, the last norm what it takes, and the head zeros; `taken` is what each kind took."""

    name = "echo"

    def __init__(self, bundle: Path, rows: np.ndarray) -> None:
        packages = Bundle.open(bundle).packages
        assert packages is not None
        self._entries = {bundle / e.path: e for e in packages.entries.values()}
        self._rows, self.taken = rows, dict[str, np.ndarray]()

    def open(self, path: Path, functions: Any) -> Any:
        return SimpleNamespace(call=functools.partial(self._call, self._entries[path]), close=lambda: None)

    def _call(self, entry: Package, name: str, inputs: Any) -> dict[str, np.ndarray]:
        (function,) = (f for f in entry.functions if f.name == name)
        out = {port.name: np.zeros(port.shape, port.dtype) for port in function.outputs.values()}
        x = self.taken[entry.kind] = inputs[function.inputs["x"].name]
        if "y" in function.outputs:
            out[function.outputs["y"].name][0, : len(self._rows)] = (
                x[0] if entry.kind == "final" else self._rows
            )
        return out


@pytest.mark.parametrize("seed", [0, 1])
def test_functions_of_16_bits_are_given_numbers_rounded_to_the_nearest(tmp_path: Path, seed: int) -> None:
    """As numpy rounds: small ones, large ones, and those beyond, which become infinity."""
    bundle, model = random_packages(tmp_path, "llada", [(16, 0)], Scheme("bf16"), n_layers=1, tile_rows=999)
    manifest = json.loads((bundle / "edgekit.json").read_text())
    (function,) = manifest["programs"]["packages"]["final"]["functions"].values()
    for port in (*function["inputs"], *function["outputs"]):
        port["dtype"] = "float16"
    sealing.write(bundle, manifest)
    rng, width = np.random.default_rng(seed), model.architecture.hidden_size
    edges = [
        65503.9,
        65504,
        65519.996,
        65520,
        -65520,
        1e9,
        2.0**-25,
        3 * 2.0**-25,
        2.0**-14,
        -6.1e-5,
        0,
        -0.0,
    ]
    bits = rng.integers(0, 2**32, (16, width), np.uint64).astype(np.uint32)
    bits[bits & 0x7F800000 == 0x7F800000] &= 0xBFFFFFFF  # numbers only
    rows = bits.view(np.float32)
    rows[:8] = rng.standard_normal((8, width)) * 2.0 ** rng.integers(-26, 17, (8, width))
    rows[8] = rng.choice(edges, width)
    executor = EchoExecutor(bundle, rows)
    with Session(bundle, None, executor) as session:
        session.denoise(np.arange(16), HeadRequest())
    with np.errstate(over="ignore"):
        wanted = rows.astype(np.float16)
    assert executor.taken["final"].dtype == np.float16
    np.testing.assert_array_equal(executor.taken["final"][0].view(np.uint16), wanted.view(np.uint16))
    np.testing.assert_array_equal(executor.taken["head"], wanted.astype(np.float32))


def generated(model: ReferenceModel, generator: Generator, prompt: str, settings: Settings) -> list[int]:
    """What the reference generates, by the same sampler and noise."""
    events = prompt_loop(generator, prompt, settings).run(ReferenceDenoiser(model))
    return list(itertools.chain(*(e.ids.tolist() for e in events if isinstance(e, Committed))))


TINY = Path(bundles.__file__).parents[2] / "tools" / "tiny"


@pytest.mark.parametrize(
    ("name", "lengths", "settings"),
    [
        ("tiny-gemma", [(128, 0), (128, 64), (128, 256)], Settings(max_new_tokens=256, steps=6, seed=3)),
        ("tiny-llada", [(64, 0), (192, 0)], Settings(max_new_tokens=64, steps=16, seed=1)),
    ],
)
def test_tiny_models_generate_what_the_reference_generates(
    name: str, lengths: list[tuple[int, int]], settings: Settings, tmp_path: Path
) -> None:
    """Whole generations of the trained models, over several canvases where the family has them."""
    scheme = Scheme("mixed4")
    export(TINY / name, tmp_path / "bundle", ExportOptions("native", scheme=scheme))
    model = bundles.quantized_reference(TINY / name, scheme)
    bundle = packaged(tmp_path / "bundle", tmp_path / "packaged", model, lengths, tile_rows=200)
    prompts = ["copy: river stone lamp", "Where is the lamp? The lamp is in the kitchen.", "12 + 31 = "]
    with Generator(bundle, executor=ReferenceExecutor(model, bundle)) as generator:
        for prompt in prompts:
            events = list(generator.generate(prompt, settings))
            ids = list(itertools.chain(*(e.ids.tolist() for e in events if isinstance(e, Committed))))
            assert ids == generated(model, generator, prompt, settings)
            assert isinstance(events[-1], Done)


def test_text_beyond_the_exported_lengths_is_refused_before_anything_runs(gemma: Case) -> None:
    executor = ReferenceExecutor(gemma[1], gemma[0])
    with (
        Generator(gemma[0], executor=executor) as generator,
        pytest.raises(PromptTooLong, match=r"after a prefix of \d+; its programs take at most 16 after 64"),
    ):
        list(generator.generate("x " * 50, Settings(max_new_tokens=16)))
    assert not executor.opened


def test_a_text_is_checked_as_it_would_be_encoded(gemma: Case) -> None:
    """Before anything of it runs: whoever runs several texts together leaves out the one that is too long."""
    session, executor = session_of(gemma)
    with session:
        for count in (1, 16, 64, 79, 80):
            session.sequence.check_prefill(np.arange(count) % 50)
        with pytest.raises(PromptTooLong, match="after a prefix of 80 are more than package") as told:
            session.sequence.check_prefill(np.arange(81) % 50)
        assert not executor.calls
        with pytest.raises(PromptTooLong) as found:
            session.prefill(np.arange(81) % 50)
        assert str(found.value) == str(told.value)


# --- residency ----------------------------------------------------------------------------------------------


def test_without_a_budget_everything_is_opened_once(gemma: Case) -> None:
    session, executor = session_of(gemma)
    with session:
        for _ in range(3):
            session.denoise(np.arange(16), HeadRequest())
    packages = Bundle.open(gemma[0]).packages
    assert packages is not None
    assert sorted(executor.opened) == sorted(packages.entries)
    assert not executor.open_now


@pytest.mark.parametrize("resident", [0, 3000])
def test_under_a_budget_packages_come_and_go(case: Case, resident: int) -> None:
    """The same numbers; what stays stays, and the rest is never open beyond the plan."""
    options = SessionOptions(resident_bytes=resident)
    (whole, _), (session, executor) = session_of(case), session_of(case, options)
    with whole, session:
        for seed in (0, 1):
            expected, _ = bundles.passes(whole, case[1], seed)
            found, _ = bundles.passes(session, case[1], seed)
            np.testing.assert_array_equal(found.logits, expected.logits)
        plan, stats = session.plan, session.statistics()
        assert plan.streamed and plan.pinned_bytes <= resident
        assert stats["bytes_read"] >= stats["streamed_bytes_per_step"] == plan.streamed_bytes
    assert executor.most_open_bytes <= plan.pinned_bytes + plan.ring_bytes < stored_bytes(case[0])
    counts = {name: executor.opened.count(name) for name in executor.opened}
    assert all(counts[name] == 1 for name in counts if name in plan.pinned)
    assert all(counts[name] > 1 for name in plan.streamed if name.startswith(("layers", "head")))
    # A package opened again is told what it will be asked for.
    again = [names for name, names in zip(executor.opened, executor.expected, strict=True) if names]
    assert again and not executor.open_now


def test_a_budget_that_is_too_small_says_what_would_do(gemma: Case) -> None:
    with pytest.raises(BudgetExceeded, match="is too small; this model and length need at least") as error:
        session_of(gemma, SessionOptions(memory_bytes=1000))
    session, executor = session_of(gemma, SessionOptions(memory_bytes=error.value.needed_bytes + (4 << 20)))
    with session:
        session.denoise(np.arange(16), HeadRequest())
        plan = session.plan
    assert executor.most_open_bytes <= plan.footprint_bytes


def test_a_failed_pass_leaves_the_session_usable(gemma: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    real = executor.open
    with session:
        expected = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
        session.idle()
        fails = True

        def refuses(path: Path, functions: Any) -> Any:
            if fails and path.stem.startswith("layers.2"):
                raise EngineFailed("no such thing")
            return real(path, functions)

        monkeypatch.setattr(executor, "open", refuses)
        with pytest.raises(EngineFailed, match="no such thing"):
            session.denoise(np.arange(16), HeadRequest())
        with pytest.raises(EngineFailed, match="no such thing"):
            session.prefill(np.arange(16))
        assert session.prefix_length == 0
        fails = False
        again = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
        np.testing.assert_array_equal(again, expected)
    assert not executor.open_now


def test_closing_in_the_middle_closes_everything(gemma: Case) -> None:
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    session.denoise(np.arange(16), HeadRequest())  # the next pass is opened ahead
    session.close()
    gc.collect()
    assert executor.opened and not executor.open_now


LEAVES = """
import sys, time
import numpy as np
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions

bundle = Bundle.open(sys.argv[1])
entries = {f"{bundle.path}/{entry.path}": entry for entry in bundle.packages.entries.values()}

class Slow:
    name = "slow"

    def open(self, path, functions):
        time.sleep(0.05)
        return Opened(entries[str(path)])

class Opened:
    def __init__(self, entry):
        self.entry = entry

    def call(self, name, inputs):
        (function,) = (f for f in self.entry.functions if f.name == name)
        return {port.name: np.zeros(port.shape, port.dtype) for port in function.outputs.values()}

    def close(self):
        pass

session = Session(bundle, SessionOptions(resident_bytes=0), Slow())
session.denoise(np.arange(16), HeadRequest())
print("leaves while the next pass is opened")
"""


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llada")
    return random_packages(folder, "llada", [(16, 0)], n_layers=6, layers_per_package=1)[0]


def test_python_may_end_while_packages_are_opened_ahead(llada: Path) -> None:
    script = [sys.executable, "-c", LEAVES, str(llada)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "leaves while the next pass is opened\n"


def test_packages_give_what_they_declare_or_the_pass_ends(gemma: Case) -> None:
    session, executor = session_of(gemma)
    with session:
        executor.cuts = "final"
        with pytest.raises(EngineFailed, match=r"final.*gives shape \[1, 15, \d+\] for output out0, the"):
            session.denoise(np.arange(16), HeadRequest())


@pytest.mark.parametrize(
    ("kind", "role", "make", "match"),
    [
        ("layers", "y", lambda y: y.astype(object), "gives object for output out0, not float32"),
        ("layers", "y", lambda y: np.full(y.shape, "1.5"), "gives <U3 for output out0, not float32"),
        ("head", "argmax", lambda n: n.astype(np.int64) + 2**32, "output out1 that int32 does not hold"),
        ("head", "argmax", lambda n: n + 0.5, "output out1 that int32 does not hold"),
        ("head", "argmax", lambda n: n * np.nan, "output out1 that int32 does not hold"),
    ],
)
def test_packages_give_numbers_that_their_type_holds(
    gemma: Case, monkeypatch: pytest.MonkeyPatch, kind: str, role: str, make: Any, match: str
) -> None:
    """An int64 that does not fit would be another token."""
    session, _ = session_of(gemma)
    compute, changes = ReferencePackage.call, [True]

    def changed(own: ReferencePackage, name: str, inputs: Any) -> dict[str, Any]:
        found: dict[str, Any] = compute(own, name, inputs)
        (function,) = (f for f in own._entry.functions if f.name == name)
        if changes and function.kind == kind and role in function.outputs:
            port = function.outputs[role].name
            found[port] = make(found[port])
        return found

    monkeypatch.setattr(ReferencePackage, "call", changed)
    with session:
        with pytest.raises(EngineFailed, match=match):
            session.denoise(np.arange(16), HeadRequest())
        changes.clear()
        expected = session.denoise(np.arange(16), HeadRequest()).argmax
        make, kind, role = (lambda n: n.astype(np.float64).tolist()), "head", "argmax"
        changes.append(True)
        np.testing.assert_array_equal(session.denoise(np.arange(16), HeadRequest()).argmax, expected)
        monkeypatch.setattr(ReferencePackage, "call", lambda *_: None)
        with pytest.raises(EngineFailed, match="gives None, not arrays by name; mend the executor"):
            session.denoise(np.arange(16), HeadRequest())


def test_engines_of_other_systems_say_so_in_one_line(gemma: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    with pytest.raises(EngineUnavailable, match="Core ML runs on macOS and iOS only; .*--target host"):
        open_session(gemma[0])
    with pytest.raises(UnsupportedBundle, match="was exported for the coreml engine, not onnx"):
        open_session(gemma[0], engine="onnx")


@pytest.mark.parametrize("by_closing", [False, True])
def test_a_package_that_does_not_close_is_told_once(
    gemma: Case, monkeypatch: pytest.MonkeyPatch, by_closing: bool
) -> None:
    """Before the next call computes, or by closing the session."""
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    expected = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
    error, refuses, closes = OSError("no space"), [True], ReferencePackage.close

    def fails(own: ReferencePackage) -> None:
        closes(own)
        if refuses and own._entry.name == "final":
            refuses.pop()
            raise error

    monkeypatch.setattr(ReferencePackage, "close", fails)
    session.denoise(np.arange(16), HeadRequest())
    calls = len(executor.calls)
    with pytest.raises(OSError, match="no space") as told:
        if by_closing:
            session.close()
        else:
            session.denoise(np.arange(16), HeadRequest())
    assert told.value is error and len(executor.calls) == calls
    if not by_closing:
        found = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
        np.testing.assert_array_equal(found, expected)
    session.close()
    assert not executor.open_now


@pytest.mark.parametrize(
    "error",
    [
        KeyError("no such thing"),
        StopIteration(),
        MemoryError(),
        ValueError("a line\n\x1b[31m, another\0one"),
        ValueError("\N{BLACK STAR}" * 400),
    ],
)
def test_what_opening_raises_ahead_of_its_use_is_raised_where_the_package_is_wanted(
    gemma: Case, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Not in the call that opens it for the one after."""
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    real, fails = executor.open, [False]

    def refuses(path: Path, functions: Any) -> Any:
        if fails[0] and path.stem.startswith("self_cond"):
            raise error
        return real(path, functions)

    monkeypatch.setattr(executor, "open", refuses)
    with session:
        expected = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
        session.idle()
        fails[0] = True
        session.prefill(np.arange(3))  # the package is no part of it, and opened ahead at most
        with pytest.raises((type(error), EngineFailed)) as told:
            session.denoise(np.arange(16), HeadRequest())
        if isinstance(error, StopIteration):
            assert "open raised StopIteration, which ends loops" in str(told.value)
        else:
            assert told.value is error
        fails[0] = False
        session.reset()
        found = session.denoise(np.arange(16), HeadRequest(logits=True)).logits
        np.testing.assert_array_equal(found, expected)
    assert not executor.open_now


def test_what_opening_raised_for_nobody_is_not_raised_in_place_of_another_error(
    gemma: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text, such as "1", may stand in any other."""
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    real, fails = executor.open, [True]

    def refuses(path: Path, functions: Any) -> Any:
        if fails and path.stem.startswith("layers.2"):
            raise KeyError(1)
        return real(path, functions)

    def stops(own: ReferencePackage, name: str, inputs: Any) -> Any:
        time.sleep(0.2)  # the packages behind it are being opened
        raise OSError("first")

    monkeypatch.setattr(executor, "open", refuses)
    with session:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="first"):
            patch.setattr(ReferencePackage, "call", stops)
            session.denoise(np.arange(16), HeadRequest())
        fails.clear()
        with pytest.raises(PromptTooLong, match="17 positions are more than"):
            session.denoise(np.arange(17), HeadRequest())
    assert not executor.open_now


# --- whoever calls back, or comes between -------------------------------------------------------------------


def opening_ahead(
    gemma: Case, monkeypatch: pytest.MonkeyPatch, does: Callable[[Session], None]
) -> tuple[Session, ReferenceExecutor]:
    """A session that has computed once, and whose next opening ahead `does` something on its thread."""
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    session.denoise(np.arange(16), HeadRequest())
    session.idle()
    own, real, done = weakref.ref(session), executor.open, threading.Event()

    def opens(path: Path, functions: Any) -> Any:
        if executor.calls and executor.calls[-1][1].kind == "head" and not done.is_set():
            time.sleep(0.2)  # the pass is over
            done.set()
            if (given := own()) is not None:
                does(given)
        return real(path, functions)

    monkeypatch.setattr(executor, "open", opens)
    return session, executor


@pytest.mark.parametrize(
    "call", [Session.close, Session.idle, lambda s: s.denoise(np.arange(3), HeadRequest())]
)
def test_what_opens_packages_cannot_call_the_session(
    gemma: Case, monkeypatch: pytest.MonkeyPatch, call: Callable[[Session], Any]
) -> None:
    """Both would wait for each other."""
    told: list[Exception] = []

    def tries(session: Session) -> None:
        try:
            call(session)
        except InvalidRequest as error:
            told.append(error)

    session, executor = opening_ahead(gemma, monkeypatch, tries)
    with session:
        session.denoise(np.arange(16), HeadRequest())
        session.denoise(np.arange(16), HeadRequest())
    assert "cannot be called, or closed, by what opens its packages" in str(told[0])
    assert not executor.open_now


def test_a_session_that_is_collected_by_what_opens_its_packages_is_closed(
    gemma: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle may be found on any thread."""
    session, executor = session_of(gemma, SessionOptions(resident_bytes=0))
    real, armed, collected = executor.open, threading.Event(), threading.Event()

    def opens(path: Path, functions: Any) -> Any:
        if armed.wait(0.2):
            armed.clear()
            gc.collect()
            collected.set()
        return real(path, functions)

    session.denoise(np.arange(16), HeadRequest())
    session.idle()
    gc.disable()
    try:
        monkeypatch.setattr(executor, "open", opens)
        session.denoise(np.arange(16), HeadRequest())
        session.itself = session  # type: ignore[attr-defined]
        del session
        armed.set()
        assert collected.wait(30)
    finally:
        gc.enable()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(30)
    assert not executor.open_now


class Stop(KeyboardInterrupt):
    """Of the timer."""


@pytest.mark.parametrize("what", ["opening", "passes", "closing"])
def test_a_signal_is_raised_and_leaves_no_package_open(
    llada: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Wherever it comes: at the entry of a function of the table, or before the core closes the session."""
    rng, fired, lost = random.Random(what), [0], list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)  # Python's own: within __del__

    def stop(*_: object) -> None:
        fired[0] += 1
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for seed in range(25):
            executor = EchoExecutor(llada, np.zeros((16, 64)))
            opened, real = [0], executor.open

            def opens(path: Path, functions: Any, real: Any = real, opened: list[int] = opened) -> Any:
                package, opened[0] = real(path, functions), opened[0] + 1

                def close() -> None:
                    opened[0] -= 1

                package.close = close
                return package

            executor.open = opens  # type: ignore[method-assign]
            resident = 0 if seed % 2 or what != "opening" else None
            session: Session | None = None
            fired[0] = 0
            try:
                if what != "opening":
                    session = Session(llada, SessionOptions(resident_bytes=resident), executor)
                    session.denoise(np.arange(16), HeadRequest())
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.004))
                if session is None:
                    session = Session(llada, SessionOptions(resident_bytes=resident), executor)
                if what == "passes":
                    sequence = session.sequence
                    for _ in range(5):
                        sequence.denoise(np.arange(16), HeadRequest())
                elif what == "closing":
                    session.close()
                while not fired[0]:
                    time.sleep(0.001)
                assert lost, "nobody heard of the signal"
            except Stop:
                pass
            sequence = None
            if session is not None:
                session.close()
            del session
            if opened != [0]:
                gc.collect()
            assert opened == [0] and fired == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_others_cannot_raise_during_a_call_is_told_as_ever(
    gemma: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no signal, and not what a failed call raises."""
    session, _ = session_of(gemma)
    told: list[Any] = []

    class Dropped:
        def __del__(self) -> None:
            raise ValueError("dropped")

    def fails(own: ReferencePackage, name: str, inputs: Any) -> Any:
        Dropped()
        raise OSError("own")

    monkeypatch.setattr(sys, "unraisablehook", lambda given: told.append(str(given.exc_value)))
    monkeypatch.setattr(ReferencePackage, "call", fails)
    with session, pytest.raises(OSError, match="own"):
        session.denoise(np.arange(16), HeadRequest())
    assert told == ["dropped"]


DAEMON = """
import threading
again = Session(bundle, SessionOptions(resident_bytes=0), Slow())

def computes():
    while True:
        again.denoise(np.arange(16), HeadRequest())

threading.Thread(target=computes, daemon=True).start()
threading.Thread(target=lambda: Session(bundle, None, Slow()), daemon=True).start()
time.sleep(0.1)
"""


def test_python_may_end_while_threads_that_nobody_waits_for_compute(llada: Path) -> None:
    script = [sys.executable, "-c", LEAVES + DAEMON, str(llada)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
