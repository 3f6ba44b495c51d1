"""`edgekit::route` beside other people's and beside plain loops, in every engine and format."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int, c_int64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.block_routing import block_routing
from support.bundles import passes, quantized_reference
from support.checkpoints import write_checkpoint
from support.native_floats import pointer, pool
from support.native_testing import library
from support.program_interpreter import routed
from support.routing_rules import RULES

from edgekit.export.errors import ExportError
from edgekit.export.models.base import route
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.runtime.engines.onnx import gpu_engine
from edgekit.runtime.engines.torch import program as torch_program
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Segment, SessionOptions, open_session

Rule = dict[str, Any]
PLAIN: Rule = {
    "k": 2, "score": "softmax", "normalize": False, "scale": 1.0, "groups": 1, "kept_groups": 1,
    "capacity": 0, "block": 0,
}  # fmt: skip


@st.composite
def rules(draw: st.DrawFn) -> tuple[int, Rule]:
    """Experts, and a rule of one of the three kinds."""
    kind = draw(st.sampled_from(["plain", "groups", "capacity"]))
    rule = PLAIN | {
        "score": draw(st.sampled_from(["softmax", "sigmoid"])),
        "normalize": draw(st.booleans()),
        "scale": draw(st.sampled_from([1.0, 2.5])),
    }
    experts = draw(st.integers(1, 40))
    pool = experts
    if kind == "groups":
        groups, size = draw(st.integers(2, 8)), draw(st.integers(2, 9))
        experts = groups * size
        rule |= {"groups": groups, "kept_groups": draw(st.integers(1, groups))}
        pool = rule["kept_groups"] * size
    elif kind == "capacity":
        pool = draw(st.integers(1, experts))
        rule |= {"capacity": pool, "block": draw(st.integers(1, 12))}
    return experts, rule | {"k": draw(st.integers(1, min(pool, 8)))}


def native(logits: Any, bias: Any, own: Any, rule: Rule, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rows, experts = logits.shape
    index, weight = np.full((rows, rule["k"]), -1), np.empty((rows, rule["k"]), np.float32)
    arrays = [None if a is None else pointer(a) for a in (logits, bias, own)]
    library().ekt_route(
        pool(threads), *arrays, c_int64(rows), c_int64(experts), c_int64(rule["k"]),
        c_int(rule["score"] == "sigmoid"), c_int(rule["normalize"]), c_float(rule["scale"]),
        *(c_int64(rule[name]) for name in ("groups", "kept_groups", "capacity", "block")),
        pointer(index), pointer(weight),
    )  # fmt: skip
    return index, weight


def reference(logits: Any, bias: Any, own: Any, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    given = [None if a is None else torch.from_numpy(a) for a in (logits, bias, own)]
    found = route(given[0], bias=given[1], expert_scale=given[2], **rule)
    return found[0].numpy(), found[1].numpy()


def torch_engine(logits: Any, bias: Any, own: Any, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    given = {"b": bias, "s": own}
    tensors = {name: torch.from_numpy(a) for name, a in given.items() if a is not None}
    names = [name if a is not None else None for name, a in given.items()]
    weights = torch_program.Weights(tensors, {})
    index, weight = torch_program.OPERATORS["route"]([torch.from_numpy(logits)], names, rule, weights)
    return index.numpy(), weight.numpy()


@pytest.mark.parametrize("engine", [reference, native, torch_engine])
def test_routing_is_that_of_plain_loops(engine: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    @settings(max_examples=150, deadline=None)
    @given(rules(), st.integers(1, 40), st.integers(0, 2**31), st.booleans(), st.booleans())
    def check(kind: tuple[int, Rule], rows: int, seed: int, biased: bool, scaled: bool) -> None:
        experts, rule = kind
        rng = np.random.default_rng(seed)
        logits, bias, own = (
            rng.standard_normal(s).astype(np.float32) for s in ((rows, experts), experts, experts)
        )
        vectors = bias / 4 if biased else None, own if scaled else None
        expected = routed(logits, *vectors, rule)
        found = engine(logits, *vectors, rule)
        np.testing.assert_array_equal(found[0], expected[0], err_msg=str(rule))
        np.testing.assert_allclose(found[1], expected[1], rtol=2e-5, atol=1e-7)

    check()


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((777, 128)).astype(np.float32)
    for rule in (PLAIN | {"k": 8}, PLAIN | {"k": 8, "capacity": 48, "block": 32, "score": "sigmoid"}):
        one, three = native(logits, None, None, rule, 1), native(logits, None, None, rule, 3)
        assert all(np.array_equal(a, b) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize("engine", [native, torch_engine])
def test_what_is_not_a_number_shows_and_chooses_known_experts(engine: Any) -> None:
    """Also where a bias is infinite."""
    logits = np.zeros((6, 8), np.float32)
    logits[1, 3], logits[2], logits[3, 0], logits[4, 1] = np.nan, np.nan, np.inf, -np.inf
    bias = np.array([np.inf, -np.inf, np.nan, 0, np.inf, np.inf, -np.inf, 0], np.float32)
    for own in (None, bias):
        for more in ({}, {"groups": 4, "kept_groups": 2}, {"capacity": 3, "block": 4}):
            index, weight = engine(logits, own, None, PLAIN | more)
            assert ((index >= 0) & (index < 8)).all()
            assert np.isnan(weight[2]).all()


def test_experts_that_are_wanted_equally_go_by_number() -> None:
    logits = np.zeros((5, 12), np.float32)
    for more in ({}, {"groups": 3, "kept_groups": 2}, {"capacity": 4, "block": 2}):
        for engine in (native, torch_engine):
            index, _ = engine(logits, None, None, PLAIN | {"k": 3} | more)
            assert index.tolist() == [[0, 1, 2]] * 5


def test_groups_and_bias_are_those_of_glm4_moe() -> None:
    """transformers' router of the layout that LLaDA2 has."""
    from transformers.models.glm4_moe.configuration_glm4_moe import Glm4MoeConfig
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

    config = Glm4MoeConfig(
        hidden_size=32, n_routed_experts=32, num_experts_per_tok=4, n_group=8, topk_group=3,
        norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    torch.manual_seed(0)
    router = Glm4MoeTopkRouter(config)
    with torch.no_grad():
        router.weight.normal_()
        router.e_score_correction_bias.normal_()
        logits, weight, index = router(torch.randn(50, 32))
        rule = {"k": 4, "score": "sigmoid", "normalize": True, "scale": 2.5, "groups": 8, "kept_groups": 3}
        own, own_weight = route(logits, bias=router.e_score_correction_bias, **rule)
    order, own_order = index.argsort(-1), own.argsort(-1)
    assert torch.equal(index.gather(-1, order), own.gather(-1, own_order))
    torch.testing.assert_close(weight.gather(-1, order), own_weight.gather(-1, own_order))


def test_blocks_are_those_of_what_is_published() -> None:
    rng = np.random.default_rng(4)
    for rows, experts, k, capacity, block in ((32, 64, 8, 12, 32), (75, 19, 3, 5, 32), (9, 7, 2, 2, 4)):
        logits, bias = (rng.standard_normal(s).astype(np.float32) for s in ((rows, experts), experts))
        index, weight = block_routing(logits, bias / 4, k, capacity, block, 2.5)
        rule = PLAIN | {
            "k": k, "score": "sigmoid", "normalize": True, "scale": 2.5, "capacity": capacity, "block": block,
        }  # fmt: skip
        for engine in (reference, native, torch_engine):
            found, of = engine(logits, bias / 4, None, rule)
            np.testing.assert_array_equal(found, index)
            np.testing.assert_allclose(of, weight, rtol=1e-5)


# --- in every format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("written", ["native", "onnx", "onnx-gpu", "tvm", "mlx"])
def test_formats_route_as_the_reference(
    tmp_path: Path, written: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    checkpoint, out, scheme = tmp_path / "checkpoint", tmp_path / "bundle", Scheme("bf16")
    write_checkpoint(checkpoint, "llada2_moe", **RULES[rule])
    how = ExportOptions(written, "mac" if written == "mlx" else "host", scheme)
    if written == "mlx" and rule == "blocks":
        with pytest.raises(ExportError, match="node route .* chooses experts for several rows together"):
            export(checkpoint, out, how)
        return
    export(checkpoint, out, how)
    model = quantized_reference(checkpoint, scheme, written)
    with open_session(out, engine=written) as session:
        found, expected = passes(session, model)
    assert found.logits is not None
    np.testing.assert_allclose(
        found.logits, expected.numpy(), rtol=0, atol=1e-4 * float(expected.abs().max())
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_torch_engine_routes_as_the_reference(tmp_path: Path, rule: str) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada2_moe", **RULES[rule])
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions("native", "host", Scheme("bf16")))
    model = quantized_reference(tmp_path / "checkpoint", Scheme("bf16"), "native")
    with open_session(tmp_path / "bundle", engine="torch") as session:
        found, expected = passes(session, model)
    assert found.logits is not None
    np.testing.assert_allclose(
        found.logits, expected.numpy(), rtol=0, atol=1e-4 * float(expected.abs().max())
    )


@pytest.mark.parametrize("engine", ["native", "onnx", "onnx-gpu", "tvm", "torch"])
def test_segments_of_a_pass_have_blocks_of_their_own(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canvases and text, whose last blocks are shorter than four rows, of several sequences and of one."""
    monkeypatch.setattr(gpu_engine, "PROVIDERS", {"CPUExecutionProvider": "cpu"})
    written = "native" if engine == "torch" else engine
    write_checkpoint(tmp_path / "checkpoint", "llada2_moe", **RULES["blocks"])
    export(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(written, "host", Scheme("bf16")))
    rng, request = np.random.default_rng(3), HeadRequest(logits=True)
    lengths = [(6, False), (9, True), (3, False), (5, True), (7, False)]
    with open_session(
        tmp_path / "bundle", SessionOptions(sequences=5, positions=64), engine=engine
    ) as session:
        texts = [session.sequence, *(session.open_sequence() for _ in range(3))]
        segments = [
            Segment(text, rng.integers(0, 384, n), request, causal=causal, block=4)
            for text, (n, causal) in zip([*texts, texts[0]], lengths, strict=True)
        ]
        alone = [session.run_pass([segment])[0] for segment in segments]
        together = session.run_pass(segments)
    for one, other in zip(alone, together, strict=True):
        assert one is not None and other is not None
        assert one.logits is not None and other.logits is not None
        exact = engine in ("native", "tvm")
        atol = 0 if exact else 2e-6 * float(np.abs(one.logits).max())
        np.testing.assert_allclose(other.logits, one.logits, rtol=0, atol=atol)
