"""ONNX bundles on processors with and without an exact product of uint8 and int8: which programs run, and
that they agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.bundles import make_bundle

from edgekit.export.formats.onnx.uint8 import uint8_variant
from edgekit.export.quantize import Scheme
from edgekit.flashload.manifest import load
from edgekit.runtime.engines.onnx import integer_product
from edgekit.runtime.engines.onnx.engine import OnnxEngine
from edgekit.runtime.engines.onnx.integer_product import INT8, UINT8
from edgekit.runtime.engines.unpack import unpack_int4
from edgekit.runtime.errors import EngineUnavailable
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session
from edgekit.runtime.telemetry import load_onnxruntime


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """processor(UINT8) makes those products look exact, and no others."""

    def has(*exact: str) -> None:
        monkeypatch.setattr(integer_product, "is_exact", lambda ort, kind: kind in exact)
        integer_product.right_operand.cache_clear()

    yield has
    integer_product.right_operand.cache_clear()


@pytest.fixture(scope="module")
def int8_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("int8"), "llada", Scheme("int8"), n_layers=1)


def test_the_faster_product_that_is_exact_is_taken(processor: Callable[..., None], tiny_bundle: Path) -> None:
    for exact, taken in {(INT8, UINT8): INT8, (INT8,): INT8, (UINT8,): UINT8}.items():
        processor(*exact)
        assert integer_product.right_operand() == taken
    processor()
    with pytest.raises(EngineUnavailable, match="integer products of onnxruntime .* are wrong"):
        Session(tiny_bundle)


def test_a_bundle_without_integer_products_runs_where_all_are_wrong(
    processor: Callable[..., None], float_bundle: Path
) -> None:
    processor()
    with Session(float_bundle) as session:
        assert np.isfinite(logits(session)).all()


def test_the_product_of_unsigned_codes_is_exact_here() -> None:
    """Widths and code extremes beyond what is tried before a run."""
    assert integer_product.is_exact(load_onnxruntime(), UINT8)
    session = load_onnxruntime().InferenceSession(
        integer_product.product_model(UINT8), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    for k in (1, 2, 3, 31, 4097, 20_000):
        a = rng.choice(np.array([0, 1, 254, 255], np.uint8), (9, k))
        b = rng.choice(np.array([-128, -127, 126, 127], np.int8), (k, 17))
        a[0], b[:, 0] = 255, 127
        expected = (a.astype(np.int32) - 128) @ b.astype(np.int32)
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": b.view(np.uint8) ^ 128})[0], expected)


def logits(session: Session) -> np.ndarray:
    canvas = np.arange(3, 19) * 7 % session.vocab_size
    if session.model.causal_prefix:
        session.prefill(canvas[:5])
    soft = session.denoise(canvas, HeadRequest(soft=True)).soft if session.model.self_conditioning else None
    z = session.denoise(canvas, HeadRequest(logits=True, soft=soft is not None), soft).logits
    assert z is not None
    return z


def small(name: str, array: np.ndarray) -> np.ndarray:
    """Codes of which two products never pass 16 bits: every processor computes those exactly."""
    if name.endswith(".group_scales"):
        return np.minimum(array, 7)
    if name == "codes" and array.dtype == np.uint8:  # of a tile of the vocabulary, against signed activations
        return np.minimum(array, 127)
    return np.clip(array, -63, 63) if array.dtype == np.int8 else array


@pytest.mark.parametrize("name", ["gemma_bundle", "tiny_bundle", "int8_bundle"])
def test_both_variants_agree_to_the_bit(
    request: pytest.FixtureRequest,
    processor: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    bundle: Path = request.getfixturevalue(name)
    real = OnnxEngine._weight
    kinds = set()

    def with_small_codes(self: OnnxEngine, name: str, weights: Mapping[str, Any], codes: Any) -> np.ndarray:
        out = real(self, name, {n: small(n, v) for n, v in weights.items()}, codes)
        if name.endswith(".codes"):
            kinds.add(out.dtype.name)
        return out

    monkeypatch.setattr(OnnxEngine, "_weight", with_small_codes)
    found = {}
    for right in (INT8, UINT8):
        processor(right)
        kinds.clear()
        with Session(bundle) as session:
            found[right] = logits(session)
            needed, held = session.plan.scratch, session.statistics()["scratch_bytes"]
        # Routers take float products of int8 codes in both.
        assert right in kinds and (right == UINT8 or len(kinds) == 1)
        assert held <= needed, f"{held} bytes of scratch, {needed} planned with {right}"
    np.testing.assert_array_equal(found[INT8], found[UINT8])


def test_the_memory_plan_counts_the_copies_of_8_bit_weights(
    processor: Callable[..., None], int8_bundle: Path
) -> None:
    planned, held = {}, {}
    for right in (INT8, UINT8):
        processor(right)
        with Session(int8_bundle) as session:
            logits(session)
            planned[right], held[right] = session.plan.scratch, session.statistics()["scratch_bytes"]
    assert held[INT8] == 0 < held[UINT8] == planned[UINT8] - planned[INT8]


def test_programs_with_integer_products_have_a_second_file_that_is_checked(gemma_bundle: Path) -> None:
    manifest = load(gemma_bundle)
    entries: list[dict[str, Any]] = []
    for entry in manifest.programs["entries"].values():
        entries += [entry] if "file" in entry else entry.values()
    seen = set()
    for entry in entries:
        model = onnx.load(gemma_bundle / entry["file"])
        products = [n for n in model.graph.node if n.op_type == "MatMulInteger"]
        assert ("file_uint8" in entry) == bool(products), entry["file"]
        seen.add(bool(products))
        if not products:
            continue
        assert entry["file_uint8"] in manifest.files
        variant = onnx.load(gemma_bundle / entry["file_uint8"])
        assert [v.name for v in variant.graph.input] == entry["inputs"]
        assert [v.name for v in variant.graph.output] == entry["outputs"]
        assert len([n for n in variant.graph.node if n.op_type == "MatMulInteger"]) == len(products)
    assert seen == {False, True}


def test_an_input_of_a_product_that_is_also_used_otherwise_is_refused() -> None:
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMulInteger", ["a", "b", "z"], ["y"]),
                helper.make_node("Cast", ["b"], ["f"], to=TensorProto.FLOAT),
            ],
            "g",
            [helper.make_tensor_value_info(n, kind, [4, 4]) for n, kind in (("a", 2), ("b", 3), ("z", 2))],
            [helper.make_tensor_value_info("y", 6, [4, 4]), helper.make_tensor_value_info("f", 1, [4, 4])],
        )
    )
    with pytest.raises(ValueError, match="b is used in an integer product and in Cast"):
        uint8_variant(model)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.randoms(use_true_random=False))
def test_unpacked_codes_are_the_same_with_an_offset(groups: int, size: int, columns: int, seed: Any) -> None:
    rng = np.random.default_rng(seed.getrandbits(32))
    packed = rng.integers(0, 256, (groups * size, (columns + 1) // 2), dtype=np.uint8)
    scales = rng.integers(1, 16, (groups, columns), dtype=np.uint8)
    shape = (groups * size, columns)
    signed = unpack_int4(packed, scales, np.empty(shape, np.int8))
    unsigned = unpack_int4(packed, scales, np.empty(shape, np.uint8))
    np.testing.assert_array_equal(unsigned.astype(np.int16) - 128, signed)
