"""The Core AI bundle: every function of its assets, run by Core AI, against the reference holding the same
codes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coreai_bundles import CoreaiPrograms
from support.bundles import quantized_reference
from support.head_oracle import check_saturated
from support.loop_parity import FLOAT16, check_loops
from support.low_rank import use_adapters, write_adapted_checkpoint
from support.package_bundles import (
    ADAPTED,
    CASES,
    HALF_CASES,
    LENGTHS,
    SMALL,
    SWITCHED,
    case_bundle,
    check_around,
    check_layers,
    layer_results,
    layer_values,
    make_bundle,
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
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

Case = tuple[Path, ReferenceModel]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: "-".join(map(str, c)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """In float32."""
    return case_bundle(tmp_path_factory.mktemp("coreai"), "coreai", *request.param)


@pytest.fixture(scope="module", params=HALF_CASES, ids=lambda c: "-".join(c))
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """In float16, layer by layer, as it is shipped."""
    return case_bundle(tmp_path_factory.mktemp("half"), "coreai", *request.param, precision="float16")


def test_layers_equal_the_reference(case: Case) -> None:
    bundle, model = case
    with CoreaiPrograms(bundle) as programs:
        chunks = [name for name in programs.entries if name.startswith("layers")]
        count = check_layers(programs, model, 1, None)
    assert count == len(chunks) * len(LENGTHS[model.architecture.family])


def test_what_is_around_the_layers(case: Case) -> None:
    """Norm, self-conditioning and all forms of the head."""
    bundle, model = case
    with CoreaiPrograms(bundle) as programs:
        check_around(programs, model, "float32")


def test_loops_equal_the_reference(case: Case) -> None:
    bundle, model = case
    with Session(bundle) as session:
        check_loops(session, model)


def test_statistics_hold_where_probabilities_round_to_one(case: Case) -> None:
    bundle, model = case
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 9)
    with Session(bundle) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)))


def test_float16_statistics_hold_where_probabilities_round_to_one(half: Case) -> None:
    bundle, model = half
    canvas = np.random.default_rng(2).integers(0, model.architecture.vocab_size, 9)
    with Session(bundle) as session:
        check_saturated(lambda t: session.denoise(canvas, HeadRequest(temperature=t, logits=True)), 1e-5)


def test_float16_layers_are_close_to_the_reference(half: Case) -> None:
    bundle, model = half
    with CoreaiPrograms(bundle) as programs:
        check_layers(programs, model, 1, 60)


def test_what_is_around_float16_layers(half: Case) -> None:
    bundle, model = half
    with CoreaiPrograms(bundle) as programs:
        check_around(programs, model, "float16")


def test_float16_loops_are_close_to_the_reference(half: Case) -> None:
    bundle, model = half
    with Session(bundle) as session:
        check_loops(session, model, FLOAT16[model.architecture.family])


def test_half_precision_survives_large_rows_and_empty_ones(tmp_path: Path) -> None:
    """Squares of 300 do not fit float16; the mean square of zeros is not divided by."""
    cut = Packaging((9,), layers_per_chunk=3)
    bundle = make_bundle(tmp_path, "llada", "coreai", Scheme("int8", 32), "float16", cut)
    model = quantized_reference(tmp_path / "checkpoint", Scheme("int8", 32), "coreai")
    rng = np.random.default_rng(0)
    with CoreaiPrograms(bundle) as programs:
        package = next(iter(n for n in programs.entries if n.startswith("layers")))
        function = programs.entries[package]["functions"]["t9_p0"]
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        values = layer_values(rng, model, function)
        values["mask.full"][:] = 0.0
        for scale, least in ((3e4, 60), (1e-3, 60)):
            values["x"] = random(rng, 1, 9, model.architecture.hidden_size, scale=scale / 4)
            got = programs.run(package, "t9_p0", values)
            expected = layer_results(model, layers, values, values["x"])
            assert decibels(got["k.0"], expected["k.0"]) > least
        values["x"][0, 4:] = 0.0
        out = programs.run(package, "t9_p0", values)
        assert all(np.isfinite(array).all() for array in out.values())


def test_layers_scale_queries_as_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_query_scales(monkeypatch)
    bundle, model = case_bundle(tmp_path, "coreai", "llada", "bf16", 2)
    with CoreaiPrograms(bundle) as programs:
        check_layers(programs, model, 1, None)
    half, model = case_bundle(tmp_path / "half", "coreai", "llada", "bf16", 2, precision="float16")
    with CoreaiPrograms(half) as programs:
        check_layers(programs, model, 1, 40)


@pytest.mark.parametrize(("family", "preset", "rank"), ADAPTED)
def test_layers_add_adapters_as_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, preset: str, rank: int
) -> None:
    use_adapters(monkeypatch, rank, bias=rank != 3)
    monkeypatch.setattr("support.package_bundles.write_checkpoint", write_adapted_checkpoint)
    bundle, model = case_bundle(tmp_path, "coreai", family, preset, 2)
    with CoreaiPrograms(bundle) as programs:
        check_layers(programs, model, 1, None)
    half, model = case_bundle(tmp_path / "half", "coreai", family, preset, 1, precision="float16")
    with CoreaiPrograms(half) as programs:
        check_layers(programs, model, 1, 60)


@pytest.mark.parametrize(("family", "preset"), SWITCHED)
def test_layers_switch_adapters_as_the_reference(tmp_path: Path, family: str, preset: str) -> None:
    """Half of the rows, at random."""
    bundle, model = switched_bundle(tmp_path, "coreai", family, preset, "float32")
    with CoreaiPrograms(bundle) as programs:
        check_layers(programs, model, 1, None)


def test_groups_of_experts_route_as_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SMALL, "llada2_moe", RULES["groups"])
    bundle, model = case_bundle(tmp_path, "coreai", "llada2_moe", "bf16", 2)
    with CoreaiPrograms(bundle) as programs:
        assert check_layers(programs, model, 1, None) == 4
    half, model = case_bundle(tmp_path / "half", "coreai", "llada2_moe", "bf16", 2, precision="float16")
    with CoreaiPrograms(half) as programs:
        assert check_layers(programs, model, 1, 40) == 4


def test_a_capacity_of_experts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fill up a pass would choose too."""
    monkeypatch.setitem(SMALL, "llada2_moe", RULES["blocks"])
    with pytest.raises(ExportError, match="node route .* chooses experts for several rows together"):
        case_bundle(tmp_path, "coreai", "llada2_moe", "bf16", 2)
