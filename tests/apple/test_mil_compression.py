"""Compressed weights: every operation against coremltools' decompression, whole and in blocks of rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mil_programs import TARGETS, Array, Function, mb, saved, types

from edgekit.runtime.checks.mil import Evaluator, MalformedPackage, Package
from edgekit.runtime.checks.mil import rows as rows_module

F16, F32 = np.float16, np.float32
rng = np.random.default_rng(5)


def codes(name: str, *shape: int) -> Array:
    """Random values of a type of less than a byte, as coremltools marks them."""
    bits, signed = int(name[-1]), name[0] == "i"
    low = -(1 << (bits - 1)) if signed else 0
    array = rng.integers(low, low + (1 << bits), shape)
    return array.astype(types.nptype_from_builtin(types.string_to_builtin(name)))


def normal(*shape: int, dtype: Any = F16) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def packed(indices: Array, bits: int) -> Array:
    """The form of iOS 16: indices without gaps in a vector of bytes, lowest bits first."""
    spread = (indices.reshape(-1, 1) >> np.arange(bits)) & 1
    return np.packbits(spread.astype(np.uint8).reshape(-1), bitorder="little")


def modern_weights() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, operation of iOS 18, arguments."""
    shift_scale = "constexpr_blockwise_shift_scale"
    for source in ("int4", "uint4", "int8", "uint8"):
        data = rng.integers(0, 100, (6, 8)).astype(source) if "8" in source else codes(source, 6, 8)
        yield f"last_axis_{source}", shift_scale, {"data": data, "scale": normal(6, 2)}
        offset = rng.integers(0, 9, (6, 2)).astype(source) if "8" in source else codes(source, 6, 2)
        yield f"offset_{source}", shift_scale, {"data": data, "scale": normal(6, 2), "offset": offset}
    data = codes("int4", 6, 4, 10)
    for label, shape in (("both_axes", (3, 2, 5)), ("first_axis", (2, 1, 1)), ("one_scale", (1, 1, 1))):
        yield label, shift_scale, {"data": data, "scale": normal(*shape, dtype=F32)}
    yield "float_offset", shift_scale, {"data": data, "scale": normal(2, 1, 5), "offset": normal(2, 1, 5)}
    lut = "constexpr_lut_to_dense"
    for bits in (1, 2, 3, 4, 6):
        yield (
            f"palette{bits}",
            lut,
            {"indices": codes(f"uint{bits}", 6, 7), "lut": normal(1, 1, 1 << bits, 1)},
        )
    yield (
        "palette8",
        lut,
        {"indices": rng.integers(0, 256, (6, 7)).astype(np.uint8), "lut": normal(2, 1, 256, 1)},
    )
    yield "palette_of_rows", lut, {"indices": codes("uint4", 6, 7), "lut": normal(3, 1, 16, 1)}
    yield "palette_of_blocks", lut, {"indices": codes("uint2", 6, 4, 5), "lut": normal(3, 2, 1, 4, 1)}
    for axis in (0, 1, -1):
        yield f"vectors{axis}", lut, {"indices": codes("uint2", 6, 5), "lut": normal(2, 1, 4, 3),
                                      "vector_axis": axis}  # fmt: skip
    mask = codes("uint1", 6, 7)
    yield (
        "sparse",
        "constexpr_sparse_to_dense",
        {"nonzero_data": normal(np.count_nonzero(mask)), "mask": mask},
    )
    yield "cast", "constexpr_cast", {"source_val": normal(6, 3), "output_dtype": "fp32"}


def old_weights() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The same for iOS 16."""
    for source in (np.int8, np.uint8):
        data = rng.integers(0, 100, (6, 5, 4)).astype(source)
        name = np.dtype(source).name
        yield f"scalar_{name}", "constexpr_affine_dequantize", {
            "quantized_data": data, "zero_point": source(3), "scale": F32(0.5), "axis": 0}  # fmt: skip
        for axis, size in ((0, 6), (1, 5), (-1, 4)):
            yield f"axis{axis}_{name}", "constexpr_affine_dequantize", {
                "quantized_data": data, "zero_point": rng.integers(0, 9, size).astype(source),
                "scale": normal(size), "axis": axis}  # fmt: skip
    for bits in (1, 2, 4, 6, 8):
        indices = rng.integers(0, 1 << bits, (6, 7))
        yield f"palette{bits}", "constexpr_lut_to_dense", {
            "indices": packed(indices, bits), "lut": normal(1 << bits),
            "shape": np.array([6, 7], np.uint32)}  # fmt: skip
    mask = rng.integers(0, 2, (6, 7))
    yield "sparse", "constexpr_sparse_to_dense", {
        "nonzero_data": normal(mask.sum(), dtype=F32), "mask": packed(mask, 1),
        "shape": np.array([6, 7], np.uint32)}  # fmt: skip
    yield "cast", "constexpr_cast", {"source_val": normal(6, 5), "output_dtype": "fp32"}


CASES = {f"ios{ios}-{label}": (ios, op, arguments)
         for ios, cases in ((18, modern_weights()), (16, old_weights()))
         for label, op, arguments in cases}  # fmt: skip


def decompressed(op: str, arguments: dict[str, Any], ios: int) -> Array:
    with Function({}, opset_version=TARGETS[ios]):
        made = getattr(mb, op)(**arguments)
        made = made[1] if isinstance(made, (list, tuple)) else made
        return np.asarray(made.op.materialized_val_inference())


ROWS = np.array([4, 1, 2, 5, 2], np.int32)


@pytest.fixture(scope="module", params=[16, 18])
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A package with every weight of one operation set: each added to an input of zero, and rows of each."""
    ios = request.param

    def body(half: Any, single: Any, index: Any) -> list[Any]:
        results = []
        for case_ios, op, arguments in CASES.values():
            if case_ios == ios:
                weight = getattr(mb, op)(**arguments)
                results.append(mb.add(x=half if weight.dtype == types.fp16 else single, y=weight))
                results.append(mb.gather(x=weight, indices=index, axis=0))
        return results

    path = tmp_path_factory.mktemp("weights") / f"ios{ios}.mlpackage"
    inputs = {"half": ((1,), types.fp16), "single": ((1,), types.fp32), "index": ((5,), types.int32)}
    return ios, saved(path, inputs, body, ios)


@pytest.mark.parametrize("compute", ["declared", "float32"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_weights_decompress_as_in_coremltools(
    weights: tuple[int, Path], compute: Any, cache_bytes: int
) -> None:
    ios, path = weights
    feeds = {"half": np.zeros(1, F16), "single": np.zeros(1, F32), "index": ROWS}
    found = list(Evaluator(path, compute=compute, cache_bytes=cache_bytes).run(feeds).values())
    cases = {name: case for name, case in CASES.items() if case[0] == ios}
    assert len(found) == 2 * len(cases)
    for (name, (_, op, arguments)), whole, rows in zip(cases.items(), found[0::2], found[1::2], strict=True):
        np.testing.assert_array_equal(rows, whole[ROWS], err_msg=name)
        expected = decompressed(op, arguments, ios)
        if compute == "float32":
            np.testing.assert_allclose(whole, expected, rtol=1e-3, atol=1e-3, err_msg=name)
            assert whole.dtype == F32
        elif "float_offset" in name:  # coremltools rounds the difference as well as the product
            np.testing.assert_allclose(whole, expected, rtol=2e-3, atol=2e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(whole, expected, err_msg=name)
            assert whole.dtype == expected.dtype


def test_sparse_operations_compose(tmp_path: Path) -> None:
    """Palettes and scales of sparse weights give a mask and the elements under it."""
    mask = codes("uint1", 6, 8)
    count = int(np.count_nonzero(mask))
    indices, lut, data, scale = codes("uint2", count), normal(2, 1, 4, 1), codes("int4", count), normal(6, 2)
    vectors = normal(1, 1, 4, 2)

    def body(x: Any) -> Any:
        palette = mb.constexpr_lut_to_sparse(indices_mask=mask, indices_nonzero_data=indices, lut=lut)
        scaled = mb.constexpr_sparse_blockwise_shift_scale(data_mask=mask, nonzero_data=data, scale=scale)
        pairs = mb.constexpr_lut_to_sparse(
            indices_mask=mask, indices_nonzero_data=indices, lut=vectors, vector_axis=0
        )
        dense = [mb.constexpr_sparse_to_dense(nonzero_data=v, mask=m) for m, v in (palette, scaled, pairs)]
        return [mb.linear(x=x, weight=weight) for weight in dense]

    path = saved(tmp_path / "sparse.mlpackage", {"x": ((8, 8), types.fp16)}, body)
    found = list(Evaluator(path, cache_bytes=0).run({"x": np.eye(8, dtype=F16)}).values())

    def placed(values: Array, where: Array) -> Array:
        dense = np.zeros(where.shape, F32)
        dense[where] = values
        return dense

    where, plain = np.asarray(mask) != 0, np.asarray(indices).astype(int)
    table = np.broadcast_to(np.arange(6)[:, None] // 3, (6, 8))[where]
    scales = np.repeat(scale.astype(F32), 4, 1)[where]
    np.testing.assert_array_equal(found[0].T, placed(lut[table, 0, plain, 0], where))
    np.testing.assert_array_equal(found[1].T, placed((np.asarray(data) * scales).astype(F16), where))
    both = np.repeat(where, 2, 0)
    expected = np.zeros((12, 8), F32)
    expected[0::2][where], expected[1::2][where] = vectors[0, 0, plain, 0], vectors[0, 0, plain, 1]
    assert (expected[~both] == 0).all()
    np.testing.assert_array_equal(found[2].T, expected)


def test_a_compressed_palette_and_a_compressed_scale(tmp_path: Path) -> None:
    """A weight may be compressed twice: the palette is int8, the result of looking up is scaled."""
    indices = codes("uint4", 8, 6)
    palette = rng.integers(-128, 128, (2, 1, 16, 1)).astype(np.int8)
    scale = normal(8, 1)

    def body(x: Any) -> Any:
        looked_up = mb.constexpr_lut_to_dense(indices=indices, lut=palette)
        return mb.linear(x=x, weight=mb.constexpr_blockwise_shift_scale(data=looked_up, scale=scale))

    path = saved(tmp_path / "twice.mlpackage", {"x": ((6, 6), types.fp16)}, body)
    (found,) = Evaluator(path).run({"x": np.eye(6, dtype=F16)}).values()
    dense = palette[np.arange(8)[:, None] // 4, 0, np.asarray(indices).astype(int), 0]
    np.testing.assert_array_equal(found.T, (dense * scale.astype(F32)).astype(F16))


def test_products_take_weights_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """linear, matmul and conv, with blocks of one or a few rows: the same results but for the last bit."""
    data, scale = codes("int4", 12, 32), normal(12, 2)
    stack, scales = codes("int4", 5, 6, 32), normal(5, 6, 2)
    kernel, channels = codes("int4", 12, 32, 1, 1), normal(12, 1, 1, 1)

    def body(x: Any, image: Any) -> Any:
        def weight(data: Array, scale: Array) -> Any:
            return mb.constexpr_blockwise_shift_scale(data=data, scale=scale)

        return [
            mb.linear(x=x, weight=weight(data, scale), bias=normal(12)),
            mb.matmul(x=x, y=weight(stack, scales), transpose_y=True),
            mb.conv(x=image, weight=weight(kernel, channels)),
        ]

    inputs = {"x": ((7, 32), types.fp16), "image": ((2, 32, 3, 5), types.fp16)}
    path = saved(tmp_path / "blocks.mlpackage", inputs, body)
    feeds = {"x": normal(7, 32), "image": normal(2, 32, 3, 5)}
    whole = Evaluator(path).run(feeds)
    for block in (1, 300, 2000):
        monkeypatch.setattr(rows_module, "BLOCK_BYTES", block)
        for (name, expected), found in zip(
            whole.items(), Evaluator(path, cache_bytes=0).run(feeds).values(), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3, err_msg=name)


def test_memory_stays_at_blocks_of_the_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """int4 weights of 4 million elements: 2 MB as stored, 4 MB of codes, 8 in float16, 16 in float32."""
    data, scale = codes("int4", 2048, 2048), normal(2048, 64) * F16(0.01)

    def body(x: Any) -> Any:
        weight = mb.constexpr_blockwise_shift_scale(data=data, scale=scale)
        return mb.matmul(x=mb.linear(x=x, weight=weight), y=weight)

    path = saved(tmp_path / "large.mlpackage", {"x": ((8, 2048), types.fp16)}, body)
    peaks: list[int] = []

    def observe(*_: Any) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()

    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 1 << 20)
    evaluator = Evaluator(path, cache_bytes=0)
    tracemalloc.start()
    try:
        evaluator.run({"x": normal(8, 2048)}, observe=observe)
    finally:
        tracemalloc.stop()
    # linear takes rows. matmul multiplies by columns here, and needs all of it; then it lets go.
    by_rows, by_columns = peaks
    assert by_rows < 6e6 and 16e6 < by_columns < 50e6


def test_codes_can_be_read_back(tmp_path: Path) -> None:
    """Auditing a package: the stored codes and scales of each weight, from the files."""
    data, scale = codes("int4", 6, 32), normal(6, 2)

    def body(x: Any) -> Any:
        return mb.linear(x=x, weight=mb.constexpr_blockwise_shift_scale(data=data, scale=scale, name="w"))

    function = Package(saved(tmp_path / "p.mlpackage", {"x": ((1, 32), types.fp16)}, body)).function()
    (weight,) = [o for o in function.operations if o.is_constexpr]
    assert weight.name == "w"
    stored = {key: binding for key, (binding,) in weight.inputs.items()}
    np.testing.assert_array_equal(stored["data"].all(), np.asarray(data))  # type: ignore[union-attr]
    np.testing.assert_array_equal(stored["scale"].all(), scale)  # type: ignore[union-attr]


def test_operands_that_do_not_fit_are_refused_at_open(tmp_path: Path) -> None:
    """A scale of 7 blocks over 32 columns: coremltools would not write it, so the program is changed."""

    def body(x: Any) -> Any:
        weight = mb.constexpr_blockwise_shift_scale(data=codes("int4", 6, 32), scale=normal(3, 4))
        return mb.linear(x=x, weight=weight)

    path = saved(tmp_path / "p.mlpackage", {"x": ((1, 32), types.fp16)}, body)
    package = Package(path)
    block = package._program.functions["main"].block_specializations["CoreML8"]
    (op,) = [o for o in block.operations if o.type.startswith("constexpr")]
    sizes = op.inputs["scale"].arguments[0].value.type.tensorType.dimensions
    sizes[0].constant.size, sizes[1].constant.size = 4, 3
    with pytest.raises(MalformedPackage, match=r"scale has shape \(4, 3\), the data \(6, 32\)"):
        Evaluator(package)
