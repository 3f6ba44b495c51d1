"""Torch modules, converted by coremltools and saved; evaluated from disk and compared with torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mil_programs import Array, ct, mb, saved, types
from support.signal_to_noise import decibels
from torch import nn

from edgekit.runtime.checks.mil import EvaluationFailed, Evaluator, InvalidInput, Package

WIDTH, HEADS, BLOCK = 64, 4, 32


class Layer(nn.Module):
    """A transformer layer with grouped heads, norms and a gated product."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.out_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 192, bias=False), nn.Linear(96, WIDTH)

    def forward(self, x: torch.Tensor, pk: torch.Tensor, pv: torch.Tensor) -> Any:
        t = x.shape[1]
        q, k, v = self.qkv(self.norm(x)).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        q = q.view(1, t, HEADS, -1).transpose(1, 2)
        k, v = (part.view(1, t, HEADS // 2, -1).transpose(1, 2) for part in (k, v))
        keys, values = (torch.cat([p, c], 2).repeat_interleave(2, 1) for p, c in ((pk, k), (pv, v)))
        attended = nn.functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(attended.transpose(1, 2).reshape(1, t, WIDTH))
        gate, up = self.up(self.out_norm(x)).chunk(2, -1)
        return x + self.down(nn.functional.gelu(gate) * up), k, v


def layer_inputs(t: int = 6, p: int = 5, seed: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, t, WIDTH), (1, HEADS // 2, p, WIDTH // HEADS), (1, HEADS // 2, p, WIDTH // HEADS))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def converted(module: nn.Module, example: tuple[torch.Tensor, ...], **options: Any) -> Any:
    """The module as an ML Program; of iOS 18 and in float16 unless told otherwise."""
    dynamic = options.pop("dynamic_shapes", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module.eval(), example, dynamic_shapes=dynamic).run_decompositions({})
        return ct.convert(
            exported, skip_model_load=True, **{"minimum_deployment_target": ct.target.iOS18, **options}
        )


def save(model: Any, path: Path) -> Path:
    model.save(str(path))
    return path


def feeds(evaluator: Evaluator, inputs: tuple[torch.Tensor, ...]) -> dict[str, Array]:
    return dict(zip(evaluator.inputs, (i.numpy() for i in inputs), strict=True))


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(converted(Layer(), layer_inputs()), tmp_path_factory.mktemp("layer") / "layer.mlpackage")


def test_a_layer_agrees_with_torch(layer: Path) -> None:
    expected = Layer()(*layer_inputs())
    for compute, least in (("declared", 60), ("float32", 70)):
        evaluator = Evaluator(layer, compute=compute)  # type: ignore[arg-type]
        found = evaluator.run(feeds(evaluator, layer_inputs()))
        assert [tuple(a.shape) for a in found.values()] == [tuple(e.shape) for e in expected]
        for array, wanted in zip(found.values(), expected, strict=True):
            assert array.dtype == (np.float16 if compute == "declared" else np.float32)
            assert decibels(array, wanted.detach().numpy()) > least


@pytest.mark.parametrize("ios", ["iOS16", "iOS17", "iOS26"])
def test_a_float32_layer_of_other_systems_agrees_closely(ios: str, tmp_path: Path) -> None:
    model = converted(Layer(2), layer_inputs(), minimum_deployment_target=ct.target[ios],
                      compute_precision=ct.precision.FLOAT32)  # fmt: skip
    evaluator = Evaluator(save(model, tmp_path / "layer.mlpackage"))
    found = evaluator.run(feeds(evaluator, layer_inputs()))
    for array, wanted in zip(found.values(), Layer(2)(*layer_inputs()), strict=True):
        np.testing.assert_allclose(array, wanted.detach(), rtol=1e-4, atol=1e-5)


def test_float32_tells_errors_of_rounding_from_errors_of_the_graph(layer: Path) -> None:
    """Rounding disappears; what the observer sees is float32 throughout."""
    errors, seen = {}, set()
    expected = Layer()(*layer_inputs())[0]
    for compute in ("declared", "float32"):
        evaluator = Evaluator(layer, compute=compute)  # type: ignore[arg-type]
        inputs = feeds(evaluator, layer_inputs())
        kinds: set[str] = set()
        found = evaluator.run(inputs, observe=lambda op, r, k=kinds: k.update(a.dtype.name for a in r))  # type: ignore[misc]
        seen.add(frozenset(kind for kind in kinds if kind.startswith("float")))
        errors[compute] = float(np.abs(next(iter(found.values())) - expected.detach().numpy()).max())
    assert seen == {frozenset({"float16"}), frozenset({"float32"})}
    # The weights themselves are stored in float16.
    assert errors["float32"] < 0.5 * errors["declared"] < 0.01


def quantized(weight: Array, bits: int) -> tuple[Array, Array]:
    """Codes, and one float16 scale for each block of a row."""
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    top = (1 << (bits - 1)) - 1
    scale = (np.abs(blocks).max(-1) / top).astype(np.float16)
    codes = np.clip(np.rint(blocks / scale[..., None]), -top, top).astype(np.int8)
    return codes.reshape(weight.shape), scale


def test_a_layer_with_int4_blocks_agrees_with_torch(tmp_path: Path) -> None:
    """The same codes in torch: what is left is rounding."""
    torch.manual_seed(3)
    first, second = torch.randn(96, WIDTH) * 0.1, torch.randn(WIDTH, 96) * 0.1
    stored = [quantized(w.numpy(), 4) for w in (first, second)]
    dense = [torch.from_numpy(q * np.repeat(s.astype(np.float32), BLOCK, 1)) for q, s in stored]
    int4 = types.nptype_from_builtin(types.string_to_builtin("int4"))

    def body(x: Any) -> Any:
        up, down = (
            mb.constexpr_blockwise_shift_scale(data=codes.astype(int4), scale=scale)
            for codes, scale in stored
        )
        return mb.linear(x=mb.silu(x=mb.linear(x=x, weight=up)), weight=down, name="y")

    path = saved(tmp_path / "int4.mlpackage", {"x": ((5, WIDTH), types.fp16)}, body)
    x = torch.randn(5, WIDTH).half().float()
    found = Evaluator(path).run({"x": x.numpy()})["y"]
    expected = nn.functional.silu(x @ dense[0].T) @ dense[1].T
    assert decibels(found, expected.numpy()) > 60
    assert Evaluator(path, compute="float32").run({"x": x.numpy()})["y"] == pytest.approx(
        expected.numpy(), abs=1e-4
    )


def test_palettized_and_quantized_by_coremltools(layer: Path, tmp_path: Path) -> None:
    """coremltools compresses the weights of a saved model; its own decompression gives the reference."""
    import coremltools.optimize as cto

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ct.models.MLModel(str(layer), skip_model_load=True)
        quantize = cto.coreml.OpLinearQuantizerConfig(
            dtype="int4", granularity="per_block", block_size=32, weight_threshold=1
        )
        palettize = cto.coreml.OpPalettizerConfig(
            mode="uniform", nbits=4, granularity="per_grouped_channel", group_size=16, weight_threshold=1
        )
        int4 = cto.coreml.linear_quantize_weights(model, cto.coreml.OptimizationConfig(quantize))
        palette = cto.coreml.palettize_weights(model, cto.coreml.OptimizationConfig(palettize))
    for label, compressed in (("int4", int4), ("palette", palette)):
        path = save(compressed, tmp_path / f"{label}.mlpackage")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dense = save(cto.coreml.decompress_weights(compressed), tmp_path / f"{label}_dense.mlpackage")
        used = {op.type for op in Package(path).function().operations if op.is_constexpr}
        assert used and not any(op.is_constexpr for op in Package(dense).function().operations)
        inputs = feeds(Evaluator(path), layer_inputs())
        for found, expected in zip(
            Evaluator(path).run(inputs).values(), Evaluator(dense).run(inputs).values(), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


class Cache(nn.Module):
    """Keys that are written at a position and attended under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 16, 8))

    def forward(self, q: torch.Tensor, k: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> Any:
        p = position.item()
        torch._check(p >= 0)
        torch._check(p + 4 <= 16)
        self.keys[:, :, p : p + 4] = k
        return nn.functional.scaled_dot_product_attention(q, self.keys, self.keys, attn_mask=mask)


def test_states_keep_what_was_written(tmp_path: Path) -> None:
    def inputs(position: int, seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        mask = torch.zeros(4, 16)
        mask[:, position + 4 :] = -4e4
        q, k = (torch.randn(1, 2, 4, 8, generator=generator) for _ in range(2))
        return q, k, torch.tensor([position]), mask

    path = save(converted(Cache(), inputs(0, 0)), tmp_path / "cache.mlpackage")
    evaluator, reference = Evaluator(path), Cache()
    assert [state.shape for state in evaluator.states.values()] == [(1, 2, 16, 8)]
    states, others = evaluator.new_states(), evaluator.new_states()
    (name,) = states
    for step, position in enumerate((0, 4, 4, 8)):
        arguments = inputs(position, step)
        expected = reference(*arguments)
        found = next(iter(evaluator.run(feeds(evaluator, arguments), states).values()))
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(states[name], reference.keys, rtol=1e-3, atol=1e-3)
    assert not others[name].any()
    arguments = feeds(evaluator, inputs(0, 0))
    with pytest.raises(InvalidInput, match=f"has the states {name}, given are none; pass what new_states"):
        evaluator.run(arguments)
    with pytest.raises(InvalidInput, match=f"state '{name}' must be an array of float16 with shape"):
        evaluator.run(arguments, {name: np.zeros((1, 2, 16, 8), np.float32)})
    # A runtime position beyond the buffer: the slice is shorter than the update.
    with pytest.raises(EvaluationFailed, match="slice_update '.*': the slice has shape"):
        evaluator.run({**arguments, "position": np.array([14], np.int32)}, states)


def test_functions_share_their_weights(tmp_path: Path) -> None:
    description = ct.utils.MultiFunctionDescriptor()
    for p in (5, 9):
        path = save(converted(Layer(), layer_inputs(p=p)), tmp_path / f"p{p}.mlpackage")
        description.add_function(str(path), "main", f"prefix{p}")
    description.default_function_name = "prefix9"
    ct.utils.save_multifunction(description, str(tmp_path / "both.mlpackage"))
    package = Package(tmp_path / "both.mlpackage")
    assert set(package.functions) == {"prefix5", "prefix9"} and package.default_function == "prefix9"
    for p in (5, 9):
        evaluator = Evaluator(package, f"prefix{p}")
        found = evaluator.run(feeds(evaluator, layer_inputs(p=p)))
        alone = Evaluator(tmp_path / f"p{p}.mlpackage")
        for array, single in zip(
            found.values(), alone.run(feeds(alone, layer_inputs(p=p))).values(), strict=True
        ):
            np.testing.assert_array_equal(array, single)
    stored = {
        p: {c.record for c in package.function(f"prefix{p}").constants.values() if c.record} for p in (5, 9)
    }
    assert stored[5] == stored[9] != set()


@pytest.mark.parametrize("kind", ["enumerated", "range"])
def test_shapes_may_be_chosen_at_run_time(kind: str, tmp_path: Path) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, 1).reshape(1, -1, 4, 8).mean(1) + x.shape[1]

    dimension = torch.export.Dim("t", min=2, max=64)
    allowed: Mapping[str, Callable[[], Any]] = {
        "enumerated": lambda: ct.EnumeratedShapes([[1, 4, 32], [1, 8, 32], [1, 12, 32]], default=[1, 8, 32]),
        "range": lambda: ct.Shape((1, ct.RangeDim(2, 12, default=8), 32)),
    }
    model = converted(Mean(), (torch.zeros(1, 8, 32),), dynamic_shapes=({1: dimension},),
                      inputs=[ct.TensorType(name="x", shape=allowed[kind]())],
                      compute_precision=ct.precision.FLOAT32)  # fmt: skip
    evaluator = Evaluator(save(model, tmp_path / "flexible.mlpackage"))
    assert evaluator.inputs["x"].shape == (1, 8, 32)
    for t in (4, 8, 12):
        x = torch.randn(1, t, 32)
        found = next(iter(evaluator.run({"x": x.numpy()}).values()))
        np.testing.assert_allclose(found, Mean()(x), rtol=1e-5, atol=1e-5)
    text = {"enumerated": r"one of .*\[1, 4, 32\]", "range": r"\[1, 2\.\.12, 32\]"}[kind]
    with pytest.raises(InvalidInput, match=rf"input 'x' has shape \[1, 13, 32\]; expected {text}"):
        evaluator.run({"x": np.zeros((1, 13, 32), np.float32)})
