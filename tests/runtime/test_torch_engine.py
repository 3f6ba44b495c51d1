"""The torch engine on the processor, against the op lists computed in float64; and its kernels for GPUs, run
by Triton's interpreter and compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.native_cases import CASES, bundle_of_case
from support.program_interpreter import BundleInterpreter

from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.torch.device import host_tensor
from edgekit.runtime.engines.torch.mixture import TensorMixture
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, drive
from edgekit.runtime.session import open_session

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.replace(" ", "-"))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of_case(tmp_path_factory.mktemp("torch"), request.param)


def engine_of(bundle: Path) -> Any:
    made = engines.create(Bundle.open(bundle), 2, name="torch")
    assert made is not None and made.name == "torch"
    return made


def tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: host_tensor(each).clone() for name, each in arrays.items()}


class Stored:
    """Weights of a bundle as the space of the engine gives them to it."""

    def __init__(self, interpreter: BundleInterpreter) -> None:
        self._file = interpreter.file

    def __call__(self, run: str) -> dict[str, torch.Tensor]:
        buffer, views = self._file.load(run)
        found = {name.removeprefix(run + "."): view.copy() for name, view in views.items()}
        for each in found.values():
            each.flags.writeable = False
        del views
        buffer.close()
        return tensors(found)


@pytest.fixture
def oracle(case: Path) -> Iterator[BundleInterpreter]:
    with BundleInterpreter(case, rounding=True) as interpreter:
        yield interpreter


def assert_close(made: Any, expected: Array) -> None:
    found = made.numpy()
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("prefix", "length"), [(0, 1), (9, 6)])
def test_every_layer_equals_the_oracle(
    case: Path, oracle: BundleInterpreter, rng: np.random.Generator, prefix: int, length: int
) -> None:
    """With the same codes and the same rounding of activations."""
    engine, stored, model = engine_of(case), Stored(oracle), oracle.bundle.model
    for layer in model.layers:
        kept = (1, layer.kv_heads, prefix, layer.head_dim)
        inputs: dict[str, Array] = {
            "x": 3 * rng.standard_normal((1, length, model.hidden_size)),
            "prefix_k": rng.standard_normal(kept),
            "prefix_v": rng.standard_normal(kept),
            **model.ropes[layer.rope].tables(np.arange(prefix, prefix + length)),
            "mask": np.where(rng.random((length, prefix + length)) < 0.3, -1e30, 0),
        }
        inputs = {name: each.astype(np.float32) for name, each in inputs.items()} | {"phase": np.array([0])}
        inputs["mask"][:, -1] = 0  # somebody is seen
        expected = oracle.run(layer.program, layer.run, inputs, layer.experts)
        weights = stored(layer.run)
        if layer.experts:
            given = tensors(inputs)
            routed = engine.route(layer.program, given, weights)
            chosen: tuple[Any, ...] = routed.x, routed.index, routed.weight
            mixture = TensorMixture(*chosen, len(layer.experts), "")
            run = partial(engine.experts, layer.program)
            experts = [(number, stored(name)) for number, name in enumerate(layer.experts)]
            mixture.add_together(experts[::-2], run)
            mixture.add_together(experts[-2::-2], run)
            y = engine.join(layer.program, given, routed, mixture.total(), weights)
            k, v = routed.k, routed.v
        else:
            y, [(k, v)] = engine.layers(layer.program, [tensors(inputs)], weights)
        for found, wanted in zip((y, k, v), expected, strict=True):
            assert_close(found, wanted)


def test_what_surrounds_the_layers_equals_the_oracle(
    case: Path, oracle: BundleInterpreter, rng: np.random.Generator
) -> None:
    engine, stored, model = engine_of(case), Stored(oracle), oracle.bundle.model
    x, soft = (rng.standard_normal((1, 5, model.hidden_size)).astype(np.float32) for _ in range(2))
    [expected] = oracle.run("final", "final", {"x": x})
    given, mixed = torch.from_numpy(x), torch.from_numpy(soft)
    assert_close(engine.final(given, stored("final")), expected)
    if model.self_conditioning:
        name = "self_conditioning"
        [expected] = oracle.run(name, name, {"embedded": x, "soft": soft})
        assert_close(engine.self_condition(given, mixed, stored(name)), expected)


def tokens(bundle: Path, engine: str, **options: Any) -> list[int]:
    with open_session(bundle, engine=engine) as session:
        sampler = CoreSampler(sampler_model(session.bundle), [5, 6, 7, 9], seed=1, **options)
        events = list(drive(sampler, session))
        assert session.statistics()["engine"] == engine
    return [int(each) for event in events if isinstance(event, Committed) for each in event.ids]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-gemma"])
def test_a_generation_gives_the_tokens_of_the_core(shipped_bundle: Callable[..., Path], name: str) -> None:
    bundle, options = shipped_bundle(name, "native"), {"max_new_tokens": 32, "steps": 16}
    assert tokens(bundle, "torch", **options) == tokens(bundle, "native", **options)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no program": (lambda entries: entries.clear(), "is no object"),
    "an unknown operator": (lambda e: e["final"]["ops"][0].update(op="exec"), "unknown operator 'exec'"),
    "an unknown value": (lambda e: e["final"]["ops"][0].update({"in": [9999]}), "names value 9999 of 2"),
    "a value that nothing makes": (
        lambda e: e["final"].update(inputs=[]),
        "in rms_norm that nothing has made",
    ),
    "an unknown input": (lambda e: e["final"].update(inputs=["secret"]), "takes 'secret', which is no input"),
    "an unknown weight": (
        lambda e: e["final"]["ops"][0].update(w=["secret"]),
        "takes 'secret', which is no float vector among its weights",
    ),
    "a list that is none": (lambda e: e["final"].update(ops={"a": 1}), "has no list ops"),
    "very many values": (lambda e: e["final"].update(values=10**9), "says that it has 1000000000 values"),
    "a word as a number": (lambda e: e["final"]["ops"][0].update(eps="small"), "cannot be run by torch"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_program_has_one_line(shipped_bundle: Callable[..., Path], wrong: str) -> None:
    change, said = WRONG[wrong]
    bundle = Bundle.open(shipped_bundle("tiny-llada", "native"))
    change(bundle.manifest.programs["entries"])
    engine: Any = engines.create(bundle, 1, name="torch")
    weights = {"norm.weight": torch.ones(bundle.model.hidden_size)}
    with pytest.raises(EngineFailed, match=f"program final .*{said}.*; export the bundle again$") as error:
        engine.final(torch.ones(1, 2, bundle.model.hidden_size), weights)
    assert "\n" not in str(error.value)


# --- kernels for GPUs ---------------------------------------------------------------------------------------

EQUAL = """
import numpy as np, torch
from edgekit.export.formats.native import layout
from edgekit.export.quantize import quantize_matrix
from edgekit.runtime.engines.torch import products, triton_products
from edgekit.runtime.engines.torch.matrix import Matrix

torch.manual_seed(0)
for n, k, bits, group in (
    (70, 96, 4, 32), (64, 128, 4, 64), (192, 100, 8, 0), (10, 37, 8, 0), (130, 256, 4, 128),
):
    stored = layout.arrays("m", "matrix", quantize_matrix(torch.randn(n, k), bits, group))
    tensors = {name[2:]: torch.from_numpy(np.array(each)) for name, each in stored.items()}
    matrix = Matrix.of(tensors, "", (n, k))
    for rows in (1, 7, 16, 40, 130):
        x = torch.randn(rows, k)
        x[rows // 2] = 0
        given = products.rounded_rows(x)
        plain = products.scaled_product(*given, matrix)
        assert torch.equal(triton_products.scaled_product(*given, matrix), plain)
    # Experts with no, few and many rows, wherever their matrices lie.
    held = [torch.empty(99), matrix]
    for _ in range(3):
        stored = layout.arrays("m", "matrix", quantize_matrix(torch.randn(n, k), bits, group))
        own = {name[2:]: torch.from_numpy(np.array(each)) for name, each in stored.items()}
        held.append(Matrix.of(own, "", (n, k)))
    for counts in ((5, 1, 16, 17), (0, 40, 3), (2,), (0, 0, 7, 0)):
        matrices = [held[1:][(i + 2) % 4] for i in range(len(counts))]
        x, scales = products.rounded_rows(torch.randn(sum(counts), k))
        parts = zip(x.split(counts), scales.split(counts), matrices)
        plain = torch.cat([products.scaled_product(*each) for each in parts])
        assert torch.equal(triton_products.grouped_product(x, scales, counts, matrices), plain)
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from edgekit.runtime.engines.torch import triton_products

KINDS = {
    "x": "*i8", "row_scales": "*fp32", "scales": "*fp32", "out": "*fp32", "M": "i32", "codes": "*u8",
    "packed": "*u8", "group_scales": "*u8", "tiles": "*i32", "places": "*i64",
}
for name in ("product_8bit", "product_4bit", "grouped_8bit", "grouped_4bit"):
    kernel = getattr(triton_products, name)
    names = list(kernel.arg_names)
    sizes = {"K": 256, "N": 128, "G": 32, "BM": 16, "BK": 64}
    constants = {each: sizes[each] for each in names if each in sizes}
    kinds = KINDS | dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): each for name, each in constants.items()}
    source = ASTSource(kernel, {each: kinds[each] for each in names}, values)
    for capability in (80, 86, 87, 89, 90, 120):
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm
        assert made["cubin"] and "mma" in made["ptx"], (name, capability)
    # Triton has no int8 products for 7.5, nor tensor cores in float16: cuBLAS multiplies there.
    try:
        triton.compile(source, target=GPUTarget("cuda", 75, 32))
    except RuntimeError:
        continue
    raise AssertionError(f"{name} compiles for 7.5: see which instructions, and lower the least capability")
"""


@pytest.mark.parametrize(("script", "interpreted"), [(EQUAL, "1"), (COMPILED, "0")])
def test_kernels_equal_the_plain_products_and_compile(tmp_path: Path, script: str, interpreted: str) -> None:
    """To the bit; on tensor cores of every GPU that they are for, from Ampere to consumer Blackwell."""
    pytest.importorskip("triton", reason="triton is not installed")
    own = {"TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **own}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_kernels_are_for_gpus_with_tensor_cores_that_triton_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones, and systems without Triton, unpack the codes of a matrix and have cuBLAS multiply."""
    pytest.importorskip("triton", reason="triton is not installed")
    from edgekit.runtime.engines.torch import products, triton_products

    found = []
    for number, capability in enumerate([(7, 5), (8, 0), (8, 7), (12, 0)]):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        found.append(products._kernels(torch.device("cuda", 90 + number)))
    assert found == [None, triton_products, triton_products, triton_products]
    monkeypatch.setattr(products.importlib.util, "find_spec", lambda name: None)
    assert products._kernels(torch.device("cuda", 95)) is None
    assert products._kernels(torch.device("cpu")) is None


def test_grouped_products_are_those_of_each_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch where there are kernels and matrices are alike, else one matrix after the other."""
    from edgekit.runtime.engines.torch import products
    from edgekit.runtime.engines.torch.matrix import Matrix

    def matrix(columns: int) -> Matrix:
        codes = torch.randint(0, 256, (1, columns // 4, 64, 4), dtype=torch.uint8)
        return Matrix(64, columns, codes=codes, scales=torch.rand(64))

    launched: list[int] = []

    class Kernels:
        def scaled_product(self, *given: Any) -> Any:
            return products.scaled_product(*given)

        def grouped_product(self, x: Any, scales: Any, counts: Any, matrices: Any) -> Any:
            launched.append(len(matrices))
            parts = zip(x.split(counts), scales.split(counts), matrices, strict=True)
            return torch.cat([products.scaled_product(*each) for each in parts])

    x, alike = torch.randn(7, 16), [matrix(16), matrix(16), matrix(16)]
    unlike = [alike[0], Matrix(64, 16, weight=torch.randn(64, 16).bfloat16()), alike[2]]
    expected = [products.grouped_linear(x, [2, 0, 5], each) for each in (alike, unlike)]
    monkeypatch.setattr(products, "_kernels", lambda device: Kernels())
    found = [products.grouped_linear(x, [2, 0, 5], each) for each in (alike, unlike)]
    assert all(map(torch.equal, found, expected)) and launched == [3]
