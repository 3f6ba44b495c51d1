"""The Core ML bundle: every function of its packages against the reference holding the same codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coreml_bundles import CoremlPrograms, make_bundle
from support.bundles import quantized_reference
from support.head_oracle import check_saturated
from support.loop_parity import FLOAT16, check_loops
from support.low_rank import use_adapters, write_adapted_checkpoint
from support.package_bundles import (
    ADAPTED,
    CASES,
    HALF_CASES,
    HIDDEN,
    LENGTHS,
    SMALL,
    SWITCHED,
    around,
    case_bundle,
    check_around,
    check_layers,
    layer_results,
    layer_values,
    random,
    switched_bundle,
)
from support.query_scales import use_query_scales
from support.routing_rules import RULES
from support.signal_to_noise import decibels

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import Packaging
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.runtime.checks.mil.ops.registry import registered
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

pytest.importorskip("coremltools", reason="coremltools is not installed")

Case = tuple[Path, ReferenceModel]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: "-".join(map(str, c)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """In float32."""
    return case_bundle(tmp_path_factory.mktemp("coreml"), "coreml", *request.param)


@pytest.fixture(scope="module", params=HALF_CASES, ids=lambda c: "-".join(c))
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """In float16, layer by layer."""
    return case_bundle(tmp_path_factory.mktemp("half"), "coreml", *request.param, precision="float16")


def test_layers_equal_the_reference(case: Case) -> None:
    bundle, model = case
    programs = CoremlPrograms(bundle)
    chunks = [name for name in programs.entries if name.startswith("layers")]
    count = check_layers(programs, model, 1, None)
    assert count == len(chunks) * len(LENGTHS[model.architecture.family])


def test_what_is_around_the_layers(case: Case) -> None:
    """Norm, self-conditioning and all forms of the head."""
    bundle, model = case
    check_around(CoremlPrograms(bundle), model, "float32")


def test_loops_equal_the_reference(case: Case) -> None:
    bundle, model = case
    with Session(bundle, executor=MilExecutor()) as session:
        check_loops(session, model)


def test_statistics_hold_where_probabilities_round_to_one(case: Case) -> None:
    bundle, model = case
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 9)
    with Session(bundle, executor=MilExecutor()) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_float16_statistics_hold_where_probabilities_round_to_one(half: Case) -> None:
    bundle, model = half
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 9)
    with Session(bundle, executor=MilExecutor()) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)), 3e-3)


def test_float16_layers_are_close_to_the_reference(half: Case) -> None:
    """What is not rounded, but for the stored scales, is closer still."""
    bundle, model = half
    check_layers(CoremlPrograms(bundle), model, 1, 60)
    check_layers(CoremlPrograms(bundle, "float32"), model, 1, 65)


def test_what_is_around_float16_layers(half: Case) -> None:
    bundle, model = half
    check_around(CoremlPrograms(bundle), model, "float16")


def test_float16_loops_are_close_to_the_reference(half: Case) -> None:
    bundle, model = half
    with Session(bundle, executor=MilExecutor()) as session:
        check_loops(session, model, FLOAT16[model.architecture.family])


def test_sums_of_the_head_survive_accumulators_of_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device may add float16 in float16, one by one: 2048 + 1 is 2048 there."""
    added = set()

    def one_by_one(x: np.ndarray, axes: np.ndarray, keep_dims: np.ndarray) -> np.ndarray:
        added.add(x.dtype)
        (axis,) = axes
        return np.take(np.add.accumulate(x, axis=axis, dtype=x.dtype), -1, axis=axis)

    # One that moves elements sees float16 as it is.
    plain = registered()["reduce_sum"]
    monkeypatch.setitem(registered(), "reduce_sum", replace(plain, run=one_by_one, moves=True))
    bundle = make_bundle(
        tmp_path, "llada", Scheme("int8", 32), "float16", Packaging((9,)), n_layers=1, vocab_size=9000
    )
    model = quantized_reference(tmp_path / "checkpoint", Scheme("int8", 32), "coreml")
    programs, rng = CoremlPrograms(bundle), np.random.default_rng(0)
    head = next(name for name, entry in programs.entries.items() if "start" in entry)
    name, function = next((n, f) for n, f in programs.entries[head]["functions"].items() if "head" in n)
    # Nearly flat: all of the words count.
    values = {"x": random(rng, 9, model.architecture.hidden_size, scale=0.1), "temperature": np.array([1.0])}
    got = programs.run(head, name, values)
    expected = around(model, programs.entries[head], function, values)
    assert added == {np.dtype(np.float16), np.dtype(np.float32)}
    for role in ("sum_others", "sum_z_others"):
        np.testing.assert_allclose(got[role], expected[role], rtol=0.01)


def test_half_precision_survives_large_rows_and_empty_ones(tmp_path: Path) -> None:
    """Squares of 300 do not fit float16; the mean square of zeros is not divided by."""
    scheme, family = Scheme("int8", 32), "llada"
    bundle = make_bundle(tmp_path, family, scheme, "float16", Packaging((9,), layers_per_chunk=3))
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    programs, rng = CoremlPrograms(bundle), np.random.default_rng(0)
    function = programs.entries["layers.0-2"]["functions"]["t9_p0"]
    values = layer_values(rng, model, function)
    values["mask.full"][:] = 0.0
    for scale, least in ((3e4, 60), (1e-3, 55)):
        values["x"] = random(rng, 1, 9, model.architecture.hidden_size, scale=scale / 4)
        got = programs.run("layers.0-2", "t9_p0", values)
        expected = layer_results(model, [0, 1, 2], values, values["x"])
        assert decibels(got["k.0"], expected["k.0"]) > least
    values["x"][0, 4:] = 0.0
    out = programs.run("layers.0-2", "t9_p0", values)
    assert all(np.isfinite(array).all() for array in out.values())


def test_padding_that_is_masked_changes_nothing(tmp_path: Path) -> None:
    """A pass of 5 positions after a prefix of 20 in a function of 16 and 48, rubbish in what is beyond."""
    scheme, family = Scheme("mixed4", 32), "diffusion_gemma"
    bundle = make_bundle(tmp_path, family, scheme, "float32", Packaging((48,)), **SMALL[family])
    programs, rng = CoremlPrograms(bundle), np.random.default_rng(1)
    model = quantized_reference(tmp_path / "checkpoint", scheme, "coreml")
    package = next(n for n in programs.entries if n.startswith("layers"))
    function = programs.entries[package]["functions"]["t16_p48"]
    values = layer_values(rng, model, function)
    for role, array in values.items():
        if role.startswith("mask"):
            p = array.shape[1] - 16
            array[:], array[:, 20:p], array[:, p + 5 :] = 0.0, HIDDEN, HIDDEN
    first = programs.run(package, "t16_p48", values)
    for role, array in values.items():
        if role.startswith("prefix"):
            array[:, :, 20:] = random(rng, *array[:, :, 20:].shape, scale=50)
    values["x"][:, 5:] = random(rng, *values["x"][:, 5:].shape, scale=50)
    second = programs.run(package, "t16_p48", values)
    np.testing.assert_allclose(first["y"][:, :5], second["y"][:, :5], rtol=1e-5, atol=1e-5)
    assert np.abs(first["y"][:, 5:] - second["y"][:, 5:]).max() > 1


def test_layers_scale_queries_as_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_query_scales(monkeypatch)
    bundle, model = case_bundle(tmp_path / "float32", "coreml", "llada", "bf16", 2)
    check_layers(CoremlPrograms(bundle), model, 1, None)
    bundle, model = case_bundle(tmp_path / "float16", "coreml", "llada", "bf16", 2, precision="float16")
    check_layers(CoremlPrograms(bundle), model, 1, 40)


@pytest.mark.parametrize(("family", "preset", "rank"), ADAPTED)
def test_layers_add_adapters_as_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, rank: int
) -> None:
    use_adapters(monkeypatch, rank, bias=rank != 3)
    monkeypatch.setattr("support.package_bundles.write_checkpoint", write_adapted_checkpoint)
    bundle, model = case_bundle(tmp_path / "float32", "coreml", family, preset, 2)
    check_layers(CoremlPrograms(bundle), model, 1, None)
    bundle, model = case_bundle(tmp_path / "float16", "coreml", family, preset, 1, precision="float16")
    check_layers(CoremlPrograms(bundle), model, 1, 60)


@pytest.mark.parametrize(("family", "preset"), SWITCHED)
def test_layers_switch_adapters_as_the_reference(tmp_path: Path, family: str, preset: str) -> None:
    """Half of the rows, at random."""
    bundle, model = switched_bundle(tmp_path / "float32", "coreml", family, preset, "float32")
    check_layers(CoremlPrograms(bundle), model, 1, None)
    bundle, model = switched_bundle(tmp_path / "float16", "coreml", family, preset, "float16")
    check_layers(CoremlPrograms(bundle), model, 1, 50)


def test_groups_of_experts_route_as_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SMALL, "llada2_moe", RULES["groups"])
    bundle, model = case_bundle(tmp_path / "float32", "coreml", "llada2_moe", "bf16", 2)
    assert check_layers(CoremlPrograms(bundle), model, 1, None) == 4
    bundle, model = case_bundle(tmp_path / "float16", "coreml", "llada2_moe", "bf16", 2, precision="float16")
    check_layers(CoremlPrograms(bundle), model, 1, 40)


def test_a_capacity_of_experts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fill up a pass would choose too."""
    monkeypatch.setitem(SMALL, "llada2_moe", RULES["blocks"])
    with pytest.raises(ExportError, match="node route .* chooses experts for several rows together"):
        case_bundle(tmp_path, "coreml", "llada2_moe", "bf16", 2)
